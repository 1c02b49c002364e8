"""What the ledger makes of Gaussian noise, of a whole one and of shares."""

import math

import numpy as np
import pytest
from gaussian_uploads import Changes, K
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.privacy.accountant import Cost, compose
from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism

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
