"""Top lists against a plain reference: ties, masks, short catalogues, and the same list from every engine and block."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.evaluation import ranking
from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_in_blocks, rank_scores, rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows, entries_of
from tests.evaluation.ranked_lists import rows_of

ENGINES = ("numba", "torch")


def reference(users, table, masked, top_k, bias=None):
    """The definition, word for word: exact scores, a full sort by (score falling, id rising), masked items left out."""
    scores = users.astype(np.float64) @ table.astype(np.float64).T
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    result = np.full((len(users), top_k), -1, dtype=np.int32)
    for user, row in enumerate(scores):
        order = [item for item in np.lexsort((np.arange(row.size), -row)) if item not in masked[user]]
        result[user, : len(order)] = order[:top_k]
    return result


def random_case(seed, users=23, items=301, width=8, values=None):
    generator = np.random.default_rng(seed)
    draw = generator.normal if values is None else lambda size: generator.choice(values, size)
    vectors = draw(size=(users, width)).astype(np.float32)
    table = draw(size=(items, width)).astype(np.float32)
    masked = [generator.permutation(items)[: generator.integers(0, 40)].tolist() for _ in range(users)]
    return vectors, table, masked


@pytest.mark.parametrize("engine", ENGINES)
def test_by_hand(engine):
    # Scores of user 0: 1, 3, 2, 3 - items 1 and 3 tie, the smaller id goes first. User 1 scores the negatives.
    users = np.array([[1.0], [-1.0]], np.float32)
    table = np.array([[1.0], [3.0], [2.0], [3.0]], np.float32)
    masked = rows_of([[], [0]])
    result = rank_top_k(users, table, masked, top_k=3, engine=engine)
    assert result.dtype == np.int32
    assert result.tolist() == [[1, 3, 2], [2, 1, 3]]


@pytest.mark.parametrize("engine", ENGINES)
def test_bias_is_added_to_every_score(engine):
    users, table = np.array([[1.0], [0.0]], np.float32), np.array([[1.0], [0.0], [0.5]], np.float32)
    bias = np.array([-1.0, 0.25, 0.0], np.float32)  # user 0: 0, 0.25, 0.5; user 1: -1, 0.25, 0
    assert rank_top_k(users, table, item_bias=bias, top_k=2, engine=engine).tolist() == [[2, 1], [1, 2]]


@pytest.mark.parametrize("engine", ENGINES)
def test_several_masks_add_up_and_short_catalogues_are_filled(engine):
    users, table = np.ones((2, 1), np.float32), np.arange(5, dtype=np.float32)[:, None]
    masks = [rows_of([[4], [0, 1]]), rows_of([[2, 4], [2, 3, 4]])]
    result = rank_top_k(users, table, masks, top_k=6, engine=engine)
    assert result.tolist() == [[3, 1, 0, -1, -1, -1], [-1] * 6]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("items", [1, 63, 64, 65, 130])
def test_catalogues_around_the_chunk_size(engine, items):
    users, table, _ = random_case(items, users=3, items=items)
    expected = reference(users, table, [[]] * 3, 20)
    np.testing.assert_array_equal(rank_top_k(users, table, engine=engine), expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), ties=st.booleans(), biased=st.booleans())
def test_engines_agree_with_the_definition(seed, ties, biased):
    values = np.array([-0.0, 0.0, 0.5, 1.0]) if ties else None  # few values: most scores tie
    users, table, masked = random_case(seed, values=values, items=97 if ties else 301)
    users[0] = 0.0  # a user without a vector gets the smallest ids
    bias = np.random.default_rng(seed).integers(0, 3, len(table)).astype(np.float32) if biased else None
    expected = reference(users, table, masked, 20, bias)
    for engine in ENGINES:
        result = rank_top_k(users, table, rows_of(masked), item_bias=bias, engine=engine)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_scores_closer_than_float32_can_tell_are_ranked_exactly(engine):
    # All items are copies of one row, moved by less than a float32 product of 64 terms resolves.
    generator = np.random.default_rng(5)
    users = generator.normal(size=(40, 64)).astype(np.float32)
    table = np.repeat(generator.normal(size=(1, 64)), 500, axis=0).astype(np.float32)
    table = np.nextafter(table, generator.choice([-9, 9], table.shape).astype(np.float32))
    users, table = np.round(users * 2**10) / 2**10, table.astype(np.float32)  # float64 sums are exact in any order
    float32_order = np.argsort(-(users @ table.T), axis=1, kind="stable")[:, :20]
    expected = reference(users, table, [[]] * 40, 20)
    assert (float32_order != expected).any()  # or the test would test nothing
    np.testing.assert_array_equal(rank_top_k(users, table, engine=engine), expected)


def test_lists_do_not_depend_on_block_or_threads_or_neighbours(monkeypatch):
    users, table, masked = random_case(11, users=45, items=700, width=64)
    users = np.concatenate([users, users[::-1]])  # the same users in other places
    rows = rows_of(masked + masked[::-1])
    whole = rank_top_k(users, table, rows)
    np.testing.assert_array_equal(whole[45:], whole[:45][::-1])
    alone = [rank_top_k(users[u : u + 1], table, rows_of([masked[u]])) for u in range(45)]
    np.testing.assert_array_equal(np.concatenate(alone), whole[:45])
    for rows_in_block in (1, 7, 64):
        monkeypatch.setattr(ranking, "BLOCK_BYTES", rows_in_block * 4 * 700)
        monkeypatch.setattr(ranking, "TORCH_BLOCK_BYTES", rows_in_block * 4 * 700)
        for settings_ in ({"threads": 1}, {"threads": 3}, {"engine": "torch"}):
            np.testing.assert_array_equal(rank_top_k(users, table, rows, **settings_), whole)


def test_rows_may_be_part_of_a_larger_table():
    users, table, masked = random_case(3)
    rows = rows_of(masked)
    order = np.array([5, 1, 20])
    part = Rows(rows.items, rows.starts[order], rows.ends[order])
    owners, items = entries_of(part)
    assert list(zip(owners.tolist(), items.tolist(), strict=True)) == [
        (place, item) for place, user in enumerate(order) for item in masked[user]
    ]
    for engine in ENGINES:
        expected = rank_top_k(users, table, rows, engine=engine)[order]
        np.testing.assert_array_equal(rank_top_k(users[order], table, part, engine=engine), expected)


def test_given_scores_are_ranked_alike():
    users, table, masked = random_case(4, values=np.array([0.0, 1.0]))
    scores = users @ table.T
    np.testing.assert_array_equal(rank_scores(scores, rows_of(masked)), rank_top_k(users, table, rows_of(masked)))


@pytest.mark.parametrize("block_bytes", [1, 4 * 70 * 3, 1 << 20])
def test_blocks_of_scores_rank_as_all_at_once(monkeypatch, block_bytes):
    scores = np.random.default_rng(5).normal(size=(11, 70)).astype(np.float32)
    masked = [rows_of([[user, user + 9] for user in range(11)])]
    monkeypatch.setattr("fastpfrec_flwr.evaluation.ranking.BLOCK_BYTES", block_bytes)
    found = rank_in_blocks(11, 70, lambda first, last: scores[first:last].copy(), masked, top_k=15)
    np.testing.assert_array_equal(found, rank_scores(scores.copy(), masked, top_k=15))
    assert rank_in_blocks(0, 70, lambda first, last: scores[:0], [], top_k=15).shape == (0, 15)


@pytest.mark.parametrize("engine", ENGINES)
def test_nobody_to_rank_for(engine):
    table = np.ones((3, 2), np.float32)
    assert rank_top_k(np.zeros((0, 2), np.float32), table, top_k=4, engine=engine).shape == (0, 4)
    empty = np.ones((0, 2), np.float32)
    assert rank_top_k(np.ones((1, 2), np.float32), empty, top_k=2, engine=engine).tolist() == [[-1, -1]]


def test_inputs_are_left_alone():
    users, table, masked = random_case(6)
    before = users.copy(), table.copy()
    rank_top_k(users, table, rows_of(masked))
    np.testing.assert_array_equal(users, before[0])
    np.testing.assert_array_equal(table, before[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["user", "item", "bias"])
def test_a_diverged_model_is_refused(value, place):
    users, table, bias = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32), np.zeros(4, np.float32)
    {"user": users, "item": table, "bias": bias}[place][1] = value
    with pytest.raises(ValueError, match="not finite numbers"):
        rank_top_k(users, table, item_bias=bias)


def test_overflowing_scores_are_refused():
    huge = np.full((2, 3), 1e30, np.float32)
    with pytest.raises(ValueError, match="would overflow"):
        rank_top_k(huge, huge)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item_table": np.ones((4, 2), np.float32)}, "same width"),
        ({"masked": rows_of([[0]])}, "one row for each of 2 users"),
        ({"masked": rows_of([[4], []])}, r"must lie in \[0, 4\)"),
        ({"masked": rows_of([[-1], []])}, r"must lie in \[0, 4\)"),
        ({"masked": Rows(np.zeros(1, np.int32), np.array([0, 0]), np.array([1, 2]))}, "bounds lie outside"),
        ({"item_bias": np.zeros(3, np.float32)}, "one value for each of 4 items"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"engine": "numba", "device": "cuda"}, "runs on device 'cpu' only"),
        ({"engine": "numpy"}, "engine must be"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    arguments = {"user_vectors": np.ones((2, 3), np.float32), "item_table": np.ones((4, 3), np.float32)}
    with pytest.raises(ValueError, match=message):
        rank_top_k(**(arguments | changes))


def test_products_too_coarse_for_the_bound_are_refused():
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(ValueError, match="set to bfloat16"):
            rank_top_k(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32), engine="torch")
    finally:
        torch.set_float32_matmul_precision(before)


def test_scores_must_be_numbers():
    with pytest.raises(ValueError, match="not finite"):
        rank_scores(np.array([[np.nan, 1.0]], np.float32))


def test_random_vectors_rank_at_chance():
    # 400 users, 10 truth items among 1,000, none masked: recall@20 has mean 0.02 and, the lists being independent,
    # a standard error of sqrt(0.02 * 0.98 / 10 / 400) = 0.0022. Five of them either way.
    generator = np.random.default_rng(2)
    users = generator.normal(size=(400, 16)).astype(np.float32)
    table = generator.normal(size=(1000, 16)).astype(np.float32)
    truth = rows_of([generator.permutation(1000)[:10].tolist() for _ in range(400)])
    result = metrics(metric_sums(rank_top_k(users, table), truth))
    assert abs(result["recall@20"] - 0.02) < 5 * 0.0022
    assert result["hit_ratio_micro@20"] == pytest.approx(result["recall@20"])


def test_a_model_that_knows_the_truth_is_perfect():
    truth = [[user, user + 50] for user in range(50)]
    table = np.vstack([np.eye(50), np.eye(50)]).astype(np.float32)
    result = metrics(metric_sums(rank_top_k(np.eye(50, dtype=np.float32), table), rows_of(truth)))
    assert result["ndcg@10"] == result["recall@10"] == 1.0
