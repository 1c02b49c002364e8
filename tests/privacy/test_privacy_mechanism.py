"""The only way out of a client: clip, noise, grid; and simulated cover noise is real dense noise in distribution."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.privacy.mechanism import Clip, HalfPrecision, LaplaceMechanism, NoNoise, PrivatizedUploads
from fastpfrec_flwr.privacy.noise import GRID, add_seeded_laplace
from fastpfrec_flwr.randomness import user_stream_keys
from fastpfrec_flwr.server.average import average_nodes
from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.distances import upload_distances
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclasses.dataclass
class Changes:
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def cohort(clients=3, touched=5, items=20, k=4, size=1.0):
    generator = np.random.default_rng(clients * 1000 + touched)
    rows = np.concatenate([np.sort(generator.choice(items, touched, replace=False)) for _ in range(clients)])
    values = generator.normal(0, size, (clients * touched, k)).astype(np.float32)
    return Changes(rows.astype(np.int32), np.arange(clients + 1, dtype=np.int64) * touched, values)


def copy(changes):
    return Changes(changes.rows, changes.pointer, changes.changes.copy())


NONCES = np.array([5, 6, 7], np.uint64)
KEYS = np.array([50, 60, 70], np.uint64)
MECHANISMS = [
    LaplaceMechanism(Clip(1, 2), 0.1, dense=True),
    LaplaceMechanism(Clip(1, 2), 0.1, dense=False),
    NoNoise(Clip(1, 2)),
]


# ---- nothing else may leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seal", [None, object(), True, "seal"])
def test_uploads_cannot_be_made_by_hand(seal):
    with pytest.raises(TypeError, match="Mechanism"):
        PrivatizedUploads(NONCES, np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros((0, 2), np.float32), 0.0, seal)
    with pytest.raises(TypeError):
        PrivatizedUploads(NONCES, np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros((0, 2), np.float32), 0.0)


def test_uploads_cannot_be_changed_afterwards():
    uploads = NoNoise(Clip(0, 0)).privatize(cohort(), NONCES, None, 20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        uploads.values = np.zeros((15, 4), np.float32)


# ---- form ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [KEYS, None])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_form_of_uploads(mechanism, keys):
    changes = cohort()
    before = copy(changes)
    uploads = mechanism.privatize(changes, NONCES, keys, 20)
    dense = isinstance(mechanism, LaplaceMechanism) and mechanism.dense
    np.testing.assert_array_equal(uploads.nonces, NONCES)
    assert uploads.values.dtype == np.float32
    assert uploads.rows.dtype == np.int32
    assert uploads.pointer.dtype == np.int64
    steps = uploads.values.astype(np.float64) / GRID
    np.testing.assert_array_equal(steps, np.rint(steps))
    if dense and keys is None:  # a real device sends the whole table
        np.testing.assert_array_equal(uploads.rows, np.tile(np.arange(20), 3))
        np.testing.assert_array_equal(uploads.pointer, [0, 20, 40, 60])
        assert uploads.values.shape == (60, 4)
        assert (uploads.values != 0).mean() > 0.99
    else:
        np.testing.assert_array_equal(uploads.rows, before.rows)
        np.testing.assert_array_equal(uploads.pointer, before.pointer)
        assert uploads.values.shape == before.changes.shape
    assert uploads.cover_scale == (0.1 if dense and keys is not None else 0.0)


def test_without_noise_an_upload_is_the_clipped_change_on_the_grid():
    changes = cohort(size=3.0)
    expected = changes.changes.copy()
    for user in range(3):
        Clip(1, 2).apply(expected[5 * user : 5 * user + 5])
    uploads = NoNoise(Clip(1, 2)).privatize(changes, NONCES, KEYS, 20)
    np.testing.assert_allclose(uploads.values, expected, atol=GRID / 2 + 1e-9)
    assert np.linalg.norm(uploads.values[:5].astype(np.float64)) <= 2 + 20 * GRID


def test_the_clip_comes_first_and_the_noise_is_not_clipped():
    """Theta' - E - clipped change is the whole noise of that client's stream, to the grid's rounding."""
    changes = cohort(size=50.0)
    clipped = changes.changes.copy()
    for user in range(3):
        Clip(0.1, 0.2).apply(clipped[5 * user : 5 * user + 5])
    uploads = LaplaceMechanism(Clip(0.1, 0.2), 3.0, dense=False).privatize(changes, NONCES, KEYS, 20)
    for user in range(3):
        noise = np.zeros(20, np.float32)
        add_seeded_laplace(KEYS[user], 3.0, noise)
        mine = slice(5 * user, 5 * user + 5)
        np.testing.assert_allclose(uploads.values[mine], clipped[mine] + noise.reshape(5, 4), atol=3e-6)
    assert np.linalg.norm(uploads.values) > 5


