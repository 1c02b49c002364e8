"""The noise itself: moments, distribution, grid, independence, and what its low bits tell."""

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.privacy.noise import GRID, add_seeded_laplace, add_system_laplace, round_to_grid
from fastpfrec_flwr.randomness import stream_key

SAMPLES = 200_000


def seeded(key, scale, size=SAMPLES, offset=0.0):
    values = np.full(size, offset, np.float32)
    add_seeded_laplace(np.uint64(stream_key(key, "noise")), scale, values)
    round_to_grid(values)
    return values.astype(np.float64)


def system(scale, size=SAMPLES, offset=0.0):
    values = np.full(size, offset, np.float32)
    add_system_laplace(scale, values)
    return values.astype(np.float64)


def assert_laplace(noise, scale, sds=4.5):
    """Moments of Laplace(scale) within `sds` standard errors: variance 2 s^2, kurtosis 6, E|x| = s."""
    n = len(noise)
    assert abs(noise.mean()) < sds * scale * np.sqrt(2 / n)
    assert abs(np.abs(noise).mean() - scale) < sds * scale / np.sqrt(n)
    assert abs((noise**2).mean() - 2 * scale**2) < sds * scale**2 * np.sqrt(20 / n)
    # E x^4 = 24 s^4, E x^8 = 40320 s^8.
    assert abs((noise**4).mean() - 24 * scale**4) < sds * scale**4 * np.sqrt((40320 - 576) / n)


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 5.0])
def test_seeded_noise_is_laplace(scale):
    noise = seeded(1, scale)
    assert_laplace(noise, scale)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_system_noise_is_laplace(scale):
    noise = system(scale)
    assert_laplace(noise, scale, sds=6)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 1e-7


def test_system_noise_differs_between_calls_and_blocks():
    first, second = system(0.1, 300_000), system(0.1, 300_000)
    assert (first == second).mean() < 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert (first[:131_072] == first[131_072:262_144]).mean() < 1e-3


@pytest.mark.parametrize("length", [1, 3, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("make", [seeded, lambda key, scale, size: system(scale, size)])
def test_every_length_is_noised_to_its_end(make, length):
    noise = make(3, 1.0, length)
    assert len(noise) == length
    assert (noise != 0).mean() > 0.99 or length < 10
    assert length < 1000 or len(np.unique(noise)) > 0.98 * length


def test_the_same_key_gives_the_same_noise_and_a_prefix_of_it():
    np.testing.assert_array_equal(seeded(7, 0.1, 5000), seeded(7, 0.1, 5000))
    np.testing.assert_array_equal(seeded(7, 0.1, 5000)[:1500], seeded(7, 0.1, 1500))


def test_noises_of_different_keys_are_independent():
    noises = np.stack([seeded(key, 0.1, 20_000) for key in range(8)])
    correlations = np.corrcoef(noises)[np.triu_indices(8, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(20_000)
    squares = np.corrcoef(noises**2)[np.triu_indices(8, 1)]
    assert np.abs(squares).max() < 6 / np.sqrt(20_000)
    signs = np.corrcoef(np.sign(noises))[np.triu_indices(8, 1)]
    assert np.abs(signs).max() < 4.5 / np.sqrt(20_000)


def test_neighbouring_values_of_a_stream_are_independent():
    noise = seeded(11, 1.0)
    for lag in (1, 2, 15, 16, 17, 64, 1024):
        assert abs(np.corrcoef(noise[:-lag], noise[lag:])[0, 1]) < 4.5 / np.sqrt(len(noise))


# ---- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1.0, 0.013, -7.77, 300.5])
@pytest.mark.parametrize(
    "make", [lambda offset: seeded(5, 0.1, 20_000, offset), lambda offset: system(0.1, 20_000, offset)]
)
def test_every_value_is_a_multiple_of_the_grid(make, offset):
    steps = make(offset) / GRID
    np.testing.assert_array_equal(steps, np.rint(steps))


def test_rounding_goes_to_the_nearest_multiple_by_hand():
    values = np.array([0, 0.4, 0.6, -0.4, -0.6, 1.5, 2.5, 1e6], np.float32) * np.float32(GRID)
    round_to_grid(values)
    np.testing.assert_array_equal(values / GRID, [0, 0, 1, 0, -1, 2, 2, 1e6])
    large = np.array([3.5e6, -12_345.678, 16.000002], np.float32)
    before = large.copy()
    round_to_grid(large)
    np.testing.assert_array_equal(large, before)  # float32 is coarser than the grid out there


def test_low_bits_prove_nothing_on_the_grid():
    """Without the grid the differences of unmoved coordinates are the sampler's own floats; on it both look alike.

    Evidence used: the residue of the upload in units below the grid, and its parity on the grid.
    """
    generator = np.random.default_rng(3)
    rows, k, scale = 2000, 16, 0.1
    moved = np.arange(rows) % 2 == 0
    change = np.where(moved[:, None], generator.normal(0, 0.01, (rows, k)), 0).astype(np.float32)
    raw = change.copy()
    add_seeded_laplace(np.uint64(9), scale, raw.reshape(-1))
    bare = np.zeros_like(change)
    add_seeded_laplace(np.uint64(9), scale, bare.reshape(-1))
    # An attacker who can list the sampler's outputs recognises them bit for bit: raw floats give away what did not move.
    known = np.isin(raw, bare).all(axis=1)
    assert known[~moved].all()
    assert not known[moved].any()
    gridded, system_made = raw.copy(), change.copy()
    round_to_grid(gridded.reshape(-1))
    add_system_laplace(scale, system_made.reshape(-1))
    for values in (gridded, system_made):
        below = (values.astype(np.float64) / GRID) % 1
        assert (below == 0).all()  # nothing is left under the grid, so no row is proven unmoved by it
        # On the grid each residue is as likely for the moved as for the unmoved.
        residues = np.rint(values.astype(np.float64) / GRID).astype(np.int64) % 8
        counts = np.array([np.bincount(residues[which].ravel(), minlength=8) for which in (moved, ~moved)])
        assert stats.chi2_contingency(counts).pvalue > 1e-6


@pytest.mark.parametrize("scale", [0.1, 0.2, 0.3, 1.0, 3.0])
def test_device_noise_reaches_all_grid_points_alike(scale):
    """Draws of too few bits reach some grid points more often than others; then an upload tells which rows did not move."""
    steps = np.rint(system(scale) / GRID).astype(np.int64)
    steps = steps[np.abs(steps) < 8 / GRID]  # float32 itself is coarser beyond
    for modulus in (2, 3, 5, 8):
        counts = np.bincount(steps % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > 1e-7


def test_device_noise_has_no_gaps_far_out():
    """With 31 bits the draws beyond 14 scales would lie further apart than the grid: few values, many times each."""
    scale = 0.01
    noise = np.abs(np.concatenate([system(scale, 1 << 20) for _ in range(4)])) / scale
    far = noise[
        noise > 10.5
    ]  # a share e^-10.5 = 2.75e-5; 31 bits would know 59,000 values here, spaced 1.7e-5 and more
    assert 60 < len(far) < 180
    ungridded = np.rint(far * scale / GRID)
    assert len(np.unique(ungridded)) > 0.97 * len(far)
    assert noise.max() < 40


def test_sums_of_grid_values_are_exact_in_any_order():
    values = np.stack([seeded(key, 0.1, 1000, key / 7) for key in range(50)])
    forward = values.cumsum(axis=0)[-1]
    shuffled = values[np.random.default_rng(0).permutation(50)].cumsum(axis=0)[-1]
    np.testing.assert_array_equal(forward, shuffled)
