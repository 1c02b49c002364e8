"""A node's aggregate: by hand, the same in every order and block size, and the same in distribution as real dense uploads."""

import itertools

import numpy as np
import pytest

from fastpfrec_flwr.trusted_node import points as points_module
from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.aggregators import Mean, PerClient, PerCoordinate, PerRow
from fastpfrec_flwr.trusted_node.detection import NoCheck
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.robust import CenteredClipping, GeometricMedian, Krum, Median, TrimmedMean
from fastpfrec_flwr.trusted_node.tier import DirectTier, TrustedNodes
from fastpfrec_flwr.trusted_node.uploads import Uploads

ITEMS, K, SCALE = 150, 6, 0.1
SHOWN = [PerRow(Median()), PerRow(TrimmedMean(0.2))]
WHOLE = [
    PerCoordinate(Median()), PerCoordinate(TrimmedMean(0.2)), PerClient(Krum(0.2, False)), PerClient(Krum(0.2, True)),
    PerClient(GeometricMedian()), PerClient(CenteredClipping(0.0, 3)),
]  # fmt: skip


def uploads_of(clients, cover=0.0, seed=0, touched=30):
    generator = np.random.default_rng(seed)
    rows = np.concatenate([np.sort(generator.choice(ITEMS, touched, replace=False)) for _ in range(clients)])
    values = np.round(generator.normal(0, 1, (clients * touched, K)) * 2**20) / 2**20
    return Uploads(
        generator.integers(0, 2**63, clients).astype(np.uint64), np.arange(clients + 1) * touched, rows.astype(np.int32),
        values.astype(np.float32), cover,
    )  # fmt: skip


def split(uploads, sizes):
    """The same clients in several parts, in another order."""
    bounds = np.cumsum([0, *sizes])
    parts = []
    for first, last in itertools.pairwise(bounds):
        mine = slice(uploads.pointer[first], uploads.pointer[last])
        pointer = uploads.pointer[first : last + 1] - uploads.pointer[first]
        parts.append(
            Uploads(uploads.nonces[first:last], pointer, uploads.rows[mine], uploads.values[mine], uploads.cover_scale)
        )
    return parts[::-1]


def everybody(parts):
    return [np.arange(part.num_clients) for part in parts]


def dense(mean):
    whole = np.zeros((ITEMS, K))
    whole[mean.rows] = mean.values
    return whole


def small():
    """Three clients, four items, one column: rows 0 (all three: 1, 2, 9), 1 (two: 4, 6), 3 (one: 30)."""
    return Uploads(
        np.array([5, 3, 9], np.uint64), np.array([0, 3, 5, 6]), np.array([0, 1, 3, 0, 1, 0], np.int32),
        np.array([1, 4, 30, 2, 6, 9], np.float32)[:, None], 0.0,
    )  # fmt: skip


def test_per_coordinate_by_hand():
    """Untouched rows count as zero: the medians are 2, 4, -, 0."""
    mean = PerCoordinate(Median()).aggregate([small()], [np.arange(3)], 4, 0)
    np.testing.assert_array_equal(mean.rows, [0, 1, 3])
    np.testing.assert_array_equal(mean.values[:, 0], [2, 4, 0])
    np.testing.assert_array_equal(mean.touched_by, [3, 2, 0], err_msg="the last row's noise is outvoted with its value")
    assert (mean.clients, mean.cover_scale) == (3, 0.0)


def test_per_row_by_hand():
    """Share times median of the senders: 1 x 2, 2/3 x 5, 1/3 x 30."""
    mean = PerRow(Median()).aggregate([small()], [np.arange(3)], 4, 0)
    np.testing.assert_array_equal(mean.rows, [0, 1, 3])
    np.testing.assert_allclose(mean.values[:, 0], [2, 10 / 3, 10])
    np.testing.assert_array_equal(mean.touched_by, [3, 2, 1])


def test_per_client_by_hand():
    """As whole tables (1, 4, 0, 30), (2, 6, 0, 0), (9, 0, 0, 0): Krum's one nearest, the second to the third: 49 + 36."""
    mean = PerClient(Krum(0.0, False)).aggregate([small()], [np.arange(3)], 4, 0)
    np.testing.assert_array_equal(dense_small(mean), [2, 6, 0, 0])
    assert mean.clients == 1
    np.testing.assert_array_equal(mean.touched_by, [1, 1, 0])


def dense_small(mean):
    whole = np.zeros(4)
    whole[mean.rows] = mean.values[:, 0]
    return whole