def test_every_client_is_clipped_alone():
    changes = cohort()
    changes.changes[:5] *= 1e6
    quiet = changes.changes[5:].copy() * np.float32(0.01)
    changes.changes[5:] = quiet
    uploads = NoNoise(Clip(0, 2)).privatize(changes, NONCES, KEYS, 20)
    np.testing.assert_allclose(uploads.values[5:], quiet, atol=GRID)


@pytest.mark.parametrize("keys", [KEYS, None])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_that_are_not_finite_never_leave(mechanism, keys):
    changes = cohort()
    changes.changes[[0, 6, 12], [0, 1, 2]] = np.nan, np.inf, 3e38
    uploads = mechanism.privatize(changes, NONCES, keys, 20)
    assert np.isfinite(uploads.values).all()
    assert np.abs(uploads.values).max() < 10


def test_threads_and_company_change_nothing():
    changes = cohort(clients=30)
    nonces, keys = np.arange(30, dtype=np.uint64), user_stream_keys(4, np.arange(30))
    one = LaplaceMechanism(Clip(1, 2), 0.1, True, threads=1).privatize(copy(changes), nonces, keys, 20)
    two = LaplaceMechanism(Clip(1, 2), 0.1, True, threads=2).privatize(copy(changes), nonces, keys, 20)
    np.testing.assert_array_equal(one.values, two.values)
    for user in (0, 17, 29):
        mine = slice(5 * user, 5 * user + 5)
        alone = Changes(changes.rows[mine], np.array([0, 5]), changes.changes[mine].copy())
        upload = LaplaceMechanism(Clip(1, 2), 0.1, True).privatize(alone, nonces[[user]], keys[[user]], 20)
        np.testing.assert_array_equal(upload.values, one.values[mine])


def test_noise_of_clients_is_independent_and_system_noise_new_each_time():
    def noise(keys):
        changes = cohort(2, 500, 500)
        changes.changes[:] = 0
        return LaplaceMechanism(Clip(0, 0), 0.1, False).privatize(changes, NONCES[:2], keys, 500).values.reshape(2, -1)

    for keys in (KEYS[:2], None):
        values = noise(keys)
        assert abs(np.corrcoef(values)[0, 1]) < 6 / np.sqrt(2000)
    assert (noise(None) == noise(None)).mean() < 0.01
    np.testing.assert_array_equal(noise(KEYS[:2]), noise(KEYS[:2]))


# ---- simulated cover noise is real dense noise -----------------------------------------------------------------------

ITEMS, K, CLIENTS, REPEATS, SCALE = 400, 8, 20, 120, 0.1


@pytest.fixture(scope="module")
def both_ways():
    """REPEATS rounds each way: squared distances of clients, of the node's mean, and W_s - E."""
    changes = cohort(CLIENTS, 60, ITEMS, K, 0.05)
    # Rows that all clients touch, some do, none does.
    changes.rows = np.concatenate(
        [np.sort(np.append(np.arange(20), 20 + np.random.default_rng(c).choice(180, 40, replace=False))) for c in range(CLIENTS)]
    ).astype(np.int32)  # fmt: skip
    nonces = np.arange(CLIENTS, dtype=np.uint64)
    found = {}
    for way in ("real", "simulated"):
        distances, norms, averages = [], [], []
        for repeat in range(REPEATS):
            keys = None if way == "real" else user_stream_keys(repeat + 1, np.arange(CLIENTS))
            made = LaplaceMechanism(Clip(0, 0), SCALE, dense=True).privatize(copy(changes), nonces, keys, ITEMS)
            uploads = Uploads(made.nonces, made.pointer, made.rows, made.values, made.cover_scale)
            distance = upload_distances(
                uploads.values, uploads.pointer, SCALE, uploads.cover_scale, ITEMS,
                user_stream_keys(1000 + repeat, np.arange(CLIENTS)),
            )  # fmt: skip
            mean = node_mean([uploads], [np.arange(CLIENTS)], ITEMS)
            normal = float(np.random.default_rng(repeat).standard_normal())
            distances.append(distance.squared)
            norms.append(mean.squared_norm(ITEMS, normal))
            averages.append(average_nodes([mean], ITEMS, K, 1, repeat))
        found[way] = (np.array(distances), np.array(norms), np.array(averages), distance, mean)
    truth = np.zeros((ITEMS, K))
    np.add.at(truth, changes.rows, changes.changes.astype(np.float64) / CLIENTS)
    return found["real"], found["simulated"], truth


