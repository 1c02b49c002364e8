"""What a cohort will touch this round: its negatives, the rows it uploads, and where everything stands in them.

Negatives are drawn outside N'(u), that is outside the *train* items (and the false ones). Test items are candidates like any
other: leaving them out would tell the model the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import draw_unmarked, stream_value
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.parallel import in_parallel

# A task marks items in an array as long as the catalogue: with few users that would be most of its work.
_USERS_PER_TASK = 64


@dataclass(frozen=True)
class CohortPlan:
    """Touched rows of a cohort, end to end.

    Attributes
    ----------
    rows : (touched,) int32 item rows, of each user sorted and distinct.
    pointer : (users + 1,) int64 into `rows`.
    edge_slots : (edges,) int64; place in `rows` of each entry of the graphs' `items`.
    negative_slots : (users, S) for a shared set, (targets, S) per positive; int64 places in `rows`, -1 where the catalogue
        has fewer than S items outside the neighbourhood.
    """

    rows: NDArray[np.int32]
    pointer: NDArray[np.int64]
    edge_slots: NDArray[np.int64]
    negative_slots: NDArray[np.int64]


def plan_cohort(
    graphs: LocalGraphs, keys: NDArray[np.uint64], shared: bool, num_negatives: int, threads: int = 1
) -> CohortPlan:
    """Draw the negatives and lay out the touched rows.

    Parameters
    ----------
    graphs : the cohort's stars; every user has at least one own item and at least one item outside N'.
    keys : (users,) uint64, this round's stream per user.
    shared : one set of `num_negatives` distinct items per user, or that many draws per positive (with replacement).
    """
    targets = int(graphs.own_counts.sum())
    if shared:
        counts = np.minimum(num_negatives, graphs.num_items - graphs.degrees)
        slots = np.full((graphs.num_users, num_negatives), -1, np.int64)
    else:
        counts = graphs.own_counts * num_negatives
        slots = np.full((targets, num_negatives), -1, np.int64)
    bounds = np.zeros(graphs.num_users + 1, np.int64)
    np.cumsum(graphs.degrees + counts, out=bounds[1:])
    rows = np.empty(bounds[-1], np.int32)
    edge_slots = np.empty(len(graphs.items), np.int64)
    used = np.zeros(graphs.num_users, np.int64)
    first_target = np.cumsum(graphs.own_counts) - graphs.own_counts

    def run(first: int, last: int) -> None:
        _plan(
            graphs.items, graphs.pointer, graphs.own_counts, graphs.num_items, keys, shared, counts, bounds, first_target,
            first, last, rows, edge_slots, slots, used,
        )  # fmt: skip

    if not shared:
        # Draws with replacement: how many rows a user touches is known only afterwards, so users go one after the other.
        run(0, graphs.num_users)
        return CohortPlan(
            rows[: used.sum()], np.concatenate([[0], np.cumsum(used)]).astype(np.int64), edge_slots, slots
        )
    step = max(_USERS_PER_TASK, -(-graphs.num_users // (4 * threads)))
    tasks = range(0, graphs.num_users, step)
    in_parallel(lambda first: run(first, min(first + step, graphs.num_users)), tasks, threads)
    return CohortPlan(rows, bounds, edge_slots, slots)


@compiled
def _plan(
    items: Any,
    pointer: Any,
    own_counts: Any,
    num_items: int,
    keys: Any,
    shared: bool,
    counts: Any,
    bounds: Any,
    first_target: Any,
    first_user: int,
    last_user: int,
    rows: Any,
    edge_slots: Any,
    slots: Any,
    used: Any,
) -> None:
    # One byte per item, scanned eight at a time: the touched rows come out sorted without sorting.
    marks = np.zeros((num_items + 7) // 8 * 8, np.uint8)
    words = marks.view(np.uint64)
    place = np.empty(num_items, np.int64)
    most = 1
    for u in range(first_user, last_user):
        most = max(most, counts[u])
    drawn = np.empty(most, np.int64)
    position = bounds[first_user] if first_user < last_user else 0
    for u in range(first_user, last_user):
        for q in range(pointer[u], pointer[u + 1]):
            marks[items[q]] = 1
        count = counts[u]
        if shared:
            draw_unmarked(keys[u], marks, num_items, 2, drawn[:count])
        else:
            index = np.uint64(0)
            made = 0
            while made < count:
                value = stream_value(keys[u], index) >> np.uint64(32)
                index += np.uint64(1)
                item: Any = np.int64((value * np.uint64(num_items)) >> np.uint64(32))
                if marks[item] != 1:
                    marks[item] = 2
                    drawn[made] = item
                    made += 1
        first = position
        negatives = 0
        for w in range(words.shape[0]):
            if words[w] != 0:
                for item in range(w * 8, w * 8 + 8):
                    if marks[item] != 0:
                        if shared and marks[item] == 2:
                            slots[u, negatives] = position
                            negatives += 1
                        marks[item] = 0
                        place[item] = position
                        rows[position] = item
                        position += 1
        used[u] = position - first
        for q in range(pointer[u], pointer[u + 1]):
            edge_slots[q] = place[items[q]]
        if not shared:
            width = slots.shape[1]
            for j in range(count):
                slots[first_target[u] + j // width, j % width] = place[drawn[j]]