def test_row_wise_without_trimming_is_the_mean():
    uploads = uploads_of(20)
    rowwise = PerRow(TrimmedMean(0.0)).aggregate([uploads], [np.arange(20)], ITEMS, 0)
    plain = node_mean([uploads], [np.arange(20)], ITEMS)
    np.testing.assert_array_equal(rowwise.rows, plain.rows)
    np.testing.assert_allclose(rowwise.values, plain.values, atol=1e-12)
    np.testing.assert_array_equal(rowwise.touched_by, plain.touched_by)


@pytest.mark.parametrize("aggregator", WHOLE + SHOWN, ids=repr)
def test_matches_the_dense_reference(aggregator):
    """Built here from whole tables, one client after the other."""
    uploads = uploads_of(11)
    whole = np.zeros((11, ITEMS, K))
    for j in range(11):
        mine = slice(uploads.pointer[j], uploads.pointer[j + 1])
        whole[j, uploads.rows[mine]] = uploads.values[mine]
    got = dense(aggregator.aggregate([uploads], [np.arange(11)], ITEMS, 0))
    rule = aggregator.rule
    if isinstance(aggregator, PerCoordinate):
        expected = rule.locate(whole)
    elif isinstance(aggregator, PerClient):
        flat = whole.reshape(11, -1)
        expected = np.tensordot(rule.weights(flat @ flat.T), whole, axes=1)
    else:
        expected = np.zeros((ITEMS, K))
        for row in range(ITEMS):
            senders = [j for j in range(11) if row in uploads.rows[uploads.pointer[j] : uploads.pointer[j + 1]]]
            if senders:
                expected[row] = rule.locate(whole[senders, row]) * len(senders) / 11
    np.testing.assert_allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize("cover", [0.0, SCALE])
@pytest.mark.parametrize("aggregator", WHOLE + SHOWN, ids=repr)
def test_neither_arrival_nor_blocks_change_a_bit(aggregator, cover, monkeypatch):
    if cover and isinstance(aggregator, PerRow):
        pytest.skip("refused: see below")
    uploads = uploads_of(17, cover)
    one = aggregator.aggregate([uploads], [np.arange(17)], ITEMS, 7)
    parts = split(uploads, [3, 9, 5])
    other = aggregator.aggregate(parts, everybody(parts), ITEMS, 7)
    assert one.values.tobytes() == other.values.tobytes()
    assert one.rows.tobytes() == other.rows.tobytes()
    assert (one.clients, one.cover_scale) == (other.clients, 0.0)
    monkeypatch.setattr(points_module, "BLOCK_VALUES", 17 * K * 64)
    blocks = list(UploadPoints.gather([uploads], [np.arange(17)], ITEMS, 7).blocks())
    assert len(blocks) > 1
    in_blocks = aggregator.aggregate([uploads], [np.arange(17)], ITEMS, 7)
    np.testing.assert_allclose(dense(in_blocks), dense(one), atol=1e-9)


def test_row_wise_refuses_cover_noise():
    with pytest.raises(ValueError, match="need uploads that show their rows"):
        PerRow(Median()).aggregate([uploads_of(3, SCALE)], [np.arange(3)], ITEMS, 0)


@pytest.mark.parametrize("aggregator", [Mean(), *WHOLE, *SHOWN], ids=repr)
def test_nobody_and_mixed_uploads_are_errors(aggregator):
    with pytest.raises(ValueError, match="at least one client"):
        aggregator.aggregate([uploads_of(3)], [np.arange(0)], ITEMS, 0)
    with pytest.raises(ValueError, match="with and without cover noise"):
        aggregator.aggregate([uploads_of(3), uploads_of(3, SCALE)], [np.arange(3)] * 2, ITEMS, 0)


def test_materialised_noise_is_laplace_on_every_other_row():
    """Mean 0, variance 2 lambda^2, kurtosis 6, on the grid; what was sent stays as it was sent."""
    uploads = uploads_of(40, SCALE)
    points = UploadPoints.gather([uploads], [np.arange(40)], ITEMS, 3)
    noise = []
    for client in range(40):
        table = points.table(client)
        sent = points.uploads.rows[points.uploads.pointer[client] : points.uploads.pointer[client + 1]]
        first = points.uploads.pointer[client]
        np.testing.assert_array_equal(table[sent], points.uploads.values[first : first + len(sent)])
        noise.append(np.delete(table, sent, axis=0).ravel())
    noise = np.concatenate(noise).astype(np.float64)
    assert abs(noise.mean()) < 5 * SCALE * np.sqrt(2 / len(noise))
    assert noise.var() == pytest.approx(2 * SCALE**2, rel=5 * np.sqrt(5 / len(noise)))
    assert np.mean(noise**4) / noise.var() ** 2 == pytest.approx(6, abs=1)
    np.testing.assert_array_equal(noise * 2**20, np.rint(noise * 2**20))
    again = UploadPoints.gather([uploads], [np.arange(40)], ITEMS, 4)
    assert not np.array_equal(again.table(0), points.table(0)), "another round, other noise"