def test_squared_distances_of_clients_agree(both_ways):
    (real, *_, last_real, _), (simulated, *_, last_simulated, _), _ = both_ways
    real, simulated = real - real.mean(axis=0), simulated - real.mean(axis=0)
    assert stats.ks_2samp(real.ravel(), simulated.ravel()).pvalue > 1e-6
    np.testing.assert_allclose(simulated.std(), real.std(), rtol=0.1)
    np.testing.assert_allclose(last_real.noise_mean, last_simulated.noise_mean)
    np.testing.assert_allclose(last_real.noise_sd, last_simulated.noise_sd)
    np.testing.assert_allclose(real.std(), last_real.noise_sd[0], rtol=0.1)


def test_squared_norms_of_the_node_mean_agree(both_ways):
    (_, real, _, _, real_mean), (_, simulated, _, _, simulated_mean), truth = both_ways
    assert stats.ks_2samp(real, simulated).pvalue > 1e-6
    expected, sd = real_mean.expected_noise(ITEMS, SCALE)
    np.testing.assert_allclose(simulated_mean.expected_noise(ITEMS, SCALE), (expected, sd), rtol=1e-12)
    # |truth + noise|^2: the noise's own moments plus the cross term with the true mean.
    signal = (truth**2).sum()
    spread = np.sqrt(sd**2 + 4 * signal * 2 * SCALE**2 / CLIENTS)
    for norms in (real, simulated):
        assert abs(norms.mean() - signal - expected) < 6 * spread / np.sqrt(REPEATS)
        np.testing.assert_allclose(norms.std(), spread, rtol=0.4)


@pytest.mark.parametrize("rows", [slice(0, 20), slice(20, 200), slice(200, ITEMS)], ids=["all touch", "some", "none"])
def test_the_average_agrees_in_distribution(both_ways, rows):
    (*_, real, _, _), (*_, simulated, _, _), truth = both_ways
    real, simulated = real[:, rows] - truth[rows], simulated[:, rows] - truth[rows]
    variance = 2 * SCALE**2 / CLIENTS
    n = real.size
    for noise in (real, simulated):
        assert abs(noise.mean()) < 6 * np.sqrt(variance / n)
        np.testing.assert_allclose(noise.var(), variance, rtol=6 * np.sqrt(2.2 / n))
        # per coordinate, over the repeats
        assert np.abs(noise.mean(axis=0)).max() < 6 * np.sqrt(variance / REPEATS)
        assert (noise.var(axis=0) / variance).min() > 0.4
        assert (noise.var(axis=0) / variance).max() < 2
    assert stats.ks_2samp(real.ravel()[:20_000], simulated.ravel()[:20_000]).pvalue > 1e-6


def test_half_precision_is_the_other_mechanism_rounded():
    whole = LaplaceMechanism(Clip(1, 2), 0.1, dense=True).privatize(cohort(), NONCES, KEYS, 20)
    half = HalfPrecision(LaplaceMechanism(Clip(1, 2), 0.1, dense=True)).privatize(cohort(), NONCES, KEYS, 20)
    assert half.values.dtype == np.float16
    np.testing.assert_array_equal(half.values, whole.values.astype(np.float16))
    np.testing.assert_array_equal(half.rows, whole.rows)
    assert half.cover_scale == whole.cover_scale == 0.1


def test_half_precision_keeps_what_it_cannot_hold_finite():
    changes = cohort()
    changes.changes[0] = 1e30
    half = HalfPrecision(NoNoise(Clip(0, 0))).privatize(changes, NONCES, None, 20)
    assert half.values[0].max() == 65504
