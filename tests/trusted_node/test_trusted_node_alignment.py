"""The check that compares each client with the mean of all others."""

import numpy as np
import pytest

from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.alignment import AlignmentCheck, Candidates, NoCrossCheck, merged, products_with_others
from fastpfrec_flwr.trusted_node.detection import NoCheck
from fastpfrec_flwr.trusted_node.distances import upload_distances
from fastpfrec_flwr.trusted_node.tier import TrustedNodes
from fastpfrec_flwr.trusted_node.uploads import Uploads

ITEMS, K = 300, 8


def uploads_of(changes, cover=0.0, noise=None, seed=0):
    """Changes ((clients, items, k), zero where a client sends nothing) as uploads; noised on what they carry."""
    generator = np.random.default_rng(seed)
    rows = [np.flatnonzero(each.any(axis=1)).astype(np.int32) for each in changes]
    values = [each[mine].astype(np.float32) for each, mine in zip(changes, rows, strict=True)]
    if cover or noise:
        values = [(v + generator.laplace(0, noise or cover, v.shape)).astype(np.float32) for v in values]
    pointer = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    nonces = generator.integers(0, 2**63, len(changes)).astype(np.uint64)
    return Uploads(nonces, pointer, np.concatenate(rows), np.concatenate(values), cover)


def honest(clients, seed=0, touched=20):
    generator = np.random.default_rng(seed)
    changes = np.zeros((clients, ITEMS, K))
    for each in changes:
        each[generator.choice(ITEMS, touched, replace=False)] = generator.normal(0, 1, (touched, K))
    return changes * np.exp(0.5 * generator.normal(size=clients))[:, None, None]


def products_of(uploads, columns=K):
    members = [np.arange(uploads.num_clients)]
    mean = merged([node_mean([uploads], members, ITEMS)], ITEMS, columns)
    return products_with_others([uploads], members, mean, np.zeros(uploads.num_clients), ITEMS)


def test_by_hand():
    """Three clients on one row: (1, 0), (3, 0), (0, 2). The others' means: (1.5, 1), (0.5, 1), (2, 0)."""
    changes = np.zeros((3, ITEMS, K))
    changes[0, 5, :2], changes[1, 5, :2], changes[2, 5, :2] = (1, 0), (3, 0), (0, 2)
    products, length = products_of(uploads_of(changes))
    np.testing.assert_allclose(products, [1.5, 1.5, 0.0], atol=1e-5)
    assert length == pytest.approx(np.hypot(4 / 3, 2 / 3), rel=1e-6)


def test_as_defined_on_many_parts():
    changes = honest(12)
    whole = uploads_of(changes)
    expected = [(changes[j] * np.delete(changes, j, axis=0).mean(axis=0)).sum() for j in range(12)]
    np.testing.assert_allclose(products_of(whole)[0], expected, atol=1e-3)
    parts = [uploads_of(changes[:5]), uploads_of(changes[5:])]
    members = [np.array([0, 3, 4]), np.array([1, 6])]
    few = changes[[0, 3, 4, 6, 11]]
    mean = merged([node_mean(parts, members, ITEMS)], ITEMS, K)
    found, _ = products_with_others(parts, members, mean, np.zeros(5), ITEMS)
    expected = [(few[j] * np.delete(few, j, axis=0).mean(axis=0)).sum() for j in range(5)]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_count_column_is_no_direction():
    changes = honest(6)
    counted = np.concatenate([changes, np.full((6, ITEMS, 1), 32.0) * changes.any(axis=2, keepdims=True)], axis=2)
    np.testing.assert_allclose(products_of(uploads_of(counted))[0], products_of(uploads_of(changes))[0], atol=1e-3)


def test_one_client_has_no_others():
    with pytest.raises(ValueError, match="no others"):
        products_of(uploads_of(honest(1)))