def test_each_client_has_noise_of_its_own():
    points = UploadPoints.gather([uploads_of(6, SCALE, touched=1)], [np.arange(6)], ITEMS, 3)
    tables = np.stack([points.table(j).ravel() for j in range(6)])
    correlation = np.corrcoef(tables) - np.eye(6)
    assert np.abs(correlation).max() < 0.5
    assert len(np.unique(tables)) > 0.95 * tables.size


@pytest.mark.parametrize(
    "aggregator", [PerCoordinate(Median()), PerCoordinate(TrimmedMean(0.2)), PerClient(GeometricMedian())]
)
def test_simulated_dense_uploads_equal_real_ones_in_distribution(aggregator):
    """The same clients, once with cover noise left to the node and once as whole noised tables: equal first two moments."""
    clients, repeats = 9, 40
    generator = np.random.default_rng(5)
    base = uploads_of(clients, 0.0, touched=20)
    simulated, real = [], []
    for repeat in range(repeats):
        noised = base.values + generator.laplace(0, SCALE, base.values.shape).astype(np.float32)
        part = Uploads(base.nonces, base.pointer, base.rows, noised, SCALE)
        simulated.append(dense(aggregator.aggregate([part], [np.arange(clients)], ITEMS, repeat)))
        tables = generator.laplace(0, SCALE, (clients, ITEMS, K)).astype(np.float32)
        for j in range(clients):
            mine = slice(base.pointer[j], base.pointer[j + 1])
            tables[j, base.rows[mine]] += base.values[mine]
        whole = Uploads(
            base.nonces, np.arange(clients + 1) * ITEMS, np.tile(np.arange(ITEMS, dtype=np.int32), clients),
            tables.reshape(-1, K), 0.0,
        )  # fmt: skip
        real.append(dense(aggregator.aggregate([whole], [np.arange(clients)], ITEMS, repeat)))
    one, other = np.stack(simulated), np.stack(real)
    spread = one.std(axis=0).mean()
    assert other.std(axis=0).mean() == pytest.approx(spread, rel=0.03)
    error = np.abs(one.mean(axis=0) - other.mean(axis=0)).mean()
    assert error < 1.5 * spread * np.sqrt(2 / repeats)


@pytest.mark.parametrize("aggregator", WHOLE, ids=repr)
def test_tiers_use_their_aggregator(aggregator):
    uploads = uploads_of(30, SCALE)
    for tier in (TrustedNodes(4, NoCheck(), SCALE, 1, aggregator=aggregator), DirectTier(1, aggregator)):
        reports = tier.collect([uploads], ITEMS, 2)
        assert all(report.mean.cover_scale == 0 for report in reports)
        assert sum(report.clients for report in reports) == 30
        again = tier.collect(split(uploads, [10, 20]), ITEMS, 2)
        assert [report.mean.values.tobytes() for report in reports] == [
            report.mean.values.tobytes() for report in again
        ]
        later = tier.collect([uploads], ITEMS, 3)
        assert reports[0].mean.values.tobytes() != later[0].mean.values.tobytes(), "noise is drawn anew every round"


def test_a_lie_in_one_node_is_contained():
    uploads = uploads_of(40)
    values = uploads.values.copy()
    values[: uploads.pointer[3]] += 1000  # three liars
    lying = Uploads(uploads.nonces, uploads.pointer, uploads.rows, values, 0.0)
    for aggregator in (PerCoordinate(Median()), PerClient(Krum(0.2, True)), PerClient(GeometricMedian())):
        honest = dense(aggregator.aggregate([uploads], [np.arange(40)], ITEMS, 0))
        attacked = dense(aggregator.aggregate([lying], [np.arange(40)], ITEMS, 0))
        assert np.abs(attacked - honest).max() < 2, aggregator
    plain = dense(node_mean([lying], [np.arange(40)], ITEMS))
    assert np.abs(plain).max() > 20
