"""The items of a SuperNode's users as rows: what they learn from in each phase, and the rows of some users alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.evaluation.rows import Rows, RowsLike, entries_of


def history_of(shard: Shard, phase: str, refit_rows: Rows | None = None) -> Rows:
    """What the users learn from: their train items, on a refit their validation items too.

    Parameters
    ----------
    refit_rows : `merged_rows(shard)`, if the caller has them already.
    """
    if phase == "train":
        return Rows(shard.train.items, shard.train.starts, shard.train.ends)
    return refit_rows if refit_rows is not None else merged_rows(shard)


def merged_rows(shard: Shard) -> Rows:
    """Each user's train and validation items together, ascending: what a refit learns from."""
    both = [np.sort(np.concatenate([shard.train.row(i), shard.validation.row(i)])) for i in range(len(shard.users))]
    lengths = np.array([len(row) for row in both], np.int64)
    ends = np.cumsum(lengths)
    return Rows(np.concatenate([*both, np.empty(0, np.int32)]).astype(np.int32), ends - lengths, ends)


def own_rows(rows: RowsLike, positions: NDArray[np.int64]) -> Rows:
    """Copy these users' rows alone: the ranking checks every item that it is given, and nobody else's may be read."""
    starts, ends = rows.starts[positions], rows.ends[positions]
    _, items = entries_of(Rows(rows.items, starts, ends))
    bounds = np.cumsum(ends - starts)
    return Rows(items, bounds - (ends - starts), bounds)
