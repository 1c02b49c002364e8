"""Two references that need no training, with all interactions in one place: popularity and item-based neighbours.

A federated model that does not beat them has learnt nothing that a count could not tell.

ItemKNN (Deshpande and Karypis: Item-based top-N recommendation algorithms, TOIS 2004): items are alike when the same
users have them, s_ij = |U_i and U_j| / (sqrt(|U_i| |U_j|) + shrink). Of each item only the nearest neighbours are kept,
their likeness scaled to sum to one, so that rare and common items of a user have an equal say; a user's score of an
item is the sum of its scaled likeness to the items that the user has.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_in_blocks, rank_scores, rank_top_k
from fastpfrec_flwr.evaluation.rows import CsrLike, Rows

Phase = Literal["validation", "test"]
Table: TypeAlias = "sparse.csr_array[Any]"
# Chosen on cuts of gowalla-100k's train, drawn evenly and drawn by popularity: both are flat in the neighbours; from
# 30 to 100, shrinkage costs the even cut 1 % of NDCG and gains the other 10 %.
NEIGHBOURS = 100
SHRINK = 100.0
BLOCK_BYTES = 32 << 20  # of dense scores held at a time


class SplitLike(Protocol):
    """A data set cut into three parts, each with one row a user."""

    @property
    def num_users(self) -> int:
        """Number of rows of each part."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""

    @property
    def train(self) -> CsrLike:
        """What models learn from."""

    @property
    def validation(self) -> CsrLike:
        """What settings are chosen on."""

    @property
    def test(self) -> CsrLike:
        """What is reported."""


def popularity_top_k(split: SplitLike, phase: Phase = "test", *, top_k: int = 20) -> NDArray[np.int32]:
    """Recommend to everyone the items that most users have and this one has not.

    Parameters
    ----------
    split : the data.
    phase : `validation` counts and masks train; `test` counts and masks train and validation.
    top_k : length of the lists.

    Returns
    -------
    (users, top_k) int32, as from `evaluation.ranking.rank_top_k`.
    """
    counts = np.asarray(history_matrix(split, phase).sum(axis=0)).ravel()  # (items,)
    return rank_top_k(
        np.zeros((split.num_users, 1), np.float32),
        np.zeros((split.num_items, 1), np.float32),
        history(split, phase),
        top_k=top_k,
        item_bias=counts.astype(np.float32),
    )


def item_knn_top_k(
    split: SplitLike,
    phase: Phase = "test",
    *,
    top_k: int = 20,
    neighbours: int = NEIGHBOURS,
    shrink: float = SHRINK,
) -> NDArray[np.int32]:
    """Recommend items like those that the user has; see the module's text.

    Parameters
    ----------
    split, phase, top_k : as for `popularity_top_k`.
    neighbours : most similar items kept for each item.
    shrink : added to the denominator of the cosine, in users: mistrust of items that few users have.

    Returns
    -------
    (users, top_k) int32, as from `evaluation.ranking.rank_top_k`; items without any score follow in order of their id.

    Raises
    ------
    ValueError if `neighbours` is below 1 or `shrink` below 0.
    """
    if neighbours < 1 or shrink < 0:
        raise ValueError(f"neighbours must be >= 1 and shrink >= 0, got {neighbours} and {shrink}")
    users = history_matrix(split, phase)  # (users, items)
    likeness = item_likeness(users, neighbours, shrink)  # (items, neighbour items)
    masks = history(split, phase)

    def scores_of(first: int, last: int) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = (users[first:last] @ likeness).toarray()  # (block, items)
        return scores

    return rank_in_blocks(split.num_users, split.num_items, scores_of, masks, top_k=top_k)


def item_likeness(users: Table, neighbours: int, shrink: float) -> Table:
    """Scaled likeness of each item to its nearest neighbours; see the module's text.

    Parameters
    ----------
    users : (users, items) ones where a user has an item.
    neighbours, shrink : as for `item_knn_top_k`.

    Returns
    -------
    (items, items) float32: at most `neighbours` entries a row, which sum to one; an item is not its own neighbour,
    and of equally near ones those with smaller ids are kept.
    """
    items = users.T.tocsr()  # (items, users)
    num_items = items.shape[0]
    roots = np.sqrt(np.diff(items.indptr)).astype(np.float32)  # (items,)
    keep = min(neighbours, num_items)
    owners, others, values = [], [], []
    for first, last in _blocks(num_items, num_items):
        common = (items[first:last] @ users).toarray()  # (block, items) users in common
        block = common / np.maximum(roots[first:last, None] * roots[None, :] + np.float32(shrink), np.float32(1e-9))
        itself = Rows(np.arange(first, last, dtype=np.int32), np.arange(last - first), np.arange(1, last - first + 1))
        nearest = rank_scores(block, itself, top_k=keep)  # (block, keep); `block` is minus infinity on the diagonal now
        alike = np.take_along_axis(block, np.maximum(nearest, 0).astype(np.int64), axis=1)
        row, place = np.nonzero((nearest >= 0) & (alike > 0))
        owners.append(row + first)
        others.append(nearest[row, place])
        sums = np.where(nearest >= 0, alike, 0).sum(axis=1)  # (block,)
        values.append(alike[row, place] / sums[row])
    coordinates = (np.concatenate(owners), np.concatenate(others))
    likeness: Any = sparse.csr_array((np.concatenate(values), coordinates), shape=(num_items, num_items))
    return cast(Table, likeness)  # scipy's stubs take the shape for one-dimensional


def reference_metrics(split: SplitLike, phase: Phase = "test") -> dict[str, dict[str, float]]:
    """Metrics of both references on one split.

    Returns
    -------
    `popularity` and `item_knn`, each as from `evaluation.metrics.metrics`.
    """
    truth = Rows.of_csr(split.test if phase == "test" else split.validation)
    lists = {"popularity": popularity_top_k(split, phase), "item_knn": item_knn_top_k(split, phase)}
    return {name: metrics(metric_sums(top_items, truth)) for name, top_items in lists.items()}


def history(split: SplitLike, phase: Phase) -> list[Rows]:
    """What a model may know of each user in a phase."""
    if phase not in ("validation", "test"):
        raise ValueError(f"phase must be 'validation' or 'test', got {phase!r}")
    parts = [split.train] if phase == "validation" else [split.train, split.validation]
    return [Rows.of_csr(part) for part in parts]


def history_matrix(split: SplitLike, phase: Phase) -> Table:
    """Users' histories as a (users, items) float32 table of ones."""
    shape = (split.num_users, split.num_items)
    table: Any = sparse.csr_array(shape, dtype=np.float32)  # scipy's stubs lose the shape on the way
    for rows in history(split, phase):
        indptr = np.append(rows.starts, rows.ends[-1:]) if rows.ends.size else np.zeros(1, np.int64)
        table = table + sparse.csr_array((np.ones(rows.items.size, np.float32), rows.items, indptr), shape=shape)
    table.data[:] = 1.0  # a pair that stands twice is still one user
    return cast(Table, table)


def _blocks(rows: int, columns: int) -> list[tuple[int, int]]:
    size = max(1, BLOCK_BYTES // (4 * max(columns, 1)))
    return [(first, min(first + size, rows)) for first in range(0, rows, size)]
