"""The metrics against hand-worked lists, their invariances, and an independent implementation."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.evaluation.metrics import CUTOFFS, GRID_BITS, MetricSums, metric_sums, metrics, per_user_metrics
from fastpfrec_flwr.evaluation.rows import Rows
from tests.evaluation.ranked_lists import agrees_with_trec, rows_of


def part_of(rows, users):
    return Rows(rows.items, rows.starts[users], rows.ends[users])


# Three users, lists of four, cutoffs 2 and 4. User 2 has no truth and is left out throughout.
#   user 0: list 5 1 7 2, truth {1, 2, 9}: hits at ranks 2 and 4
#   user 1: list 3 0 4 6, truth {3}: hit at rank 1
TOP = np.array([[5, 1, 7, 2], [3, 0, 4, 6], [1, 2, 3, 4]], dtype=np.int32)
TRUTH = [[1, 2, 9], [3], []]
D2, D3, D4 = 1 / math.log2(3), 1 / math.log2(4), 1 / math.log2(5)  # discounts of ranks 2, 3, 4; rank 1 has 1
GOLDEN = {
    "hit_ratio_micro@2": 2 / 4,  # (1 + 1) hits of (3 + 1) truth items
    "hit_ratio_micro@4": 3 / 4,  # (2 + 1) of (3 + 1)
    "hit_rate_user@2": 1.0,
    "hit_rate_user@4": 1.0,
    "recall@2": (1 / 3 + 1) / 2,
    "recall@4": (2 / 3 + 1) / 2,
    "precision@2": (1 / 2 + 1 / 2) / 2,
    "precision@4": (2 / 4 + 1 / 4) / 2,
    "ndcg@2": (D2 / (1 + D2) + 1) / 2,  # ideal of user 0: min(2, 3) = 2 ranks
    "ndcg@4": ((D2 + D4) / (1 + D2 + D3) + 1) / 2,  # ideal of user 0: min(4, 3) = 3 ranks
}


def test_every_metric_by_hand():
    result = metrics(metric_sums(TOP, rows_of(TRUTH), cutoffs=(2, 4)))
    assert result.keys() == GOLDEN.keys()
    for name, value in GOLDEN.items():
        assert result[name] == pytest.approx(value, abs=2.0**-GRID_BITS), name


def test_ndcg_as_a_number():
    # One user, hits at ranks 1 and 3 of three truth items: (1 + 1/2) / (1 + 0.63093 + 1/2) = 1.5 / 2.13093 = 0.70392
    top = np.array([[4, 8, 6]], dtype=np.int32)
    assert metrics(metric_sums(top, rows_of([[4, 6, 0]]), cutoffs=(3,)))["ndcg@3"] == pytest.approx(0.70392, abs=5e-6)


def test_sums_by_hand():
    sums = metric_sums(TOP, rows_of(TRUTH), cutoffs=(2, 4))
    assert (sums.users, sums.truth) == (2, 4)
    assert sums.hits == {2: 2, 4: 3}
    assert sums.users_hit == {2: 2, 4: 2}
    assert sums.recall_grid[4] == round(2 / 3 * 2**40) + 2**40


def test_per_user_values_by_hand():
    values = per_user_metrics(TOP, rows_of(TRUTH), cutoffs=(2, 4))
    assert values["truth"].tolist() == [3, 1, 0]
    np.testing.assert_array_equal(values["hits@4"], [2, 1, np.nan])
    np.testing.assert_allclose(values["recall@2"], [1 / 3, 1, np.nan])
    np.testing.assert_allclose(values["precision@4"], [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(values["hit_rate_user@2"], [1, 1, np.nan])
    np.testing.assert_allclose(values["ndcg@2"], [D2 / (1 + D2), 1, np.nan])


def test_the_default_cutoffs_name_the_metrics():
    top = np.arange(20, dtype=np.int32)[None]
    result = metrics(metric_sums(top, rows_of([[0]])))
    kinds = ("hit_ratio_micro", "hit_rate_user", "recall", "precision", "ndcg")
    assert set(result) == {f"{kind}@{k}" for kind in kinds for k in CUTOFFS}


def test_a_perfect_list_is_exactly_one():
    top = np.arange(20, dtype=np.int32)[None].repeat(25, axis=0)
    result = metrics(metric_sums(top, rows_of([list(range(n + 1)) for n in range(25)])))
    assert result["ndcg@10"] == result["ndcg@20"] == result["hit_rate_user@10"] == 1.0


def test_short_lists_do_not_hit():
    # -1 fills the list of user 1; the number before user 1's first key would be user 0's largest one.
    top = np.array([[3, 2], [-1, -1]], dtype=np.int32)
    sums = metric_sums(top, rows_of([[3], [0]]), cutoffs=(1, 2))
    assert sums.hits == {1: 1, 2: 1}


def test_truth_is_a_set():
    top = np.array([[3, 2]], dtype=np.int32)
    assert metrics(metric_sums(top, rows_of([[3, 3, 5]]), cutoffs=(2,)))["recall@2"] == 0.5


def test_truth_rows_may_lie_anywhere():
    rows = rows_of(TRUTH)
    order = np.array([1, 2, 0])
    assert metric_sums(TOP[order], part_of(rows, order), (2, 4)) == metric_sums(TOP, rows, (2, 4))


@pytest.mark.parametrize("users", [0, 2])
def test_no_truth_is_nan_and_a_warning(users):
    sums = metric_sums(np.zeros((users, 1), np.int32), rows_of([[]] * users), cutoffs=(1,))
    with pytest.warns(RuntimeWarning, match="no user has a truth item"):
        result = metrics(sums)
    assert len(result) == 5
    assert all(math.isnan(value) for value in result.values())


def test_users_without_truth_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics(metric_sums(TOP, rows_of(TRUTH), cutoffs=(2, 4)))


@pytest.mark.parametrize(
    ("top", "truth", "cutoffs", "message"),
    [
        ([[1, 2]], [[1], [2]], (1,), "expected one row for each of 1 users"),
        ([[1, 2]], [[1]], (3,), r"must lie in \[1, 2\]"),
        ([[1, 2]], [[1]], (0,), r"must lie in \[1, 2\]"),
        ([[1, 1]], [[1]], (1,), "stands twice"),
        ([[1, 2]], [[-1]], (1,), "item ids must lie in"),
        ([1, 2], [[1]], (1,), "must be a"),
    ],
)
def test_what_cannot_be_scored_is_refused(top, truth, cutoffs, message):
    with pytest.raises(ValueError, match=message):
        metric_sums(np.array(top, dtype=np.int32), rows_of(truth), cutoffs=cutoffs)


def random_case(seed, users=None, items=40, top_k=20):
    generator = np.random.default_rng(seed)
    users = int(generator.integers(1, 30)) if users is None else users
    top = np.argsort(generator.random((users, items)), axis=1)[:, :top_k].astype(np.int32)
    truth = [generator.permutation(items)[: generator.integers(0, 12)].tolist() for _ in range(users)]
    return top, truth


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), parts=st.integers(1, 6))
def test_sums_add_up_to_the_same_bits_over_any_partition(seed, parts):
    top, truth = random_case(seed)
    rows = rows_of(truth)
    whole = metric_sums(top, rows)
    generator = np.random.default_rng(seed + 1)
    owner = generator.integers(0, parts, len(top))
    pieces = [metric_sums(top[owner == part], part_of(rows, owner == part)) for part in generator.permutation(parts)]
    assert sum(pieces, MetricSums.zero()) == whole


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_bounds_and_invariances(seed):
    top, truth = random_case(seed)
    if not any(truth):
        return
    result = metrics(metric_sums(top, rows_of(truth)))
    assert all(0 <= value <= 1 for value in result.values())
    for kind in ("hit_ratio_micro", "hit_rate_user", "recall"):
        assert result[f"{kind}@10"] <= result[f"{kind}@20"]
    generator = np.random.default_rng(seed)
    shuffled = [generator.permutation(row).tolist() for row in truth]  # the truth has no order
    assert metrics(metric_sums(top, rows_of(shuffled))) == result
    names = generator.permutation(40).astype(np.int32)  # and items no meaning
    renamed = [names[np.array(row, dtype=np.int64)].tolist() for row in truth]
    assert metrics(metric_sums(names[top], rows_of(renamed))) == result
    inside = top.copy()  # order within the first ten matters to ndcg alone
    inside[:, :10] = generator.permuted(top[:, :10], axis=1)
    again = metrics(metric_sums(inside, rows_of(truth)))
    assert all(again[name] == result[name] for name in result if not name.startswith("ndcg"))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_moving_a_hit_up_never_lowers_ndcg(seed):
    top, truth = random_case(seed, users=1)
    values = per_user_metrics(top, rows_of(truth))
    for rank in range(1, 20):
        if top[0, rank] in truth[0] and top[0, rank - 1] not in truth[0]:
            better = top.copy()
            better[0, [rank - 1, rank]] = top[0, [rank, rank - 1]]
            assert per_user_metrics(better, rows_of(truth))["ndcg@20"] >= values["ndcg@20"]


@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_ranx(seed):
    pytest.importorskip("ranx")
    # The functions for one user: those for all of them take minutes to compile.
    from ranx.metrics.hit_rate import _hit_rate
    from ranx.metrics.ndcg import _ndcg
    from ranx.metrics.precision import _precision
    from ranx.metrics.recall import _recall

    top, truth = random_case(seed, users=200)
    truth = [row or [0] for row in truth]
    ours = per_user_metrics(top, rows_of(truth))
    for user, row in enumerate(truth):
        relevant = np.array([[item, 1.0] for item in row])
        ranked = np.array([[item, 100.0 - rank] for rank, item in enumerate(top[user])])
        for k in CUTOFFS:
            assert ours[f"hit_rate_user@{k}"][user] == _hit_rate(relevant, ranked, k, 1)
            assert ours[f"recall@{k}"][user] == pytest.approx(_recall(relevant, ranked, k, 1), abs=1e-12)
            assert ours[f"precision@{k}"][user] == pytest.approx(_precision(relevant, ranked, k, 1), abs=1e-12)
            assert ours[f"ndcg@{k}"][user] == pytest.approx(_ndcg(relevant, ranked, k, 1, True), abs=1e-12)


def test_agrees_with_trec_on_random_lists():
    top, truth = random_case(7, users=100)
    top[::9, 12:] = -1
    agrees_with_trec(top, truth)


class TestOnTheWire:
    def sums(self):
        return metric_sums(*(lambda top, truth: (top, rows_of(truth)))(*random_case(3, users=50)))

    def test_there_and_back(self):
        record = self.sums().to_dict()
        assert all(type(value) is int for value in record.values())
        assert MetricSums.from_dict(json.loads(json.dumps(record))) == self.sums()

    def test_whole_floats_pass(self):
        record = {key: float(value) for key, value in MetricSums.zero().to_dict().items()}
        assert MetricSums.from_dict(record) == MetricSums.zero()

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0.5, True, "3", None, [1]])
    def test_what_is_no_count_is_refused(self, value):
        with pytest.raises(ValueError, match="users must be an integer"):
            MetricSums.from_dict({**self.sums().to_dict(), "users": value})

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("users", 10**9),
            ("hits-10", 10**9),
            ("users-hit-10", 10**9),
            ("hits-10", 0),
            ("recall-grid-10", 2**62),
            ("ndcg-grid-20", 2**62),
            ("truth", 1),
            ("hits-20", 1),
        ],
    )
    def test_contradictions_are_refused(self, key, value):
        with pytest.raises(ValueError, match="contradict"):
            MetricSums.from_dict({**self.sums().to_dict(), key: value})

    def test_missing_and_unknown_keys_are_refused(self):
        record = self.sums().to_dict()
        record["surplus"] = record.pop("truth")
        with pytest.raises(ValueError, match=r"missing keys \['truth'\], unknown keys \['surplus'\]"):
            MetricSums.from_dict(record)

    def test_other_cutoffs_do_not_add(self):
        with pytest.raises(ValueError, match="do not add up"):
            MetricSums.zero() + MetricSums.zero((5,))

    def test_more_users_than_an_int64_holds_are_refused(self):
        users = 2**23
        full = dict.fromkeys((1,), users << GRID_BITS)
        sums = MetricSums(users, users, {1: users}, {1: users}, full, full)
        with pytest.raises(ValueError, match="exceeds a 64-bit integer"):
            sums.to_dict()
