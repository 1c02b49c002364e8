"""Composition, sums, shuffling and randomised response: goldens by hand and by other means, and what must be monotone."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fastpfrec_flwr.privacy.accountant import (
    Cost,
    clients_beside,
    compose,
    randomised_response,
    show,
    shuffled,
)


def test_laplace_cost_by_hand():
    """Moves by 3 in L1 and by 2 in L2 under lambda = 4: epsilon 3/4, rho = (2/4)^2 / 2."""
    assert Cost.of_laplace(4.0, 3.0, 2.0) == Cost(0.75, 0.125)
    assert Cost.of_laplace(0.0, 3.0, 2.0) == Cost(math.inf, math.inf)
    assert Cost(1.0, 0.5).summed_over(10) == Cost(1.0, 0.05)
    assert Cost(1.0, 0.5) + Cost(2.0, 0.25) == Cost(3.0, 0.75)


def renyi(density, shift, order):
    """Renyi divergence of two densities on a line that are a shift apart, by quadrature."""

    def integrand(x):
        return math.exp(order * math.log(density(x)) + (1 - order) * math.log(density(x - shift)))

    edges = [-60.0, -shift, 0.0, shift, 2 * shift, 60.0]
    value = sum(integrate.quad(integrand, a, b, limit=200)[0] for a, b in pairwise(edges))
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("shift", [0.1, 1.0, 3.0])
def test_laplace_is_within_its_zcdp(order, shift):
    """The fact that the ledger rests on, checked against the densities: D_alpha <= alpha shift^2 / (2 lambda^2)."""
    exact = renyi(lambda x: math.exp(-abs(x)) / 2, shift, order)
    assert exact <= order * Cost.of_laplace(1.0, shift, shift).rho * (1 + 1e-9)
    assert exact > 0


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("shift", [0.1, 1.0, 3.0])
def test_a_sum_of_two_noises_is_within_half_of_it(order, shift):
    """Laplace + Laplace has density (1 + |x|) e^-|x| / 4."""
    exact = renyi(lambda x: (1 + abs(x)) * math.exp(-abs(x)) / 4, shift, order)
    assert exact <= order * Cost.of_laplace(1.0, shift, shift).summed_over(2).rho * (1 + 1e-9)


def test_pure_sum_where_there_is_no_delta():
    bound = compose([(Cost(0.5, 1.0), 4), (Cost(2.0, 9.0), 1)], 0.0)
    assert (bound.epsilon, bound.delta) == (4.0, 0.0)


def test_zcdp_golden():
    """rho = 1/2, delta = 1e-5: the value of one Gaussian with sigma = sensitivity, whose divergence is the same alpha / 2."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    gaussian = RdpAccountant().compose(GaussianDpEvent(1.0)).get_epsilon(1e-5)
    bound = compose([(Cost(1e6, 0.5), 1)], 1e-5)
    assert bound.epsilon == pytest.approx(4.7285, abs=2e-3)
    assert bound.epsilon == pytest.approx(gaussian, abs=2e-3)
    assert bound.delta == 1e-5


def test_composition_of_a_pure_mechanism_by_hand():
    """Ten randomised responses of epsilon 0.5: the exact trade-off of the binomial log-likelihood ratio."""
    epsilon, count, delta = 0.5, 10, 1e-3
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    k = np.arange(count + 1)
    one, other = stats.binom.pmf(k, count, p), stats.binom.pmf(k, count, 1 - p)

    def excess(total):
        return np.maximum(one - math.exp(total) * other, 0).sum()

    bound = compose([(Cost(epsilon, 100.0), count)], delta)
    assert bound.how.startswith("exact")
    assert excess(bound.epsilon) <= delta
    assert excess(bound.epsilon - 0.02) > delta


