"""Robust rules: by hand, against Flower's and SciPy's own, and the properties that make them robust."""

import numpy as np
import pytest
from flwr.server.strategy import aggregate as flwr_aggregate
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize

from fastpfrec_flwr.trusted_node.robust import CenteredClipping, GeometricMedian, Krum, Median, TrimmedMean

LOCATIONS = [Median(), TrimmedMean(0.2)]
WEIGHTS = [Krum(0.2, False), Krum(0.2, True), GeometricMedian(), CenteredClipping(0.0, 3)]


def combine(rule, points):
    points = np.asarray(points, np.float64)
    if rule in LOCATIONS or isinstance(rule, (Median, TrimmedMean)):
        return rule.locate(points)
    return rule.weights(points @ points.T) @ points


def clients(smallest=1, largest=9):
    return st.integers(smallest, largest).flatmap(
        lambda n: arrays(np.float64, (n, 4), elements=st.floats(-8, 8, width=32))
    )


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_median_by_hand():
    np.testing.assert_array_equal(Median().locate(np.array([[3.0, 0], [1, 0], [9, 7]])), [3, 0])
    np.testing.assert_array_equal(Median().locate(np.array([[3.0], [1], [9], [100]])), [6])
    np.testing.assert_array_equal(Median().locate(np.array([[5.0]])), [5])


def test_trimmed_mean_by_hand():
    """Ten values, a fifth off each end: 2 and 2 go, the mean of the six in the middle stays."""
    values = np.array([100.0, 1, 2, 3, 4, 5, 6, 7, -50, 8])[:, None]
    np.testing.assert_allclose(TrimmedMean(0.2).locate(values), [(2 + 3 + 4 + 5 + 6 + 7) / 6])
    np.testing.assert_allclose(TrimmedMean(0.3).locate(values), [(3 + 4 + 5 + 6) / 4])
    np.testing.assert_allclose(TrimmedMean(0.0).locate(values), values.mean(axis=0))
    np.testing.assert_allclose(
        TrimmedMean(0.2).locate(values[:4]), values[:4].mean(axis=0), err_msg="nothing to cut of 4"
    )


def test_krum_by_hand():
    """0, 1, 2, 10 on a line, one liar (f = 1): one nearest each. Scores 1, 1, 1, 64: the first of the equal ones, 0.

    Without liars (f = 0): two nearest. Scores 1 + 4, 1 + 1, 1 + 4, 64 + 81: the point 1. Multi-Krum f = 1 leaves out 10.
    """
    line = np.array([[0.0], [1], [2], [10]])
    np.testing.assert_array_equal(combine(Krum(0.25, False), line), [0])
    np.testing.assert_array_equal(combine(Krum(0.0, False), line), [1])
    np.testing.assert_allclose(combine(Krum(0.25, True), line), [1])
    np.testing.assert_array_equal(combine(Krum(0.2, False), [[7.0]]), [7])
    np.testing.assert_array_equal(combine(Krum(0.4, True), [[7.0], [7]]), [7])


def test_geometric_median_by_hand():
    """On a line it is the median; of the corners of a square the centre; of a triangle with a wide corner that corner."""
    np.testing.assert_allclose(combine(GeometricMedian(), [[0.0], [1], [100]]), [1], atol=1e-2)
    np.testing.assert_allclose(combine(GeometricMedian(), [[0.0, 0], [0, 2], [2, 0], [2, 2]]), [1, 1], atol=1e-9)
    np.testing.assert_allclose(combine(GeometricMedian(), [[0.0, 0], [4, 1], [-4, 1]]), [0, 0], atol=1e-2)


def test_centered_clipping_by_hand():
    """Points 1 and 9 on a line, radius 2. v: 0 -> (1 + 2) / 2 = 1.5 -> 1.5 + (-.5 + 2) / 2 = 2.25."""
    np.testing.assert_allclose(combine(CenteredClipping(2.0, 1), [[1.0], [9]]), [1.5])
    np.testing.assert_allclose(combine(CenteredClipping(2.0, 2), [[1.0], [9]]), [2.25])
    # Radius 0: the median distance. Points 1, 2, 9: 2, so (1 + 2 + 2) / 3.
    np.testing.assert_allclose(combine(CenteredClipping(0.0, 1), [[1.0], [2], [9]]), [5 / 3])
    # A radius beyond all is the mean, after one iteration and after more.
    np.testing.assert_allclose(combine(CenteredClipping(1e6, 3), [[1.0], [9]]), [5.0])


# ---- against other code ----------------------------------------------------------------------------------------------


def as_results(points):
    return [([row], 1) for row in points]


