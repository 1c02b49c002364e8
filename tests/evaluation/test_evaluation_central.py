"""The central references by hand, on a data set whose right answer is known, and on released data."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from fastpfrec_flwr.baselines.central import item_knn_top_k, item_likeness, popularity_top_k, reference_metrics
from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from tests.evaluation.ranked_lists import agrees_with_trec, rows_of

DATA = Path(os.environ.get("FASTPFREC_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@dataclass
class Table:
    indptr: np.ndarray
    items: np.ndarray


@dataclass
class Split:
    num_users: int
    num_items: int
    train: Table
    validation: Table
    test: Table


def split_of(num_items, train, validation=None, test=None):
    def table(lists):
        rows = rows_of(lists)
        return Table(np.append(0, rows.ends), rows.items)

    none = [[] for _ in train]
    return Split(len(train), num_items, table(train), table(validation or none), table(test or none))


# Items and the users that have them in train: 0 {0, 1, 2}, 1 {0, 1}, 2 {2}, 3 nobody. In validation user 2 adds item 3.
SMALL = split_of(4, train=[[0, 1], [0, 1], [0, 2]], validation=[[], [], [3]], test=[[2], [3], [1]])


def test_popularity_by_hand():
    # Counts in train 3, 2, 1, 0; for test 3, 2, 1, 1: items 2 and 3 tie, the smaller id goes first.
    assert popularity_top_k(SMALL, "validation", top_k=3).tolist() == [[2, 3, -1], [2, 3, -1], [1, 3, -1]]
    assert popularity_top_k(SMALL, "test", top_k=3).tolist() == [[2, 3, -1], [2, 3, -1], [1, -1, -1]]


def test_likeness_by_hand():
    # Users in common: 0 and 1 two, 0 and 2 one, 1 and 2 none; with shrink 1
    # s_01 = 2 / (sqrt(6) + 1) = 0.57980, s_02 = 1 / (sqrt(3) + 1) = 0.36603, row 0 scaled by their sum 0.94583.
    users = sparse.csr_array(np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], np.float32))
    expected = np.zeros((4, 4))
    expected[0, 1], expected[0, 2] = 0.57980 / 0.94583, 0.36603 / 0.94583
    expected[1, 0] = expected[2, 0] = 1.0
    np.testing.assert_allclose(item_likeness(users, 3, 1.0).toarray(), expected, atol=1e-5)
    nearest = item_likeness(users, 1, 1.0).toarray()
    assert nearest[0].tolist() == [0, 1, 0, 0]


def test_item_knn_by_hand():
    # User 0 has 0 and 1: item 2 scores 0.387, item 3 nothing. User 2 has 0 and 2: item 1 scores 0.613, item 3 nothing.
    assert item_knn_top_k(SMALL, "validation", top_k=2, shrink=1.0).tolist() == [[2, 3], [2, 3], [1, 3]]
    # For test user 2 has item 3 too, which makes it like items 0 and 2 and leaves only item 1 to recommend.
    assert item_knn_top_k(SMALL, "test", top_k=2, shrink=1.0)[2].tolist() == [1, -1]
    # With one neighbour only, item 0 points to item 1 alone: user 0 scores nothing, and ids decide.
    assert item_knn_top_k(SMALL, "validation", top_k=2, neighbours=1, shrink=1.0)[0].tolist() == [2, 3]


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="neighbours must be >= 1"):
        item_knn_top_k(SMALL, neighbours=0)
    with pytest.raises(ValueError, match="phase must be"):
        popularity_top_k(SMALL, "train")


def test_checkerboard():
    # Even users have even items, odd users odd ones, all but one, which is their test item: neighbours find it at once,
    # popularity cannot tell the two halves apart.
    everything = [[item for item in range(30) if item % 2 == user % 2] for user in range(60)]
    missing = [[items[user % 15]] for user, items in enumerate(everything)]
    train = [[item for item in items if item not in gone] for items, gone in zip(everything, missing, strict=True)]
    split = split_of(30, train, test=missing)
    result = reference_metrics(split)
    assert result["item_knn"]["ndcg@10"] == 1.0
    assert result["popularity"]["ndcg@10"] < 0.6


def test_blocks_do_not_matter(monkeypatch):
    generator = np.random.default_rng(1)
    train = [generator.permutation(50)[: generator.integers(1, 15)].tolist() for _ in range(40)]
    split = split_of(50, train)
    whole = item_knn_top_k(split, neighbours=5)
    monkeypatch.setattr("fastpfrec_flwr.baselines.central.BLOCK_BYTES", 4 * 50 * 7)
    np.testing.assert_array_equal(item_knn_top_k(split, neighbours=5), whole)


@pytest.fixture(scope="module")
def gowalla():
    """Users and items that train knows, renumbered, as the data loaders leave them."""
    folder = DATA / "gowalla-100k"
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}")
    train, test = (np.loadtxt(folder / f"{part}.txt", dtype=np.int64)[:, :2] for part in ("train", "test"))
    users, items = np.unique(train[:, 0]), np.unique(train[:, 1])
    test = test[np.isin(test[:, 0], users) & np.isin(test[:, 1], items)]

    def table(pairs):
        owners, ids = np.searchsorted(users, pairs[:, 0]), np.searchsorted(items, pairs[:, 1])
        order = np.lexsort((ids, owners))
        counts = np.bincount(owners, minlength=users.size)
        return Table(np.append(0, np.cumsum(counts)), ids[order].astype(np.int32))

    return Split(users.size, items.size, table(train), table(np.empty((0, 2), np.int64)), table(test))


def test_references_on_gowalla(gowalla):
    result = reference_metrics(gowalla)
    assert result["popularity"]["hit_ratio_micro@10"] == pytest.approx(0.0602, abs=5e-4)
    assert result["popularity"]["ndcg@10"] == pytest.approx(0.0652, abs=5e-4)
    assert result["item_knn"]["hit_ratio_micro@10"] == pytest.approx(0.1111, abs=5e-4)
    assert result["item_knn"]["ndcg@20"] == pytest.approx(0.1422, abs=5e-4)


def test_real_lists_agree_with_trec(gowalla):
    truth = [row.tolist() for row in np.split(gowalla.test.items, gowalla.test.indptr[1:-1])]
    agrees_with_trec(popularity_top_k(gowalla), truth)


def test_random_vectors_on_gowalla_rank_at_chance(gowalla):
    generator = np.random.default_rng(0)
    users = generator.normal(size=(gowalla.num_users, 16)).astype(np.float32)
    table = generator.normal(size=(gowalla.num_items, 16)).astype(np.float32)
    top = rank_top_k(users, table, Rows.of_csr(gowalla.train))
    # Twenty items of about 6,978 unmasked: .0029. Items that point the same way are listed together, hence the width.
    result = metrics(metric_sums(top, Rows.of_csr(gowalla.test)))
    assert result["hit_ratio_micro@20"] == pytest.approx(0.0029, abs=0.0015)
