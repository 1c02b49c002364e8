"""The trusted tier: who sends where, one exact mean per node, and the isolated left out of it."""

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.privacy.noise import GRID
from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.detection import AbsoluteCheck, ClientsCheck, NoCheck, PaperCheck
from fastpfrec_flwr.trusted_node.roster import Attendances, Failures, assign_nodes
from fastpfrec_flwr.trusted_node.tier import DirectTier, TrustedNodes
from fastpfrec_flwr.trusted_node.uploads import Uploads

ITEMS, K = 60, 5


def round_of(clients, cover=0.0, seed=0):
    """Uploads on the grid, each with 1 to 12 rows."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 13, clients)
    rows = [np.sort(generator.choice(ITEMS, n, replace=False)) for n in lengths]
    values = np.rint(generator.normal(0, 1, (lengths.sum(), K)) / GRID) * GRID
    return Uploads(
        generator.integers(0, 2**63, clients).astype(np.uint64), np.cumsum([0, *lengths], dtype=np.int64),
        np.concatenate([*rows, []]).astype(np.int32), values.astype(np.float32), cover,
    )  # fmt: skip


def pick(uploads, clients):
    """Some clients of a round, as their own message."""
    spans = [np.arange(uploads.pointer[c], uploads.pointer[c + 1]) for c in clients]
    entries = np.concatenate([*spans, []]).astype(np.int64)
    pointer = np.cumsum([0, *(len(span) for span in spans)], dtype=np.int64)
    clients = np.array(clients, np.int64)
    return Uploads(
        uploads.nonces[clients], pointer, uploads.rows[entries], uploads.values[entries], uploads.cover_scale
    )


def with_values(uploads, values):
    return Uploads(uploads.nonces, uploads.pointer, uploads.rows, values, uploads.cover_scale)


def partitions(uploads, seed):
    """The same uploads, shuffled and cut into up to five messages, some of them empty."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(uploads.num_clients)
    cuts = np.sort(generator.integers(0, uploads.num_clients + 1, generator.integers(0, 5)))
    return [pick(uploads, part.tolist()) for part in np.split(order, cuts)]


def dense_sum(uploads, clients):
    table = np.zeros((ITEMS, K))
    for c in clients:
        mine = slice(uploads.pointer[c], uploads.pointer[c + 1])
        table[uploads.rows[mine]] += uploads.values[mine].astype(np.float64)
    return table


def assert_rounded(found, exact):
    """Means are exact sums, divided and then rounded to float32 once."""
    np.testing.assert_allclose(found, exact, rtol=2**-23, atol=0)


def as_table(mean):
    table = np.zeros((ITEMS, K))
    table[mean.rows] = mean.values
    return table


