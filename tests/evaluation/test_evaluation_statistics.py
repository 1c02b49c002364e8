"""Spread over seeds and bootstrap over users: worked by hand, against theory, against scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics, per_user_metrics
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.evaluation.statistics import (
    UserFigures,
    bootstrap_intervals,
    common_users,
    estimate,
    join_users,
    spread,
)
from fastpfrec_flwr.randomness import derive_generator


def figures(**values):
    """`figures(ndcg20=[[...], ...])`: a table of (seeds, users) for each name; `20` at the end means `@20`."""
    tables = {name.replace("20", "@20"): np.array(each, dtype=np.float64) for name, each in values.items()}
    return UserFigures(np.arange(next(iter(tables.values())).shape[1]), tables)


# ---- over seeds ------------------------------------------------------------------------------------------------------


def test_spread_by_hand():
    found = spread([0.1, 0.2, 0.6])  # mean 0.3, squares 0.04 + 0.01 + 0.09 over n - 1 = 2
    assert found.mean == pytest.approx(0.3)
    assert found.sd == pytest.approx(math.sqrt(0.07))
    assert found.n == 3


def test_one_seed_has_no_deviation():
    assert spread([0.5]).mean == 0.5
    assert math.isnan(spread([0.5]).sd)


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf]])
def test_a_spread_of_nothing(values):
    with pytest.raises(ValueError, match="at least one value, all finite"):
        spread(values)


# ---- lining users up -------------------------------------------------------------------------------------------------


def test_users_that_every_seed_has():
    first = {"users": np.array([1, 3, 5]), "ndcg@20": np.array([0.1, 0.3, 0.5], np.float32)}
    second = {"users": np.array([3, 5, 9]), "ndcg@20": np.array([0.4, 0.6, 1.0], np.float32), "other": np.zeros(3)}
    found = join_users([first, second])
    assert found.users.tolist() == [3, 5]
    assert found.left_out == 2
    assert list(found.values) == ["ndcg@20"]
    assert found.values["ndcg@20"] == pytest.approx(np.array([[0.3, 0.5], [0.4, 0.6]]))
    assert found.seeds == 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "ascending user numbers"),
        ({"users": np.array([2, 1]), "x": np.zeros(2)}, "ascending user numbers"),
        ({"users": np.array([1, 1]), "x": np.zeros(2)}, "ascending user numbers"),
        ({"users": np.array([1, 2])}, "no figures"),
        ({"users": np.array([1, 2]), "x": np.zeros(3)}, "`x` must have one value for each of 2 users"),
        ({"users": np.array([1, 2]), "x": np.array([1, np.nan])}, "`x` holds a value that is not finite"),
    ],
)
def test_figures_that_do_not_fit(arrays, words):
    with pytest.raises(ValueError, match=words):
        join_users([arrays])


def test_no_user_in_common():
    runs = [{"users": np.array([user]), "x": np.zeros(1)} for user in (1, 2)]
    with pytest.raises(ValueError, match="runs of one data set"):
        join_users(runs)
    with pytest.raises(ValueError, match="no test user in common"):
        common_users({str(i): join_users([run]) for i, run in enumerate(runs)})


def test_common_users_of_variants():
    one = join_users([{"users": np.array([1, 2, 3]), "x": np.array([0.1, 0.2, 0.3])}])
    other = join_users([{"users": np.array([2, 3, 4]), "x": np.array([0.5, 0.6, 0.7])}])
    found = common_users({"one": one, "other": other})
    assert found["one"].values["x"].tolist() == [[0.2, 0.3]]
    assert found["other"].values["x"].tolist() == [[0.5, 0.6]]
    assert found["other"].left_out == 1


# ---- metrics from users ----------------------------------------------------------------------------------------------


def test_ratios_and_means_by_hand():
    users = figures(hits20=[[1, 0, 3], [2, 0, 2]], truth=[[2, 2, 6], [2, 2, 6]], ndcg20=[[0.5, 0, 1], [1, 0, 1]])
    assert estimate(users, "hit_ratio_micro@20") == pytest.approx(0.4)  # 4 of 10, both seeds
    assert estimate(users, "ndcg@20") == pytest.approx((0.5 + 2 / 3) / 2)
    assert estimate(users, "hit_rate_user@20") == pytest.approx(2 / 3)
    assert estimate(users, "precision@20") == pytest.approx(4 / 60)
    assert users.metrics(["hit_ratio_micro@20", "hit_ratio_micro@10", "recall@20", "ndcg@20"]) == [
        "hit_ratio_micro@20", "ndcg@20",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="recall@20 needs recall@20"):
        estimate(users, "recall@20")


def test_users_add_up_to_the_metrics_of_the_run():
    generator = derive_generator(1, "lists")
    top = np.argsort(generator.random((40, 60)), axis=1)[:, :20].astype(np.int32)
    sizes = generator.integers(1, 9, size=40)
    items = np.concatenate([generator.choice(60, size, replace=False) for size in sizes]).astype(np.int32)
    ends = np.cumsum(sizes).astype(np.int64)
    truth = Rows(items, ends - sizes, ends)
    users = join_users([{"users": np.arange(40), **per_user_metrics(top, truth)}])
    for name, value in metrics(metric_sums(top, truth)).items():
        assert estimate(users, name) == pytest.approx(value, abs=1e-10)


# ---- bootstrap -------------------------------------------------------------------------------------------------------


def test_interval_of_a_mean_is_the_normal_one():
    values = derive_generator(2, "values").gamma(2.0, size=4000)
    found = bootstrap_intervals({"v": figures(ndcg20=[values])}, ["ndcg@20"], 1, resamples=4000)["v", "ndcg@20"]
    half = 1.959964 * values.std() / math.sqrt(4000)
    assert found.estimate == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=half / 20)
    assert found.high == pytest.approx(values.mean() + half, abs=half / 20)
    assert (found.users, found.seeds, found.level) == (4000, 1, 0.95)


def test_interval_of_a_ratio_agrees_with_scipy():
    generator = derive_generator(3, "ratio")
    truth = generator.integers(1, 30, size=300).astype(float)
    hits = generator.binomial(truth.astype(int), 0.2).astype(float)
    found = bootstrap_intervals({"v": figures(hits20=[hits], truth=[truth])}, ["hit_ratio_micro@20"], 1, resamples=8000)
    there = stats.bootstrap(
        (hits, truth),
        lambda h, t, axis: h.sum(axis=axis) / t.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=8000,
        method="percentile",
        rng=derive_generator(4, "scipy"),
    ).confidence_interval
    ours = found["v", "hit_ratio_micro@20"]
    width = there.high - there.low
    assert ours.estimate == pytest.approx(hits.sum() / truth.sum())
    assert ours.low == pytest.approx(there.low, abs=width / 25)
    assert ours.high == pytest.approx(there.high, abs=width / 25)


def test_seeds_do_not_multiply_users():
    """Three runs of the same users are as many users as one run: the interval must not shrink."""
    values = derive_generator(5, "values").random(500)
    one = bootstrap_intervals({"v": figures(ndcg20=[values])}, ["ndcg@20"], 1)["v", "ndcg@20"]
    three = bootstrap_intervals({"v": figures(ndcg20=[values] * 3)}, ["ndcg@20"], 1)["v", "ndcg@20"]
    assert (three.low, three.high) == pytest.approx((one.low, one.high))
    assert three.seeds == 3


def test_differences_are_paired():
    """A constant advantage of every user has no uncertainty, however much users differ."""
    values = derive_generator(6, "values").random(200)
    both = {"reference": figures(ndcg20=[values]), "better": figures(ndcg20=[values + 0.01])}
    found = bootstrap_intervals(both, ["ndcg@20"], 1, reference="reference")
    assert list(found) == [("better", "ndcg@20")]
    interval = found["better", "ndcg@20"]
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.01, 0.01, 0.01))


def test_the_same_seed_gives_the_same_interval_in_chunks_or_at_once(monkeypatch):
    users = figures(ndcg20=derive_generator(7, "v").random((2, 90)))
    whole = bootstrap_intervals({"v": users}, ["ndcg@20"], 1)
    assert whole == bootstrap_intervals({"v": users}, ["ndcg@20"], 1)
    assert whole != bootstrap_intervals({"v": users}, ["ndcg@20"], 2)
    monkeypatch.setattr("fastpfrec_flwr.evaluation.statistics._CHUNK", 1000)
    parts = bootstrap_intervals({"v": users}, ["ndcg@20"], 1)["v", "ndcg@20"]
    assert parts.low == pytest.approx(whole["v", "ndcg@20"].low, rel=1e-12)


def test_other_users_cannot_be_paired():
    variants = {"a": figures(ndcg20=[[0.1, 0.2]]), "b": figures(ndcg20=[[0.1, 0.2, 0.3]])}
    with pytest.raises(ValueError, match="the same users in every variant"):
        bootstrap_intervals(variants, ["ndcg@20"], 1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_an_interval_lies_within_the_values(values):
    found = bootstrap_intervals({"v": figures(ndcg20=[values])}, ["ndcg@20"], 1, resamples=50)["v", "ndcg@20"]
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
