"""Local graphs: one star per user, with the false items that hide which edges are true (paper, graph perturbation).

False items are a function of the user's own secret, so they are the same in every round: fresh draws would intersect to the
truth within a few rounds.

Of the paper's one-sided forms the loss still takes the true items only, so what leaves tells them from the false ones. With
`randomised-response` it cannot: each item's place in the star is one draw (kept with probability q where it is the user's, added
with p where it is not), and the drawn star stands for the truth from then on. All of its items are positives of the loss. So all
that training sends is made of the draws, and one interaction costs max(ln(q/p), ln((1-p)/(1-q))) once, over all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import draw_unmarked, stream_value


@dataclass(frozen=True)
class LocalGraphs:
    """The stars of a cohort, end to end.

    Attributes
    ----------
    items : (edges,) int32; of each user first its own train items, then its false items. With randomised response all of them
        count as its own, ascending.
    pointer : (users + 1,) int64; user u's neighbourhood N'(u) is `items[pointer[u]:pointer[u + 1]]`.
    own_counts : (users,) int64; |N(u)|.
    num_items : rows of the item table.
    """

    items: NDArray[np.int32]
    pointer: NDArray[np.int64]
    own_counts: NDArray[np.int64]
    num_items: int

    @property
    def num_users(self) -> int:
        """Users in the cohort."""
        return len(self.own_counts)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """(users,) |N'(u)|."""
        return np.diff(self.pointer)

    def part(self, first: int, last: int) -> LocalGraphs:
        """The stars of users [first, last)."""
        if (first, last) == (0, self.num_users):
            return self
        begin, end = self.pointer[first], self.pointer[last]
        return LocalGraphs(
            self.items[begin:end], self.pointer[first : last + 1] - begin, self.own_counts[first:last], self.num_items
        )


def build_local_graphs(
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    secrets: NDArray[np.uint64],
    num_items: int,
    perturbation: str,
    probability: float,
    keep_probability: float = 1.0,
) -> LocalGraphs:
    """Build each user's perturbed star.

    Parameters
    ----------
    items, starts, ends : user u's own train items are `items[starts[u]:ends[u]]`, distinct.
    secrets : (users,) uint64; decides the false items and nothing else.
    num_items : size of the catalogue.
    perturbation : `relative` (max(1, floor(p n)) false items), `bernoulli` (each other item with probability p),
        `randomised-response` (each other item with p, each own one with q), `none`.
    probability : P_pert. keep_probability : q, of randomised response alone.

    Raises
    ------
    ValueError for an unknown perturbation.
    """
    own_counts = (ends - starts).astype(np.int64)
    free = num_items - own_counts
    if perturbation == "randomised-response":
        return _randomised_response(items, starts, ends, secrets, num_items, probability, keep_probability)
    if perturbation == "none":
        false_counts = np.zeros_like(own_counts)
    elif perturbation == "relative":
        wanted = np.maximum(1, np.floor(probability * own_counts)).astype(np.int64)
        # A user must keep at least one item that is neither own nor false: something has to be a negative.
        false_counts = np.where(own_counts > 0, np.clip(wanted, 0, np.maximum(free - 1, 0)), 0)
    elif perturbation == "bernoulli":
        false_counts = _bernoulli_counts(items, starts, ends, secrets, num_items, probability)
    else:
        raise ValueError(f"perturbation must be relative, bernoulli, randomised-response or none, got {perturbation!r}")
    pointer = np.zeros(len(own_counts) + 1, np.int64)
    np.cumsum(own_counts + false_counts, out=pointer[1:])
    flat = np.empty(pointer[-1], np.int32)
    _fill(items, starts, ends, secrets, num_items, probability, perturbation == "bernoulli", pointer, flat)
    return LocalGraphs(flat, pointer, own_counts, num_items)


def _randomised_response(
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    secrets: NDArray[np.uint64],
    num_items: int,
    add: float,
    keep: float,
) -> LocalGraphs:
    counts = np.zeros(len(starts), np.int64)
    _respond(items, starts, ends, secrets, num_items, add, keep, counts, np.zeros(0, np.int64), np.zeros(0, np.int32))
    pointer = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(counts, out=pointer[1:])
    flat = np.empty(pointer[-1], np.int32)
    _respond(items, starts, ends, secrets, num_items, add, keep, counts, pointer, flat)
    return LocalGraphs(flat, pointer, counts, num_items)


@compiled
def _respond(
    items: Any,
    starts: Any,
    ends: Any,
    secrets: Any,
    num_items: int,
    add: float,
    keep: float,
    counts: Any,
    pointer: Any,
    flat: Any,
) -> None:
    """Count each user's drawn items, or with a `pointer` write them down: one value per user and item decides."""
    # Of 2^32 values so many; a probability of 1 takes them all.
    below_add = np.uint64(np.rint(add * 4294967296.0))
    below_keep = np.uint64(np.rint(keep * 4294967296.0))
    marks = np.zeros(num_items, np.uint8)
    for u in range(starts.shape[0]):
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 1
        count = 0
        for item in range(num_items):
            below = below_keep if marks[item] == 1 else below_add
            if stream_value(secrets[u], np.uint64(item)) >> np.uint64(32) < below:
                if flat.shape[0] > 0:
                    flat[pointer[u] + count] = item
                count += 1
        counts[u] = count
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 0


@compiled
def _bernoulli_counts(items: Any, starts: Any, ends: Any, secrets: Any, num_items: int, probability: float) -> Any:
    """Count each user's Bernoulli false items: the same draws as `_fill` makes."""
    threshold = np.uint64(probability * 4294967295.0)
    counts = np.zeros(starts.shape[0], np.int64)
    marks = np.zeros(num_items, np.uint8)
    for u in range(starts.shape[0]):
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 1
        for item in range(num_items):
            if marks[item] == 0 and stream_value(secrets[u], np.uint64(item)) >> np.uint64(32) < threshold:
                counts[u] += 1
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 0
    return counts


@compiled
def _fill(
    items: Any,
    starts: Any,
    ends: Any,
    secrets: Any,
    num_items: int,
    probability: float,
    bernoulli: bool,
    pointer: Any,
    flat: Any,
) -> None:
    threshold = np.uint64(probability * 4294967295.0)
    marks = np.zeros(num_items, np.uint8)
    for u in range(starts.shape[0]):
        position = pointer[u]
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 1
            flat[position] = items[q]
            position += 1
        if bernoulli:
            for item in range(num_items):
                if marks[item] == 0 and stream_value(secrets[u], np.uint64(item)) >> np.uint64(32) < threshold:
                    flat[position] = item
                    position += 1
        else:
            draw_unmarked(secrets[u], marks, num_items, 1, flat[position : pointer[u + 1]])
        for q in range(pointer[u], pointer[u + 1]):
            marks[flat[q]] = 0
        for q in range(starts[u], ends[u]):
            marks[items[q]] = 0