def assert_same_mean(one, other):
    if one is None or other is None:
        assert one is other
        return
    assert (one.clients, one.cover_scale) == (other.clients, other.cover_scale)
    for name in ("rows", "values", "touched_by"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def assert_same_reports(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        for name in ("node", "clients", "isolated_clients", "node_isolated"):
            assert getattr(one, name) == getattr(other, name)
        assert_same_mean(one.mean, other.mean)


# ---- the mean --------------------------------------------------------------------------------------------------------


def test_mean_by_hand():
    """Two clients, rows 1 3 and 3: row 1 is halved, row 3 averaged; nobody weighs more for more rows."""
    uploads = Uploads(
        np.array([1, 2], np.uint64), np.array([0, 2, 3]), np.array([1, 3, 3], np.int32),
        np.array([[2, 4], [1, 1], [3, -1]], np.float32), 0.0,
    )  # fmt: skip
    mean = node_mean([uploads], [np.arange(2)], 5)
    assert mean.clients == 2
    assert mean.rows.tolist() == [1, 3]
    assert mean.touched_by.tolist() == [1, 2]
    np.testing.assert_array_equal(mean.values, [[1, 2], [2, 0]])


def test_mean_equals_the_dense_reference():
    uploads = round_of(40)
    chosen = np.array([0, 3, 5, 17, 39])
    mean = node_mean([uploads], [chosen], ITEMS)
    assert_rounded(as_table(mean), dense_sum(uploads, chosen) / 5)
    assert (np.diff(mean.rows) > 0).all()


@pytest.mark.parametrize("seed", range(12))
def test_mean_is_the_same_bits_in_any_order(seed):
    uploads = round_of(50, seed=seed)
    # Values of very different size: a float32 or careless sum would round differently.
    sizes = 2.0 ** np.random.default_rng(seed).integers(-8, 10, (len(uploads.rows), 1))
    uploads = with_values(uploads, (np.rint(uploads.values * sizes / GRID) * GRID).astype(np.float32))
    whole = node_mean([uploads], [np.arange(50)], ITEMS)
    parts = partitions(uploads, seed)
    assert_same_mean(node_mean(parts, [np.arange(part.num_clients) for part in parts], ITEMS), whole)


def test_a_mean_needs_a_client_and_one_kind_of_cover():
    uploads = round_of(3)
    with pytest.raises(ValueError, match="at least one client"):
        node_mean([uploads], [np.empty(0, np.int64)], ITEMS)
    with pytest.raises(ValueError, match="cover noise"):
        node_mean([uploads, round_of(3, 0.1)], [np.arange(3)] * 2, ITEMS)


def test_expected_noise_by_hand():
    """4 clients, lambda .5, k 1: row 0 sent by one, 9 other rows. Every coordinate of the mean carries 4 draws:
    variance 2 .25 4 / 16 = .125, fourth cumulant 12 .0625 4 / 256 = .01171875; without cover one draw: .03125, .0029296875.
    """

    def mean(cover):
        uploads = Uploads(
            np.arange(4, dtype=np.uint64),
            np.array([0, 1, 1, 1, 1]),
            np.array([0], np.int32),
            np.ones((1, 1), np.float32),
            cover,
        )
        return node_mean([uploads], [np.arange(4)], 10)

    expected, sd = mean(0.5).expected_noise(10, 0.5)
    assert expected == pytest.approx(10 * 0.125)
    assert sd == pytest.approx(np.sqrt(10 * (2 * 0.125**2 + 0.01171875)))
    expected, sd = mean(0.0).expected_noise(10, 0.5)
    assert expected == pytest.approx(0.03125)
    assert sd == pytest.approx(np.sqrt(2 * 0.03125**2 + 0.0029296875))
    assert mean(0.0).expected_noise(10, 0.0) == (0, 0)
    # The mean's value is 1/4; cover of three clients on row 0 and of four on the others.
    assert mean(0.0).squared_norm(10, 3.0) == pytest.approx(1 / 16)
    assert mean(0.5).squared_norm(10, 0.0) == pytest.approx(1 / 16 + 0.09375 + 9 * 0.125)


# ---- assignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 7, 10, 64])
@pytest.mark.parametrize("kind", ["random", "consecutive", "high bits"])
def test_assignment_is_uniform(nodes, kind):
    count = 20_000
    nonces = {
        "random": np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64),
        "consecutive": np.arange(count, dtype=np.uint64),
        "high bits": np.arange(count, dtype=np.uint64) << np.uint64(40),
    }[kind]
    assigned = assign_nodes(nonces, nodes)
    assert assigned.min() >= 0
    assert assigned.max() < nodes
    assert nodes == 1 or stats.chisquare(np.bincount(assigned, minlength=nodes)).pvalue > 1e-4


def test_assignment_depends_on_the_nonce_alone():
    nonces = np.random.default_rng(2).integers(0, 2**64, 500, dtype=np.uint64)
    order = np.random.default_rng(3).permutation(500)
    np.testing.assert_array_equal(assign_nodes(nonces[order], 10), assign_nodes(nonces, 10)[order])
    for j in (0, 77, 499):
        assert assign_nodes(nonces[[j]], 10)[0] == assign_nodes(nonces, 10)[j]


# ---- the tier --------------------------------------------------------------------------------------------------------

CHECKS = [NoCheck(), PaperCheck(2.0, 0.1), ClientsCheck(2.0, 0.4), AbsoluteCheck(5.0)]


@pytest.mark.parametrize("cover", [0.0, 0.1])
@pytest.mark.parametrize("check", CHECKS)
def test_reports_do_not_depend_on_messages_order_or_threads(check, cover):
    uploads = round_of(60, cover)
    tier = TrustedNodes(5, check, 0.1, seed=1)
    whole = tier.collect([uploads], ITEMS, 3)
    assert sum(report.clients for report in whole) == 60
    for seed in range(6):
        assert_same_reports(tier.collect(partitions(uploads, seed), ITEMS, 3), whole)
    assert_same_reports(TrustedNodes(5, check, 0.1, seed=1, threads=2).collect([uploads], ITEMS, 3), whole)


def test_every_node_averages_its_own_clients():
    uploads = round_of(60)
    reports = TrustedNodes(5, NoCheck(), 0.0, seed=1).collect([uploads], ITEMS, 1)
    assigned = assign_nodes(uploads.nonces, 5)
    assert [report.node for report in reports] == sorted(set(assigned.tolist()))
    for report in reports:
        own = np.flatnonzero(assigned == report.node)
        assert (report.clients, report.isolated_clients, report.node_isolated) == (len(own), 0, False)
        assert_rounded(as_table(report.mean), dense_sum(uploads, own) / len(own))


def test_the_isolated_are_not_in_the_mean():
    uploads = round_of(60)
    values = uploads.values.copy()
    poisoned = 13
    values[uploads.pointer[poisoned] : uploads.pointer[poisoned + 1]] = 4000
    reports = TrustedNodes(5, ClientsCheck(3.5, 0.5, 60.0), 0.0, seed=1).collect(
        [with_values(uploads, values)], ITEMS, 1
    )
    assigned = assign_nodes(uploads.nonces, 5)
    assert sum(report.isolated_clients for report in reports) == 1
    for report in reports:
        own = [c for c in np.flatnonzero(assigned == report.node) if c != poisoned]
        assert report.isolated_clients == int(report.node == assigned[poisoned])
        assert report.mean.clients == len(own)
        assert_rounded(as_table(report.mean), dense_sum(uploads, own) / len(own))


def test_all_isolated_is_no_mean():
    uploads = round_of(30)
    reports = TrustedNodes(4, AbsoluteCheck(1e-3), 0.0, seed=1).collect([uploads], ITEMS, 1)
    assert len(reports) == 4
    for report in reports:
        assert report.mean is None
        assert report.node_isolated
        assert report.isolated_clients == report.clients > 0


def test_nodes_without_clients_are_absent():
    uploads = round_of(3)
    reports = TrustedNodes(50, NoCheck(), 0.0, seed=1).collect([uploads], ITEMS, 1)
    assert [report.node for report in reports] == sorted(set(assign_nodes(uploads.nonces, 50).tolist()))
    assert sum(report.clients for report in reports) == 3


def test_a_node_that_is_gone_hands_in_nothing_and_the_others_average_its_clients():
    uploads = round_of(60)
    failures = Failures(5, seed=1, fixed=2)
    tier = TrustedNodes(5, NoCheck(), 0.0, seed=1, roster=Attendances(failures, "retry"))
    reports = tier.collect([uploads], ITEMS, 1)
    assert [report.node for report in reports] == sorted(set(range(5)) - failures.down(1))
    assert sum(report.clients for report in reports) == 60
    (assigned,) = Attendances(failures, "retry").assign([uploads.nonces], 5, 1)
    for report in reports:
        own = np.flatnonzero(assigned == report.node)
        assert_rounded(as_table(report.mean), dense_sum(uploads, own) / len(own))
    lost = TrustedNodes(5, NoCheck(), 0.0, seed=1, roster=Attendances(failures, "none")).collect([uploads], ITEMS, 1)
    honest = TrustedNodes(5, NoCheck(), 0.0, seed=1).collect([uploads], ITEMS, 1)
    assert_same_reports(lost, [report for report in honest if report.node not in failures.down(1)])


@pytest.mark.parametrize("tier", [TrustedNodes(4, ClientsCheck(3.5, 0.5), 0.1, seed=1), DirectTier()])
def test_nobody_came(tier):
    assert tier.collect([], ITEMS, 1) == []
    assert tier.collect([pick(round_of(3), [])], ITEMS, 1) == []


def test_without_a_tier_all_are_averaged_unchecked():
    uploads = round_of(20)
    values = uploads.values.copy()
    values[0] = 4000
    uploads = with_values(uploads, values)
    reports = DirectTier().collect(partitions(uploads, 1), ITEMS, 1)
    assert len(reports) == 1
    assert (reports[0].clients, reports[0].isolated_clients, reports[0].node_isolated) == (20, 0, False)
    assert_rounded(as_table(reports[0].mean), dense_sum(uploads, range(20)) / 20)
    assert_same_reports(DirectTier().collect([uploads], ITEMS, 1), reports)
