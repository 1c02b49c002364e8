"""Gaussian noise: its draws, its moments where they are drawn late, its shares, and what the ledger makes of it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.privacy.accountant import Cost, compose
from fastpfrec_flwr.privacy.laws import NoiseLaw
from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism
from fastpfrec_flwr.privacy.noise import GRID, add_seeded_laplace, add_seeded_normal, add_system_normal
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.server.average import average_nodes, healthy_nodes
from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.detection import beyond_clip, upload_distances
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.tier import NodeReport
from fastpfrec_flwr.trusted_node.uploads import Uploads

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


# ---- drawn late, on simulated dense uploads --------------------------------------------------------------------------

ITEMS, K, CLIENTS, SCALE, REPEATS = 400, 8, 20, 0.1, 120


@dataclasses.dataclass
class Changes:
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def cohort(size=0.05, touched=60):
    generator = np.random.default_rng(1)
    rows = np.concatenate([np.sort(generator.choice(ITEMS, touched, replace=False)) for _ in range(CLIENTS)])
    values = generator.normal(0, size, (CLIENTS * touched, K)).astype(np.float32)
    return Changes(rows.astype(np.int32), np.arange(CLIENTS + 1, dtype=np.int64) * touched, values)


def made(real, repeat, scale=SCALE):
    changes = cohort()
    keys = None if real else user_stream_keys(repeat + 1, np.arange(CLIENTS))
    uploads = GaussianMechanism(Clip(0, 0), scale, dense=True).privatize(
        changes, np.arange(CLIENTS, dtype=np.uint64), keys, ITEMS
    )
    return Uploads(uploads.nonces, uploads.pointer, uploads.rows, uploads.values, uploads.cover_scale, "gaussian")


@pytest.fixture(scope="module")
def both_ways():
    found = {}
    for real in (True, False):
        squares, norms, averages = [], [], []
        for repeat in range(REPEATS):
            uploads = made(real, repeat)
            keys = user_stream_keys(1000 + repeat, np.arange(CLIENTS))
            distances = upload_distances(
                uploads.values, uploads.pointer, SCALE, uploads.cover_scale, ITEMS, keys, noise_kind="gaussian"
            )
            mean = node_mean([uploads], [np.arange(CLIENTS)], ITEMS)
            squares.append(distances.squared)
            norms.append(mean.squared_norm(ITEMS, float(np.random.default_rng(repeat).standard_normal())))
            averages.append(average_nodes([mean], ITEMS, K, 1, repeat))
        found[real] = np.array(squares), np.array(norms), np.array(averages), distances, mean
    return found


def test_distances_agree(both_ways):
    real, simulated = both_ways[True], both_ways[False]
    centred = [each[0] - real[0].mean(axis=0) for each in (real, simulated)]
    assert stats.ks_2samp(centred[0].ravel(), centred[1].ravel()).pvalue > 1e-6
    for each in (real, simulated):
        np.testing.assert_allclose(each[3].noise_mean, SCALE**2 * ITEMS * K)
        np.testing.assert_allclose(each[3].noise_sd, np.sqrt(2 * SCALE**4 * ITEMS * K))
        np.testing.assert_allclose((each[0] - real[0].mean(axis=0)).std(), each[3].noise_sd[0], rtol=0.15)


def test_norms_of_the_mean_agree(both_ways):
    real, simulated = both_ways[True], both_ways[False]
    assert stats.ks_2samp(real[1], simulated[1]).pvalue > 1e-6
    # A mean of Gaussians is one: 2 sigma^4 / n^2 per coordinate.
    expected = SCALE**2 / CLIENTS * ITEMS * K, math.sqrt(2 * (SCALE**2 / CLIENTS) ** 2 * ITEMS * K)
    for each in (real, simulated):
        np.testing.assert_allclose(each[4].expected_noise(ITEMS, SCALE), expected, rtol=1e-12)


def test_averages_agree(both_ways):
    real, simulated = (both_ways[way][2] - both_ways[True][2].mean(axis=0) for way in (True, False))
    for noise in (real, simulated):
        np.testing.assert_allclose(noise.var(), SCALE**2 / CLIENTS, rtol=0.03)
        assert abs(stats.kurtosis(noise.ravel()[:100_000])) < 0.1
    assert stats.ks_2samp(real.ravel()[:20_000], simulated.ravel()[:20_000]).pvalue > 1e-6


def test_rules_that_see_every_upload_are_given_gaussian_cover():
    uploads = made(False, 0)
    points = UploadPoints.gather([uploads], [np.arange(CLIENTS)], ITEMS, 77)
    whole = np.stack([points.table(client) for client in range(CLIENTS)])
    cover = np.ones((CLIENTS, ITEMS), bool)
    cover[np.repeat(np.arange(CLIENTS), np.diff(uploads.pointer)), uploads.rows] = False
    noise = whole[cover].ravel() / SCALE
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(noise)) < 0.1


def test_checks_know_what_gaussian_noise_can_do():
    """An honest upload at its clip stays below the absolute bound, one far beyond it does not; healthy nodes stay healthy."""
    flags = []
    for repeat in range(20):
        uploads = made(True, repeat, 1.0)
        values = uploads.values.copy()
        values[:ITEMS] += np.float32(40 / math.sqrt(ITEMS * K))  # the first client moves by 40
        distances = upload_distances(
            values, uploads.pointer, 1.0, 0.0, ITEMS, np.zeros(CLIENTS, np.uint64), noise_kind="gaussian"
        )
        flags.append(beyond_clip(distances, 5.0))
    assert not np.array(flags)[:, 1:].any()
    assert np.array(flags)[:, 0].mean() > 0.9
    means = [node_mean([made(False, r)], [np.arange(CLIENTS)], ITEMS) for r in range(5)]
    reports = [NodeReport(node, CLIENTS, 0, False, mean) for node, mean in enumerate(means)]
    assert all(healthy_nodes(reports, ITEMS, SCALE, 6.0, 1, 1))


def test_uploads_of_two_laws_are_not_added_up():
    one, other = made(False, 0), dataclasses.replace(made(False, 1), noise_kind="laplace")
    with pytest.raises(ValueError, match="together"):
        node_mean([one, other], [np.arange(CLIENTS)] * 2, ITEMS)


# ---- ledger ----------------------------------------------------------------------------------------------------------


def gaussian_delta(z, epsilon):
    """Balle & Wang 2018, theorem 8, with sensitivity 1 and standard deviation z."""
    return stats.norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * stats.norm.cdf(-0.5 / z - epsilon * z)


@pytest.mark.parametrize(
    ("z", "times", "epsilon"),
    [(3.731, 1, 1.0), (0.600, 1, 8.0), (1.0, 1, 4.377), (1.0, 100, 91.8), (4.0, 100, 13.2)],
)
def test_goldens(z, times, epsilon):
    bound = compose([(Cost.of_gaussian(z, 1.0), times)], 1e-5)
    assert bound.epsilon == pytest.approx(epsilon, rel=4e-3)
    assert bound.delta == 1e-5
    assert gaussian_delta(z / math.sqrt(times), bound.epsilon) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("clients", "times", "epsilon"), [(20, 1, 0.82), (200, 1, 0.23), (200, 100, 2.94), (1, 1, 4.377)]
)
def test_goldens_of_sums(clients, times, epsilon):
    """z_server = z_local sqrt(n), as PRIVACY-AND-ROBUSTNESS.md has it for z_local = 1."""
    share = Cost.of_gaussian(1.0, 1.0).summed_over(clients)
    assert compose([(share, times)], 1e-5).epsilon == pytest.approx(epsilon, abs=6e-3)


def test_composition_agrees_with_dp_accounting_event_by_event():
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(2.0), 10)
    accountant.compose(GaussianDpEvent(1.0), 2)
    bound = compose([(Cost.of_gaussian(2.0, 1.0), 10), (Cost.of_gaussian(1.0, 1.0), 2)], 1e-5)
    assert bound.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_it_is_not_the_classic_formula():
    """sqrt(2 ln(1.25 / delta)) / z says 2.42 for z = 2, which is too much, and 0.0484 for z = 100, which is too much too."""
    assert compose([(Cost.of_gaussian(2.0, 1.0), 1)], 1e-5).epsilon < 2.0
    assert compose([(Cost.of_gaussian(0.2, 1.0), 1)], 1e-5).epsilon > math.sqrt(2 * math.log(1.25e5)) / 0.2


def test_gaussian_noise_promises_nothing_without_delta_and_infinity_stays():
    assert math.isinf(compose([(Cost.of_gaussian(1.0, 1.0), 1)], 0.0).epsilon)
    assert math.isinf(Cost.of_gaussian(0.0, 1.0).rho)
    assert compose([(Cost.of_gaussian(1.0, 0.0), 5)], 1e-5).epsilon == 0


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-3, 1e3), st.floats(1.01, 10), st.integers(1, 500), st.integers(1, 500))
def test_monotone(z, factor, times, more):
    def of(deviation, count):
        return compose([(Cost.of_gaussian(deviation, 1.0), count)], 1e-5).epsilon

    here = of(z, times)
    assert of(z * factor, times) <= here * (1 + 1e-9)
    assert of(z, times + more) >= here * (1 - 1e-9)


# ---- shares ----------------------------------------------------------------------------------------------------------


def config_of(**changes):
    from pathlib import Path

    from fastpfrec_flwr.config import default_values, parse_run_config

    defaults = default_values(Path(__file__).resolve().parents[2] / "pyproject.toml")
    return parse_run_config({**defaults, **{key.replace("_", "-"): value for key, value in changes.items()}})


SHARED = {
    "noise": "gaussian",
    "noise_placement": "distributed",
    "noise_scale": 3.0,
    "check": "none",
    "evaluate_every": 0,
}


def test_shares_by_hand():
    """256 clients at 10 nodes: 25.6 for a sum; with a quarter failing a share is 3 / sqrt(0.75 x 25.6)."""
    assert config_of(**SHARED).effective_noise_scale == pytest.approx(3 / math.sqrt(25.6))
    assert config_of(**SHARED, dropout_fraction=0.25).effective_noise_scale == pytest.approx(3 / math.sqrt(19.2))
    assert config_of(**SHARED, tier="direct").effective_noise_scale == pytest.approx(3 / 16)
    assert config_of(**{**SHARED, "noise_placement": "client"}).effective_noise_scale == 3.0


@pytest.mark.parametrize("failing", [0, 3, 5])
def test_the_sum_carries_the_noise_however_many_fail(failing):
    """20 clients, a quarter may fail: with five gone the sum has exactly sigma, with fewer gone more."""
    sigma, clients, items = 2.0, 20, 2000
    share = config_of(
        **{**SHARED, "noise_scale": sigma}, dropout_fraction=0.25, clients_per_round=clients, num_trusted_nodes=1
    ).effective_noise_scale
    total = np.zeros((items, K))
    for client in range(clients - failing):
        changes = Changes(np.arange(items, dtype=np.int32), np.array([0, items]), np.zeros((items, K), np.float32))
        mechanism = GaussianMechanism(Clip(0, 0), share, dense=True)
        total += mechanism.privatize(changes, np.zeros(1, np.uint64), np.array([client], np.uint64), items).values
    n = total.size
    expected = sigma**2 * (clients - failing) / 15
    assert abs(total.var() / expected - 1) < 5 * math.sqrt(2 / n)
    assert stats.kstest(total.ravel() / math.sqrt(expected), "norm").pvalue > 1e-4


def test_the_ledger_of_shares():
    """One node, all arrive: the server faces sigma against 2 S; the node a share of it."""
    from fastpfrec_flwr.privacy.exposure import build_ledger
    from fastpfrec_flwr.privacy.lines import Setting

    def of(observer, colluding=0, **changes):
        config = config_of(**{**SHARED, "clip_norm": 1.0, "num_trusted_nodes": 1, **changes})
        return build_ledger(Setting(config, 943, 1682, colluding=colluding)).of(observer, scope="one").epsilon

    def gaussian(z):
        return compose([(Cost.of_gaussian(z, 1.0), 1)], 1e-5).epsilon

    assert of("server") == pytest.approx(gaussian(1.5))
    assert of("trusted node") == pytest.approx(gaussian(1.5 / 16))
    # 26 of 256 may fail (0.1 x 256 rounded up): 230 shares of 3 / sqrt(0.9 x 256) are left.
    assert of("server", dropout_fraction=0.1) == pytest.approx(gaussian(1.5 * math.sqrt(230 / 230.4)))
    assert of("server", colluding=100) == pytest.approx(gaussian(1.5 * math.sqrt(156 / 256)))
    assert of("server", check="clients") == of("trusted node")
