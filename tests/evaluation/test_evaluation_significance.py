"""Paired tests, Holm, stars and ranks: textbook values and cases worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.evaluation.significance import (
    PairedTest,
    holm,
    nemenyi_critical_difference,
    rank_over_data_sets,
    smallest_wilcoxon_p,
    stars,
    too_few_seeds,
    too_few_to_rank,
    user_differences,
    wilcoxon,
)
from fastpfrec_flwr.evaluation.statistics import UserFigures, estimate
from fastpfrec_flwr.randomness import derive_generator

# ---- signed ranks ----------------------------------------------------------------------------------------------------


def test_smallest_p_by_hand():
    """All of n differences positive is one of 2^n sign patterns, and so is all negative."""
    assert [smallest_wilcoxon_p(n) for n in (0, 1, 2, 5, 6)] == [1.0, 1.0, 0.5, 0.0625, 0.03125]


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9])
def test_smallest_p_is_reached(n):
    assert wilcoxon(np.arange(1.0, n + 1)).p == pytest.approx(smallest_wilcoxon_p(n))


def test_signed_ranks_by_hand():
    """Differences 1, -2, 3: the smaller rank sum is 2; of 8 sign patterns 1 + 1 + 1 have a sum <= 2, so p = 6 / 8."""
    found = wilcoxon([1, -2, 3])
    assert found.p == pytest.approx(0.75)
    assert (found.n, found.zeros) == (3, 0)
    assert found.mean == pytest.approx(2 / 3)


def test_zeros_are_ranked_then_dropped():
    """Pratt: 0, 1, 2 rank 1, 2, 3; the zero's rank goes. Both signs positive: 2 of 4 patterns are as extreme, p = 0.5."""
    found = wilcoxon([0.0, 1.0, 2.0])
    assert found.p == pytest.approx(0.5)
    assert (found.n, found.zeros, found.smallest_p) == (3, 1, 0.5)


def test_nothing_differs():
    assert wilcoxon(np.zeros(20)) == PairedTest(1.0, 20, 20, 0.0, 1.0)


@pytest.mark.parametrize("values", [[], [math.nan, 1.0], [[1.0]]])
def test_no_differences(values):
    with pytest.raises(ValueError, match="finite differences, at least one"):
        wilcoxon(values)


def test_p_is_uniform_where_nothing_is_different():
    generator = derive_generator(1, "null")
    rejected = [wilcoxon(generator.standard_normal(60)).p < 0.05 for _ in range(1000)]
    assert 30 <= sum(rejected) <= 72  # 50 expected; binomial 3.2 standard deviations


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_no_p_below_the_least(values):
    found = wilcoxon(np.array(values, dtype=float))
    assert 0 <= found.p <= 1
    if found.n <= 13:
        assert found.p >= found.smallest_p - 1e-12


# ---- differences of users --------------------------------------------------------------------------------------------


def both_sides(seed):
    generator = derive_generator(seed, "sides")
    truth = np.repeat(generator.integers(1, 20, size=(1, 80)), 2, axis=0).astype(float)

    def side():
        hits = generator.binomial(truth.astype(int), 0.3).astype(float)
        return UserFigures(np.arange(80), {"hits@20": hits, "truth": truth, "ndcg@20": generator.random((2, 80))})

    return side(), side()


@pytest.mark.parametrize("metric", ["ndcg@20", "hit_ratio_micro@20"])
def test_differences_of_users_add_up_to_the_difference(metric):
    ours, reference = both_sides(1)
    differences = user_differences(ours, reference, metric)
    assert differences.shape == (80,)
    assert differences.mean() == pytest.approx(estimate(ours, metric) - estimate(reference, metric), abs=1e-9)


def test_equal_users_differ_by_nothing():
    """0.1 + 0.2 and 0.2 + 0.1 over 0.3 seeds apart: sums of floats in another order."""
    ours = UserFigures(np.arange(1), {"ndcg@20": np.array([[0.1], [0.2], [0.3]])})
    other = UserFigures(np.arange(1), {"ndcg@20": np.array([[0.3], [0.2], [0.1]])})
    assert user_differences(ours, other, "ndcg@20").tolist() == [0.0]


def test_differences_need_the_same_users():
    ours, reference = both_sides(1)
    fewer = UserFigures(reference.users[:-1], {name: each[:, :-1] for name, each in reference.values.items()})
    with pytest.raises(ValueError, match="the same users on both sides"):
        user_differences(ours, fewer, "ndcg@20")


