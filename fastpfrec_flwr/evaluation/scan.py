"""Compiled loops of the ranking: threads may call them at the same time, each on rows of its own.

Every list is ordered by score, best first, and among equal scores by item id, smallest first. Loops visit items in
ascending id, so an item that only equals the last one of a full list never enters it: a strict comparison settles ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled_in_order

Function = TypeVar("Function", bound=Callable[..., object])
CHUNK = 64  # scores looked at together: enough for vector instructions, and few chunks hold a candidate


def _compiled(function: Function) -> Function:
    """Compile as `exact_score` needs it: fast-math may reorder sums, and it stands on a fixed order."""
    return cast(Function, compiled_in_order(function))


@_compiled
def mask_rows(
    scores: NDArray[np.float32],
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """Set the scores (block, items) of masked items to minus infinity; block row r masks `items[starts[r]:ends[r]]`."""
    for row in range(scores.shape[0]):
        for entry in range(starts[row], ends[row]):
            scores[row, items[entry]] = -np.inf


@_compiled
def insert(best: NDArray[np.float64], ids: NDArray[np.int32], filled: int, score: float, item: int) -> int:
    """Put an item into a sorted list that has `filled` of its places taken; returns how many are taken afterwards.

    best, ids : (top_k,) scores and items. The caller has made sure that the item belongs into the list.
    """
    place = min(filled, best.size - 1)
    while place > 0 and best[place - 1] < score:
        best[place] = best[place - 1]
        ids[place] = ids[place - 1]
        place -= 1
    best[place] = score
    ids[place] = item
    return min(filled + 1, best.size)


@_compiled
def reaches(scores: NDArray[np.float32], bar: np.float32) -> bool:
    """Whether any of a full chunk's scores is at least `bar`; no early exit, so that it runs in vector instructions."""
    above = np.int32(0)
    for place in range(CHUNK):
        above = np.int32(above | np.int32(scores[place] >= bar))
    return bool(above != 0)


@_compiled
def gather(
    scores: NDArray[np.float32],
    slack: float,
    best: NDArray[np.float64],
    ids: NDArray[np.int32],
    candidates: NDArray[np.int32],
) -> int:
    """List the best of one row of scores (items,), minus infinity left out, and all items that come close to the list.

    Parameters
    ----------
    slack : how far below the list's last score an item still counts as close, at least 0.
    best, ids : (top_k,) written: the list by the scores given.
    candidates : (items,) written: ids, ascending, of all items whose score is at least the list's last score less
        `slack`; further places are overwritten.

    Returns
    -------
    How many candidates there are.
    """
    lowest = np.float32(-np.inf)
    filled = 0
    found = 0
    bar = lowest
    for start in range(0, scores.size, CHUNK):
        stop = min(start + CHUNK, scores.size)
        if stop - start == CHUNK and not reaches(scores[start:stop], bar):
            continue
        for item in range(start, stop):
            score = scores[item]
            if score >= bar and score > lowest:
                candidates[found] = item
                found += 1
                if filled < best.size or score > best[filled - 1]:
                    filled = insert(best, ids, filled, score, item)
                    if filled == best.size:
                        bar = np.float32(best[filled - 1] - slack)
    ids[filled:] = -1
    kept = 0
    for place in range(found):  # leave out those that were close only while the list was worse
        if scores[candidates[place]] >= bar:
            candidates[kept] = candidates[place]
            kept += 1
    return kept


@_compiled
def rank_rows(scores: NDArray[np.float32], top_items: NDArray[np.int32]) -> None:
    """Write the ranked items of `scores` (users, items) into `top_items` (users, top_k), then -1."""
    best = np.empty(top_items.shape[1], np.float64)
    candidates = np.empty(scores.shape[1], np.int32)
    for row in range(scores.shape[0]):
        gather(scores[row], 0.0, best, top_items[row], candidates)


@_compiled
def exact_score(user: NDArray[np.float32], item: NDArray[np.float32]) -> float:
    """Dot product of two (k,) float32 vectors, added up in float64 from the first entry to the last.

    The product of two float32 numbers is exact in float64, so only the order of the sum matters: it is fixed here.
    """
    total = 0.0
    for column in range(user.size):
        total += np.float64(user[column]) * np.float64(item[column])
    return total


@_compiled
def rank_exactly(
    user: NDArray[np.float32],
    table: NDArray[np.float32],
    candidates: NDArray[np.int32],
    best: NDArray[np.float64],
    ids: NDArray[np.int32],
) -> None:
    """Rank candidates, ascending ids, by their exact score: `best`, `ids` (top_k,) are written, then -1."""
    filled = 0
    for item in candidates:
        score = exact_score(user, table[item])
        if filled < best.size or score > best[filled - 1]:
            filled = insert(best, ids, filled, score, item)
    ids[filled:] = -1


@_compiled
def rank_block(
    users: NDArray[np.float32],
    table: NDArray[np.float32],
    scores: NDArray[np.float32],
    slacks: NDArray[np.float64],
    top_items: NDArray[np.int32],
) -> None:
    """Rank by exact scores, looking only at items that approximate scores leave in question.

    Parameters
    ----------
    users : (block, k) vectors.
    table : (items, k) vectors.
    scores : (block, items) approximate scores, minus infinity where masked.
    slacks : (block,) how far below the list's last approximate score an item may still belong into the list.
    top_items : (block, top_k) written: ranked items, then -1.
    """
    best = np.empty(top_items.shape[1], np.float64)
    candidates = np.empty(table.shape[0], np.int32)
    for row in range(users.shape[0]):
        found = gather(scores[row], slacks[row], best, top_items[row], candidates)
        rank_exactly(users[row], table, candidates[:found], best, top_items[row])


@_compiled
def rank_listed(
    users: NDArray[np.float32],
    table: NDArray[np.float32],
    candidates: NDArray[np.int32],
    indptr: NDArray[np.int64],
    top_items: NDArray[np.int32],
) -> None:
    """As `rank_block`, with the items in question given: row r's, ascending, from `indptr[r]` to `indptr[r + 1]`."""
    best = np.empty(top_items.shape[1], np.float64)
    for row in range(users.shape[0]):
        rank_exactly(users[row], table, candidates[indptr[row] : indptr[row + 1]], best, top_items[row])
