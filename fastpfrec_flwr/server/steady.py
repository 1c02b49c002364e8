"""Rows that are pulled one way for longer than any others: the check that sees one promoted item.

Two users of a hundred who push an item look, one by one, like two who like it, and so do their nodes' means. What tells them
apart is time. An honest row is pulled to its place and then to and fro about it; a pushed one is pulled the same way for as long as
it is pushed, because the push does not weaken as the row gives way. With G_r the row's average change in a round and averages over
about 50 rounds,

    steadiness_r = |mean of G_r|^2 / mean of |G_r|^2,

between 0 and 1, which needs nothing that the server has not got. How steady honest rows are depends on cohort, data and time, so a
row is compared with the others of its round. What is found may turn, but stays as short as the short rows are: a long row is what
gets an item into everybody's list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.server.steps import Pull, ServerState, ServerStep

MEMORY = 0.98
# Before that many steps many rows are still on their way: the most popular items of Kindle would be found, and would stay found,
# because a row that is kept from its place is pulled there for ever.
WARM_UP = 30
# The row that others are compared with, and the one that is called short.
STEADY, SHORT = 0.99, 0.1
# A row that was moved once in all rounds has 1 - MEMORY; noise alone comes to half of that.
LEAST = 0.08
# With fewer rows the 99th percentile is a row or two, which may be the pushed ones.
FEWEST_ROWS = 200
_ROWS_PER_TASK = 4096


@dataclass(frozen=True)
class SteadyRows:
    """Another step, after which rows that are pulled one way stay short.

    Attributes
    ----------
    step : the other one. threshold : a row is found that is more than so many times as steady as the 99th percentile of all rows.
    """

    step: ServerStep
    threshold: float
    threads: int = 1

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        after = self.step.apply(state, change, server_round)
        pull, steadiness = followed(state.pull, change, self.threads)
        if pull.steps >= WARM_UP and len(change) >= FEWEST_ROWS:
            bound = max(self.threshold * float(np.quantile(steadiness, STEADY)), LEAST)
            found = np.flatnonzero(steadiness > bound)
            pull = replace(pull, found=tuple(found.tolist()))
            shorten(after.item_table, found)
        return replace(after, pull=pull)


def followed(
    pull: Pull | None, change: NDArray[np.floating[Any]], threads: int = 1
) -> tuple[Pull, NDArray[np.float64]]:
    """The running averages after one more round, and each row's steadiness; nothing is changed in place.

    Parameters
    ----------
    pull : averages so far, None before the first round. change : (rows, k) W_s - E.

    Returns
    -------
    The averages, and (rows,) in [0, 1].
    """
    if pull is None:
        pull = Pull(np.zeros(change.shape, np.float32), np.zeros(len(change), np.float32), 0)
    mean, square, steadiness = np.empty_like(pull.mean), np.empty_like(pull.square), np.empty(len(change))
    steps = pull.steps + 1
    # |mean|^2 has the start's correction twice, the mean square once.
    correction = 1.0 - MEMORY**steps

    def run(start: int) -> None:
        stop = min(start + _ROWS_PER_TASK, len(change))
        _follow(pull.mean, pull.square, change, correction, start, stop, mean, square, steadiness)

    in_parallel(run, range(0, len(change), _ROWS_PER_TASK), threads)
    return Pull(mean, square, steps), steadiness


@compiled
def _follow(
    mean: Any,
    square: Any,
    change: Any,
    correction: float,
    start: int,
    stop: int,
    new_mean: Any,
    new_square: Any,
    steadiness: Any,
) -> None:
    for t in range(start, stop):
        now, length = 0.0, 0.0
        for c in range(change.shape[1]):
            value = MEMORY * mean[t, c] + (1.0 - MEMORY) * change[t, c]
            new_mean[t, c] = value
            length += value * value
            now += change[t, c] * change[t, c]
        both = MEMORY * square[t] + (1.0 - MEMORY) * now
        new_square[t] = both
        steadiness[t] = length / correction / both if both > 0.0 else 0.0


def shorten(table: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
    """Scale `rows` of a table, in place, down to the 10th percentile of all rows' lengths."""
    if len(rows) == 0:
        return
    lengths = np.sqrt(np.einsum("ij,ij->i", table, table, dtype=np.float64))
    bound = float(np.quantile(lengths, SHORT))
    scale = np.minimum(1.0, bound / np.maximum(lengths[rows], 1e-12))
    table[rows] *= scale[:, None].astype(np.float32)