# ---- Holm and stars --------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    """0.01 x 4, 0.02 x 3, then 0.03 x 2 = 0.06 no less than 0.06, 0.04 x 1 raised to 0.06; the order given is kept."""
    found = holm({"c": 0.03, "a": 0.01, "d": 0.04, "b": 0.02})
    assert list(found) == ["c", "a", "d", "b"]
    assert found == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.06})
    assert holm({"x": 0.9, "y": 0.8}) == {"x": 1.0, "y": 1.0}
    assert holm({}) == {}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_statsmodels(values):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    there = multitest.multipletests(values, method="holm")[1]
    assert list(holm({str(i): p for i, p in enumerate(values)}).values()) == pytest.approx(there.tolist())


@pytest.mark.parametrize(("p", "mark"), [(0.0009, "***"), (0.001, "**"), (0.0499, "*"), (0.05, ""), (1.0, "")])
def test_stars(p, mark):
    assert stars(PairedTest(p, 900, 10, 0.1, smallest_wilcoxon_p(890)), p, 4, "users") == (mark, "")


def test_no_stars_where_none_can_be_reached():
    five, six = wilcoxon(np.arange(1.0, 6)), wilcoxon(np.arange(1.0, 7))
    assert stars(five, five.p, 1, "users") == (
        "", "no stars: over 5 users a two-sided Wilcoxon test cannot go below p = 0.0625",
    )  # fmt: skip
    assert stars(six, six.p, 1, "users") == ("*", "")
    mark, reason = stars(six, 2 * six.p, 2, "users")
    assert mark == ""
    assert reason.endswith("cannot go below p = 0.0312, 0.0625 after Holm among 2")
    assert stars(wilcoxon(np.zeros(9)), 1.0, 1, "users") == ("", "no stars: none of the 9 users differs")


def test_too_few_seeds():
    assert too_few_seeds(6) == ""
    assert "over 5 pairs cannot go below p = 0.0625; it takes 6" in too_few_seeds(5)
    assert "over 1 seed:" in too_few_seeds(1)
    assert too_few_seeds(0) == "no seed is shared by both"


# ---- over data sets --------------------------------------------------------------------------------------------------

# Demsar (2006), table 5: q at 0.05 and 0.10 for 2 to 10 classifiers.
Q_05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
Q_10 = [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]


@pytest.mark.parametrize(("alpha", "table"), [(0.05, Q_05), (0.10, Q_10)])
def test_critical_values_as_published(alpha, table):
    for variants, q in enumerate(table, 2):
        one = nemenyi_critical_difference(variants, 1, alpha) / math.sqrt(variants * (variants + 1) / 6)
        assert one == pytest.approx(q, abs=1.1e-3)


def test_critical_difference_of_demsars_example():
    assert nemenyi_critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert nemenyi_critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)


def test_ranks_by_hand():
    """Ranks 1 2 3, 1 3 2, 1.5 1.5 3."""
    found = rank_over_data_sets({"a": [0.9, 0.9, 0.5], "b": [0.8, 0.1, 0.5], "c": [0.7, 0.2, 0.4]})
    assert found.mean_ranks == pytest.approx({"a": 3.5 / 3, "b": 6.5 / 3, "c": 8 / 3})
    assert found.data_sets == 3
    assert found.friedman_p == pytest.approx(stats.friedmanchisquare([9, 9, 5], [8, 1, 5], [7, 2, 4]).pvalue)
    assert set(found.nemenyi_p) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_nemenyi_agrees_with_scikit_posthocs():
    posthocs = pytest.importorskip("scikit_posthocs")
    scores = derive_generator(1, "scores").random((6, 4))
    there = posthocs.posthoc_nemenyi_friedman(-scores).to_numpy()
    found = rank_over_data_sets({str(i): scores[:, i].tolist() for i in range(4)})
    for (one, other), p in found.nemenyi_p.items():
        assert p == pytest.approx(there[int(one), int(other)], abs=2e-3)


def test_all_alike_is_no_difference():
    found = rank_over_data_sets({name: [0.1, 0.2, 0.3] for name in "abc"})
    assert found.friedman_p == 1.0
    assert set(found.mean_ranks.values()) == {2.0}


def test_too_few_to_rank():
    assert too_few_to_rank(3, 3) == ""
    assert "there are 2 and 4" in too_few_to_rank(4, 2)
    with pytest.raises(ValueError, match="at least 3 data sets and 3 variants"):
        rank_over_data_sets({"a": [1, 2, 3], "b": [1, 2, 3]})
