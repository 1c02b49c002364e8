"""Gaussian noise: its draws and its moments."""

import math

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.privacy.laws import NoiseLaw
from fastpfrec_flwr.privacy.noise import GRID, add_seeded_laplace, add_seeded_normal, add_system_normal
from fastpfrec_flwr.randomness import stream_key

SAMPLES = 200_000


def seeded(key, scale, size=SAMPLES, offset=0.0):
    values = np.full(size, offset, np.float32)
    add_seeded_normal(np.uint64(stream_key(key, "noise")), scale, values, True)
    return values.astype(np.float64)


def system(scale, size=SAMPLES, offset=0.0):
    values = np.full(size, offset, np.float32)
    add_system_normal(scale, values)
    return values.astype(np.float64)


# ---- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 0.1, 5.0])
@pytest.mark.parametrize(("make", "sds"), [(lambda scale: seeded(1, scale), 4.5), (system, 6)])
def test_noise_is_normal(make, sds, scale):
    noise = make(scale) / scale
    n = len(noise)
    assert abs(noise.mean()) < sds / np.sqrt(n)
    assert abs((noise**2).mean() - 1) < sds * np.sqrt(2 / n)
    assert abs((noise**3).mean()) < sds * np.sqrt(15 / n)
    assert abs((noise**4).mean() - 3) < sds * np.sqrt(96 / n)  # E x^4 = 3, Var x^4 = 105 - 9
    assert stats.kstest(noise, "norm").pvalue > 1e-7


@pytest.mark.parametrize("beyond", [2.0, 3.0, 4.0])
def test_tails_of_device_noise(beyond):
    noise = np.concatenate([system(1.0, 1 << 20), system(1.0, 1 << 20)])
    for sign in (1, -1):
        expected = len(noise) * stats.norm.sf(beyond)
        assert abs((sign * noise > beyond).sum() - expected) < 6 * math.sqrt(expected)


def test_seeded_draws_are_those_of_the_stream_and_system_draws_are_new():
    noise = np.empty(3000, np.float32)
    fill_normal(np.uint64(9), noise)
    values = np.zeros(3000, np.float32)
    add_seeded_normal(np.uint64(9), 0.25, values)
    np.testing.assert_array_equal(values, np.float32(0.25) * noise)
    first, second = system(0.1, 300_000), system(0.1, 300_000)
    assert (first == second).mean() < 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_noises_of_different_keys_are_independent():
    noises = np.stack([seeded(key, 0.1, 20_000) for key in range(6)])
    for values in (noises, noises**2):
        assert np.abs(np.corrcoef(values)[np.triu_indices(6, 1)]).max() < 6 / np.sqrt(20_000)


@pytest.mark.parametrize("offset", [0.0, 0.013, -7.77])
@pytest.mark.parametrize(
    "make", [lambda offset: seeded(5, 0.1, 20_000, offset), lambda offset: system(0.1, 20_000, offset)]
)
def test_every_value_is_a_multiple_of_the_grid(make, offset):
    steps = make(offset) / GRID
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_device_noise_reaches_all_grid_points_alike(scale):
    steps = np.rint(system(scale) / GRID).astype(np.int64)
    for modulus in (2, 3, 5, 8):
        assert stats.chisquare(np.bincount(steps % modulus, minlength=modulus)).pvalue > 1e-7


# ---- laws ------------------------------------------------------------------------------------------------------------


def test_moments_by_hand():
    """Var x^2 = E x^4 - (Var x)^2: 24 - 4 for Laplace, 3 - 1 for Gaussian; fourth cumulant E x^4 - 3 (Var x)^2."""
    laplace, gaussian = NoiseLaw("laplace", 0.5), NoiseLaw("gaussian", 0.5)
    assert (laplace.unit_variance, laplace.unit_fourth, laplace.unit_square_variance) == (2, 12, 20)
    assert (gaussian.unit_variance, gaussian.unit_fourth, gaussian.unit_square_variance) == (1, 0, 2)
    assert (laplace.deviation, gaussian.deviation) == (0.5 * math.sqrt(2), 0.5)
    with pytest.raises(ValueError, match="laplace, gaussian"):
        NoiseLaw("cauchy", 1.0)


@pytest.mark.parametrize(("kind", "add"), [("laplace", add_seeded_laplace), ("gaussian", add_seeded_normal)])
def test_moments_are_those_of_the_draws(kind, add):
    values = np.zeros(1 << 21, np.float32)
    add(np.uint64(3), 1.0, values)
    law, x = NoiseLaw(kind, 1.0), values.astype(np.float64)
    np.testing.assert_allclose(x.var(), law.unit_variance, rtol=0.01)
    np.testing.assert_allclose((x**2).var(), law.unit_square_variance, rtol=0.05)
    np.testing.assert_allclose(stats.kstat(x, 4), law.unit_fourth, atol=0.4)