@given(clients(), st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.45]))
def test_locations_agree_with_flower_and_scipy(points, fraction):
    (median,) = flwr_aggregate.aggregate_median(as_results(points))
    np.testing.assert_allclose(Median().locate(points), median, atol=1e-9)
    (trimmed,) = flwr_aggregate.aggregate_trimmed_avg(as_results(points), fraction)
    ours = TrimmedMean(fraction).locate(points)
    if int(fraction * len(points) + 1e-9) == int(fraction * len(points)):
        np.testing.assert_allclose(ours, trimmed, atol=1e-9)
        np.testing.assert_allclose(ours, stats.trim_mean(points, fraction, axis=0), atol=1e-9)


@pytest.mark.parametrize("lying", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [9, 10, 25])
def test_krum_agrees_with_flower(n, lying):
    for seed in range(5):
        points = np.random.default_rng(seed).normal(size=(n, 6))
        points[:lying] += 20
        fraction = lying / n
        one = flwr_aggregate.aggregate_krum(as_results(points), lying, 0)
        np.testing.assert_allclose(combine(Krum(fraction, False), points), one[0], atol=1e-9)
        many = flwr_aggregate.aggregate_krum(as_results(points), lying, n - lying)
        np.testing.assert_allclose(combine(Krum(fraction, True), points), many[0], atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_geometric_median_minimises_the_sum_of_distances(seed):
    points = np.random.default_rng(seed).standard_t(2, size=(15, 4))

    def cost(z):
        return np.linalg.norm(points - z, axis=1).sum()

    best = minimize(
        cost, points.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 9999}
    )
    assert cost(combine(GeometricMedian(), points)) <= best.fun * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_centered_clipping_is_its_own_formula(seed):
    points = np.random.default_rng(seed).normal(size=(11, 5)) * 3
    v = np.zeros(5)
    for _ in range(4):
        away = points - v
        length = np.linalg.norm(away, axis=1, keepdims=True)
        v = v + (away * np.minimum(1, 2.5 / length)).mean(axis=0)
    np.testing.assert_allclose(combine(CenteredClipping(2.5, 4), points), v, rtol=1e-9)


# ---- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", LOCATIONS + WEIGHTS, ids=repr)
@given(points=clients(4), seed=st.integers(0, 99))  # of fewer, two are each other's nearest and Krum's scores tie
def test_the_order_of_clients_does_not_matter(rule, points, seed):
    points = points + 1e-3 * np.random.default_rng(0).normal(
        size=points.shape
    )  # no ties, which only an order can break
    order = np.random.default_rng(seed).permutation(len(points))
    np.testing.assert_allclose(combine(rule, points[order]), combine(rule, points), atol=1e-5)


@pytest.mark.parametrize("rule", LOCATIONS + WEIGHTS, ids=repr)
@given(point=arrays(np.float64, 4, elements=st.floats(-8, 8, width=32)), n=st.integers(1, 9))
def test_equal_uploads_give_themselves(rule, point, n):
    np.testing.assert_allclose(combine(rule, np.tile(point, (n, 1))), point, atol=1e-9)


@pytest.mark.parametrize("rule", LOCATIONS + WEIGHTS, ids=repr)
@given(points=clients(5), size=st.sampled_from([1e2, 1e3, 1e6]))
def test_one_huge_liar_moves_the_result_by_a_bounded_amount(rule, points, size):
    """Honest points lie in a box of +-8 in 4 dimensions, norms up to 16; the bound does not grow with the lie."""
    lie = np.vstack([points, np.full(4, size)])
    assert np.linalg.norm(combine(rule, lie)) <= 3 * 16
    assert np.linalg.norm(lie.mean(axis=0)) > 30 or size < 1e3, "the plain mean does follow it"


@pytest.mark.parametrize(
    "rule", [Median(), TrimmedMean(0.4), GeometricMedian(), Krum(0.4, False), Krum(0.4, True)], ids=repr
)
def test_four_tenths_of_liars_are_outvoted(rule):
    for seed in range(10):
        points = np.random.default_rng(seed).normal(size=(20, 30))
        honest = points[8:].mean(axis=0)
        points[:8] += 50
        assert np.linalg.norm(combine(rule, points) - honest) < 8
        assert np.linalg.norm(points.mean(axis=0) - honest) > 100


@pytest.mark.parametrize("rule", WEIGHTS, ids=repr)
@given(points=clients())
def test_weights_are_weights(rule, points):
    weights = rule.weights(points @ points.T)
    assert (weights >= 0).all()
    assert weights.sum() <= 1 + 1e-9
