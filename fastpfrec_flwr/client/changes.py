"""What a cohort's updates become before they are made private: whole changes where devices keep deviations, a column of counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.deviation import Deviation, add_change, after_round
from fastpfrec_flwr.client.state import StateError
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT


def current_deviations(kept: list[Deviation], server_round: int, blend_weight: float) -> list[Deviation]:
    """Each user's D_i when `server_round` begins.

    Raises
    ------
    StateError if one is of that round or a later one.
    """
    if any(deviation.server_round >= server_round for deviation in kept):
        raise StateError(f"users of this device have trained in round {server_round} already; a round is trained once")
    return [deviation.at_start_of(server_round, blend_weight) for deviation in kept]


def whole_changes(
    updates: LocalUpdates, deviations: list[Deviation], server_round: int, blend_weight: float
) -> tuple[LocalUpdates, list[Deviation]]:
    """Theta_i minus the table on every row where it is not zero, and the D_i that the users keep of it."""
    trained = [
        add_change(deviation, updates.rows[start:stop], updates.changes[start:stop])
        for deviation, start, stop in zip(deviations, updates.pointer[:-1], updates.pointer[1:], strict=True)
    ]
    k = updates.changes.shape[1]
    whole = replace(
        updates,
        rows=np.concatenate([np.empty(0, np.int32), *(each.rows for each in trained)]),
        pointer=np.cumsum([0, *(len(each.rows) for each in trained)], dtype=np.int64),
        changes=np.concatenate([np.empty((0, k), np.float32), *(each.values for each in trained)]),
    )
    return whole, [after_round(each, server_round, blend_weight) for each in trained]


def with_counts(updates: LocalUpdates, graphs: LocalGraphs, trained: NDArray[np.bool_]) -> LocalUpdates:
    """One more column: `COUNT_UNIT` on a user's own items in the first round that it trains, zero otherwise.

    Own are the items that its graph calls so: with randomised response the drawn ones.

    Parameters
    ----------
    trained : (users,) who has trained before.
    """
    counts = np.zeros((len(updates.rows), 1), np.float32)
    for j in np.flatnonzero(~trained):
        start, stop = updates.pointer[j], updates.pointer[j + 1]
        own = graphs.items[graphs.pointer[j] : graphs.pointer[j] + graphs.own_counts[j]]
        counts[start:stop, 0] = COUNT_UNIT * np.isin(updates.rows[start:stop], own, assume_unique=True)
    return replace(updates, changes=np.hstack([updates.changes, counts]))
