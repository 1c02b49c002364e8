"""Scores for inference: user vectors from true items, the mean user for those without items, popularity bias."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled


@compiled
def _vectors(
    table: Any, weights: Any, items: Any, starts: Any, ends: Any, private: Any, user_weight: Any, scale: Any, out: Any
) -> None:
    k = table.shape[1]
    total = np.empty(k, np.float32)
    for u in range(starts.shape[0]):
        total[:] = 0.0
        for q in range(starts[u], ends[u]):
            row = table[items[q]]
            weight = weights[items[q]]
            for c in range(k):
                total[c] += weight * row[c]
        degree = scale / np.float32(np.sqrt(max(ends[u] - starts[u], 1)))
        for c in range(k):
            out[u, c] = user_weight * private[u, c] + degree * total[c]


def inference_user_vectors(
    item_table: NDArray[np.float32],
    weights: NDArray[np.float32],
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    private: NDArray[np.float32],
    user_weight: float,
    neighbour_weight: float,
) -> NDArray[np.float32]:
    """User vectors for ranking, from the users' true items (no false ones).

    Parameters
    ----------
    item_table : (items, k). weights : (items,) norm weights.
    items, starts, ends : user u's own items are `items[starts[u]:ends[u]]`.
    private : (users, k) p_u.

    Returns
    -------
    (users, k) float32; a user without items gets the mean over the users that have some (zero if nobody has).
    """
    out = np.empty((len(starts), item_table.shape[1]), np.float32)
    _vectors(
        item_table,
        weights,
        items,
        starts,
        ends,
        private,
        np.float32(user_weight),
        np.float32(neighbour_weight),
        out,
    )
    empty = starts == ends
    if empty.any():
        out[empty] = out[~empty].mean(axis=0) if not empty.all() else 0.0
    return out