def test_laplace_composition_is_not_below_its_own():
    """Scalar Laplace, epsilon 1, 100 rounds, delta 1e-5: 68.25 by dp-accounting; ours holds for every pure mechanism."""
    from dp_accounting import LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    scalar = PLDAccountant().compose(LaplaceDpEvent(1.0), 100).get_epsilon(1e-5)
    assert scalar == pytest.approx(68.25, abs=0.01)
    bound = compose([(Cost(1.0, 0.5), 100)], 1e-5)
    assert scalar <= bound.epsilon < 100


def test_a_million_stays_a_million_and_infinity_infinity():
    bound = compose([(Cost(1e6, 1e13), 3)], 1e-5)
    assert (bound.epsilon, bound.delta) == (3e6, 0.0)
    assert compose([(Cost(math.inf, math.inf), 1)], 1e-5).epsilon == math.inf
    assert [show(x) for x in (math.inf, 1234567.0, 0.12345)] == ["infinity", "1,234,567", "0.123"]


@settings(deadline=None, max_examples=12)
@given(st.floats(0.01, 30), st.floats(1.01, 3), st.integers(1, 200), st.integers(1, 50), st.floats(1e-9, 1e-2))
def test_more_noise_less_epsilon_more_rounds_more(scale, factor, count, more, delta):
    def epsilon(noise, times):
        return compose([(Cost.of_laplace(noise, 20.0, 1.0), times)], delta).epsilon

    here = epsilon(scale, count)
    # The exact composition rounds each loss up to a grid of 1e-4.
    assert epsilon(scale * factor, count) <= here * (1 + 1e-6) + 1e-4 * count
    assert epsilon(scale, count + more) >= here * (1 - 1e-6)
    assert here <= 20.0 / scale * count * (1 + 1e-9)


def test_shuffling_by_hand():
    """One upload, epsilon0 = 1, n = 10,000, delta = 2e-6, so d = 1e-6: the formula with the numbers put in."""
    log = math.log(4e6)
    expected = math.log(1 + (math.e - 1) / (math.e + 1) * (8 * math.sqrt(math.e * log / 1e4) + 8 * math.e / 1e4))
    bound = shuffled(1.0, 10_000, 1, 2e-6)
    assert bound.epsilon == pytest.approx(expected, rel=1e-2)
    assert bound.epsilon <= expected * (1 + 1e-9)
    assert bound.delta == 2e-6


def test_shuffling_only_where_it_holds():
    largest = math.log(10_000 / (16 * math.log(4e6)))
    assert math.isfinite(shuffled(largest - 1e-9, 10_000, 1, 2e-6).epsilon)
    beyond = shuffled(largest + 1e-6, 10_000, 1, 2e-6)
    assert math.isinf(beyond.epsilon)
    assert "not applicable" in beyond.how
    assert math.isinf(shuffled(1e6, 256, 20, 1e-5).epsilon)
    assert math.isinf(shuffled(math.inf, 256, 20, 1e-5).epsilon)
    assert math.isinf(shuffled(0.1, 10_000, 1, 0.0).epsilon)


@pytest.mark.parametrize(
    ("others", "nodes", "uploads", "failure"), [(255, 10, 20, 5e-6), (99, 4, 1, 1e-2), (20, 50, 3, 1e-6)]
)
def test_clients_beside_holds_but_for_the_chance(others, nodes, uploads, failure):
    found = clients_beside(others, nodes, uploads, failure)
    assert uploads * stats.binom.cdf(found - 1, others, 1 / nodes) <= failure
    assert uploads * stats.binom.cdf(found, others, 1 / nodes) > failure
    assert clients_beside(others, 1, uploads, failure) == others


@pytest.mark.parametrize(
    ("keep", "add", "expected"),
    [
        (0.9, 0.1, math.log(9)),
        (0.5, 0.1, math.log(5)),
        (0.99, 0.5, math.log(50)),
        (1.0, 0.1, math.inf),
        (0.9, 0.0, math.inf),
        (0.3, 0.3, 0.0),
    ],
)
def test_randomised_response(keep, add, expected):
    assert randomised_response(keep, add) == pytest.approx(expected)
