"""Weighted sums of node means over all rows of the table, block by block, so that a block's sums stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.addresses import address_of, floats_at, ints_at
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.trusted_node.aggregation import NodeMean

_ROWS_PER_BLOCK = 1024


class StackedMeans:
    """Node means side by side, each cut into the same blocks of rows.

    Attributes
    ----------
    blocks : (first, last) row of each block, in order; together they are the table.
    """

    def __init__(self, means: Sequence[NodeMean], num_items: int) -> None:
        bounds = np.append(np.arange(0, num_items, _ROWS_PER_BLOCK), num_items)
        self.blocks = [(int(first), int(last)) for first, last in pairwise(bounds)]
        self._places = np.array([np.searchsorted(mean.rows, bounds) for mean in means])  # (means, bounds)
        rows = [np.ascontiguousarray(mean.rows, np.int32) for mean in means]
        values = [np.ascontiguousarray(mean.values, np.float32) for mean in means]
        touched_by = [np.ascontiguousarray(mean.touched_by, np.int32) for mean in means]
        self._kept = rows, values, touched_by  # what the addresses point at must live as long as they do
        self._width = means[0].values.shape[1]
        self._addresses = (
            np.array([address_of(each, "int32") for each in rows]),
            np.array([address_of(each, "float32") for each in values]),
            np.array([address_of(each, "int32") for each in touched_by]),
        )

    def add(
        self,
        block: int,
        shares: NDArray[np.float32],
        touch_weights: NDArray[np.float64],
        total: NDArray[np.float32],
        touches: NDArray[np.float64],
    ) -> None:
        """Write the rows of one block: `total` = sum of shares x means, `touches` = sum of weights x clients that sent the row.

        Parameters
        ----------
        block : number in `blocks`. shares, touch_weights : (means,).
        total : (items, k), k the means' columns or fewer. touches : (items,).
        """
        starts, stops = self._places[:, block].copy(), self._places[:, block + 1].copy()
        _add_means(
            *self._addresses, self._width, starts, stops, shares, touch_weights, *self.blocks[block], total, touches
        )


@compiled
def _add_means(
    rows_at: Any,
    values_at: Any,
    touched_at: Any,
    width: int,
    starts: Any,
    stops: Any,
    shares: Any,
    touch_weights: Any,
    first: int,
    last: int,
    total: Any,
    touches: Any,
) -> None:
    """Sums over rows `first` to `last`; starts, stops : (means,) which entries of each mean are these rows."""
    k = total.shape[1]
    for t in range(first, last):
        touches[t] = 0.0
        for c in range(k):
            total[t, c] = np.float32(0.0)
    for m in range(rows_at.shape[0]):
        rows = numba.carray(ints_at(rows_at[m]), (stops[m],))
        values = numba.carray(floats_at(values_at[m]), (stops[m], width))
        touched_by = numba.carray(ints_at(touched_at[m]), (stops[m],))
        share = shares[m]
        for t in range(starts[m], stops[m]):
            # Views first: with the index read anew for each element the compiler could not vectorise.
            out, mean = total[rows[t]], values[t]
            touches[rows[t]] += touch_weights[m] * touched_by[t]
            for c in range(k):
                out[c] += share * mean[c]
