"""How long an upload is beneath its noise, and what the clip allows."""

import numpy as np
import pytest
from noised_uploads import ITEMS, SCALE, K, noiseless, norm_keys, uploads_of

from fastpfrec_flwr.privacy.clipping import clip_joint
from fastpfrec_flwr.trusted_node.detection import beyond_clip
from fastpfrec_flwr.trusted_node.distances import upload_distances


@pytest.mark.parametrize("touched", [ITEMS, 40])
def test_correction_recovers_the_norm_under_dense_noise(touched):
    """Whole noised tables, or touched rows with the norm of the cover drawn: both give the true norm back.

    Standard error of d^2: sqrt(20 lambda^4 m + 8 lambda^2 |change|^2) = 5.7 and 3.4 at |change| = 12, over 250 clients.
    """
    clients, norm = 250, 12.0
    changes = np.random.default_rng(0).normal(size=(clients, touched, K))
    changes *= norm / np.linalg.norm(changes, axis=(1, 2), keepdims=True)
    values, pointer = uploads_of(changes, 4)
    cover = SCALE if touched < ITEMS else 0.0
    distances = upload_distances(values, pointer, SCALE, cover, ITEMS, norm_keys(clients))
    m = ITEMS * K
    np.testing.assert_allclose(distances.noise_mean, 2 * SCALE**2 * m)
    np.testing.assert_allclose(distances.noise_sd, np.sqrt(20 * SCALE**4 * m))
    spread = np.sqrt(20 * SCALE**4 * m + 8 * SCALE**2 * norm**2)
    excess = distances.squared - distances.noise_mean - norm**2
    assert abs(excess.mean()) < 4 * spread / np.sqrt(clients)
    np.testing.assert_allclose(excess.std(), spread, rtol=0.2)
    assert abs(np.median(distances.corrected) - norm) < 0.15
    assert distances.resolution == pytest.approx((20 * SCALE**4 * m) ** 0.25)


def test_sparse_uploads_are_corrected_by_their_own_rows():
    values, pointer = uploads_of(np.zeros((4, 6, K)), 9)
    pointer = np.array([0, 2, 10, 24])
    distances = upload_distances(values, pointer, SCALE, 0.0, ITEMS, norm_keys(3))
    np.testing.assert_allclose(distances.noise_mean, 2 * SCALE**2 * K * np.array([2, 8, 14]))
    squares = (values.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(
        distances.squared, [squares[:2].sum(), squares[2:10].sum(), squares[10:].sum()], rtol=1e-6
    )


def test_without_noise_the_distance_is_the_norm():
    values = np.array([[3, 4], [0, 0], [6, 8]], np.float32)
    distances = upload_distances(values, np.array([0, 1, 2, 3]), 0.0, 0.0, 10, norm_keys(3))
    np.testing.assert_array_equal(distances.corrected, [5, 0, 10])
    assert distances.resolution == 0


# ---- what the clip allows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.5, 5.0, 20.0])
@pytest.mark.parametrize(("touched", "cover"), [(30, SCALE), (30, 0.0), (ITEMS, 0.0), (3, 0.0)])
def test_honest_clients_at_the_clip_are_never_beyond_it(clip, touched, cover):
    """The worst honest client stands exactly at the clip; 4 sd of a sum of many terms: at most about 1 in 10,000."""
    clients = 2000 if touched == 30 else 300
    generator = np.random.default_rng(touched)
    changes = generator.normal(size=(clients, touched, K)).astype(np.float32)
    changes *= 100 * clip
    for change in changes:
        clip_joint(change, clip, False)
    values, pointer = uploads_of(changes, 21)
    distances = upload_distances(values, pointer, SCALE, cover, ITEMS, norm_keys(clients))
    # Small uploads keep the heavy tail of a few squared Laplace draws.
    assert beyond_clip(distances, clip).mean() <= (0.004 if touched == 3 else 0.0015)
    bound = distances.noise_mean + clip**2
    spread = np.sqrt(distances.noise_sd**2 + 8 * SCALE**2 * clip**2)
    standard = (distances.squared - bound) / spread
    # The stated variance, noise plus cross term, is the true one.
    np.testing.assert_allclose(standard.std(), 1, atol=0.12)
    assert abs(standard.mean()) < 0.25


@pytest.mark.parametrize(("touched", "cover"), [(30, SCALE), (30, 0.0)])
def test_what_exceeds_the_clip_is_caught(touched, cover):
    clients, clip = 300, 10.0
    changes = np.random.default_rng(1).normal(size=(clients, touched, K))
    changes *= 3 * clip / np.linalg.norm(changes, axis=(1, 2), keepdims=True)
    values, pointer = uploads_of(changes, 22)
    assert beyond_clip(upload_distances(values, pointer, SCALE, cover, ITEMS, norm_keys(clients)), clip).all()


def test_without_noise_the_clip_is_the_bound():
    np.testing.assert_array_equal(
        beyond_clip(noiseless(0, 9.999, 10.0, 10.001, 11), 10.0), [False, False, False, True, True]
    )