def test_noise_that_is_drawn_later_has_the_variance_of_noise_that_travels():
    """Real dense uploads carry Laplace noise on every row; simulated ones draw what that does to a product."""
    clients, scale = 6, 0.5
    changes = honest(clients, touched=30)
    generator = np.random.default_rng(1)
    real = []
    for _ in range(1500):
        noised = changes + generator.laplace(0, scale, changes.shape)
        flat = noised.reshape(clients, -1)
        gram = flat @ flat.T
        real.append((gram.sum(axis=1) - np.diagonal(gram)) / (clients - 1))
    real = np.array(real)
    simulated = []
    for seed in range(1500):
        uploads = uploads_of(changes, cover=scale, seed=seed)
        members = [np.arange(clients)]
        mean = merged([node_mean([uploads], members, ITEMS)], ITEMS, K)
        normals = generator.standard_normal(clients)
        simulated.append(products_with_others([uploads], members, mean, normals, ITEMS)[0])
    simulated = np.array(simulated)
    # 1500 draws: a mean is off by sd / 39, a standard deviation by 2 %; four times that.
    assert (np.abs(real.mean(axis=0) - simulated.mean(axis=0)) < 4 * np.hypot(real.std(0), simulated.std(0)) / 38).all()
    np.testing.assert_allclose(simulated.std(axis=0), real.std(axis=0), rtol=0.11)


def candidates(uploads, chosen, noise=0.0):
    mean = node_mean([uploads], [chosen], ITEMS)
    distances = upload_distances(uploads.values, uploads.pointer, noise, uploads.cover_scale, ITEMS, uploads.nonces)
    normals = np.random.default_rng(3).standard_normal(len(chosen))
    return Candidates([chosen], mean, distances.of(chosen), normals)


def examine(uploads, noise=0.0, threshold=8.0, nodes=1):
    bounds = np.array_split(np.arange(uploads.num_clients), nodes)
    brought = [candidates(uploads, chosen, noise) for chosen in bounds]
    return np.concatenate(AlignmentCheck(threshold).examine([uploads], brought, ITEMS, noise, K))


def test_the_mean_of_all_nodes():
    uploads = uploads_of(honest(20), cover=0.1)
    parts = [np.arange(5), np.arange(5, 20)]
    means = [node_mean([uploads], [chosen], ITEMS) for chosen in parts]
    together, all_at_once = merged(means, ITEMS, K), node_mean([uploads], [np.arange(20)], ITEMS)
    assert together.clients == 20
    np.testing.assert_allclose(together.values[all_at_once.rows], all_at_once.values, atol=1e-6)
    assert together.touched_by[all_at_once.rows].tolist() == all_at_once.touched_by.tolist()
    assert together.touched_by.sum() == all_at_once.touched_by.sum()


def test_a_node_full_of_liars_is_judged_by_the_others():
    """The last of four nodes holds liars alone: its own median would find nobody."""
    changes = honest(40)
    changes[30:] = np.random.default_rng(9).normal(0, 0.5, (ITEMS, K))
    assert examine(uploads_of(changes), nodes=4).tolist() == [False] * 30 + [True] * 10


def test_colluders_of_honest_size_are_seen_and_nobody_else():
    changes = honest(26)
    lie = np.random.default_rng(9).normal(0, 1, (ITEMS, K))
    lie *= np.linalg.norm(changes[:18].reshape(18, -1), axis=1).mean() / np.linalg.norm(lie)
    changes[18:] = lie
    assert examine(uploads_of(changes)).tolist() == [False] * 18 + [True] * 8
    assert examine(uploads_of(changes, cover=0.1), 0.1).tolist() == [False] * 18 + [True] * 8


def test_honest_clients_are_left_alone():
    found = [examine(uploads_of(honest(26, seed), cover=0.1), 0.1).mean() for seed in range(40)]
    assert np.mean(found) < 0.01


def test_too_few_to_say():
    changes = np.repeat(honest(1), 4, axis=0)
    assert not examine(uploads_of(changes)).any()
    changes = np.repeat(honest(1), 8, axis=0)
    assert not examine(uploads_of(changes), nodes=2).any()  # eight, but no node has enough for a median


def test_within_the_tier():
    """Two thirds honest: the colluders are left out of the mean, and their node mates are not."""
    changes = honest(26)
    changes[18:] = np.random.default_rng(9).normal(0, 0.5, (ITEMS, K))
    uploads = uploads_of(changes)
    alone = node_mean([uploads], [np.arange(18)], ITEMS)
    (report,) = TrustedNodes(1, NoCheck(), 0.0, 1, cross_check=AlignmentCheck(8.0)).collect([uploads], ITEMS, 1)
    assert (report.clients, report.isolated_clients, report.node_isolated) == (26, 8, False)
    assert report.mean.values.tobytes() == alone.values.tobytes()
    (report,) = TrustedNodes(1, NoCheck(), 0.0, 1, cross_check=NoCrossCheck()).collect([uploads], ITEMS, 1)
    assert report.isolated_clients == 0
