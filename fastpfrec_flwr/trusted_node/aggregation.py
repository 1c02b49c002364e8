"""The mean of one node's clients (paper, eq. W_t,i), exact in any order because the values lie on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.trusted_node.uploads import Uploads

# Touched rows per pass over the clients: their sums in float64 should stay in the second-level cache.
_ROWS_PER_BLOCK = 512


@dataclass(frozen=True)
class NodeMean:
    """Unweighted mean of Theta' - E over the clients that a node kept.

    Attributes
    ----------
    clients : how many are behind it. rows : (r,) int32 sorted; every other row's mean is zero (plus cover noise).
    values : (r, k) float32 or float64. touched_by : (r,) int64, how many of the clients sent each row.
    cover_scale : scale of the Laplace noise of each client on the rows that it did not send, still to be drawn, else 0.
    row_squares : (r,) squared norms of the rows of `values` where `node_mean` had them at hand; a changed copy has none.
    """

    clients: int
    rows: NDArray[np.int32]
    values: NDArray[np.floating[Any]]
    touched_by: NDArray[np.int64]
    cover_scale: float
    row_squares: NDArray[np.float64] | None = field(default=None, init=False, repr=False, compare=False)

    def squared_norm(self, num_items: int, normal: float) -> float:
        """||W_t - E||^2 with its cover noise, whose contribution is drawn from its limit.

        Cover noise eta on a carried mean v adds ||eta||^2 + 2 <v, eta>, which is close to normal.

        Parameters
        ----------
        num_items : rows of the table. normal : one standard normal draw.
        """
        carried = self.row_squares
        if carried is None:
            carried = np.empty(len(self.rows))
            _row_squares(self.values, carried)
        k = self.values.shape[1]
        second, of_square, cross = _noise_moments(
            self.touched_by, carried, self.clients, float(num_items - len(self.rows)), 0.0, float(self.cover_scale)
        )
        # A hostile mean may be infinite; the caller looks at what comes out.
        variance = k * of_square + 4.0 * cross
        return float(max(float(carried.sum()) + k * second + math.sqrt(variance) * normal, 0.0))

    def expected_noise(self, num_items: int, noise_scale: float) -> tuple[float, float]:
        """Mean and standard deviation of ||noise||^2, Laplace(noise_scale) on all that was sent and the cover noise."""
        second, of_square, _ = _noise_moments(
            self.touched_by, np.zeros(len(self.rows)), self.clients, float(num_items - len(self.rows)),
            float(noise_scale), float(self.cover_scale),
        )  # fmt: skip
        k = self.values.shape[1]
        return k * second, math.sqrt(k * of_square)


@compiled
def _noise_moments(
    touched_by: Any, carried: Any, clients: int, other_rows: float, noise_scale: float, cover_scale: float
) -> tuple[float, float, float]:
    """Moments of the mean's noise x on one coordinate, summed over all rows: the carried ones and `other_rows` more.

    A Laplace(lambda) draw has variance 2 lambda^2 and fourth cumulant 12 lambda^4; both add over the clients.

    Returns
    -------
    Sum of Var x; sum of Var x^2 = 2 (Var x)^2 + fourth cumulant; sum of Var x times the row's squared norm (`carried`).
    """
    seconds, squares, cross = 0.0, 0.0, 0.0
    for i in range(touched_by.shape[0] + 1):
        carrying = float(touched_by[i]) if i < touched_by.shape[0] else 0.0
        repeats = 1.0 if i < touched_by.shape[0] else other_rows
        covered = clients - carrying
        second = 2.0 * (noise_scale**2 * carrying + cover_scale**2 * covered) / clients**2
        fourth = 12.0 * (noise_scale**4 * carrying + cover_scale**4 * covered) / clients**4
        seconds += repeats * second
        squares += repeats * (2.0 * second * second + fourth)
        if i < touched_by.shape[0]:
            cross += second * carried[i]
    return seconds, squares, cross


@compiled
def _row_squares(values: Any, out: Any) -> None:
    for t in range(values.shape[0]):
        square = 0.0
        for c in range(values.shape[1]):
            square += values[t, c] * values[t, c]
        out[t] = square


@compiled
def _count_touches(rows: Any, pointer: Any, members: Any, counts: Any) -> None:
    for m in range(members.shape[0]):
        for t in range(pointer[members[m]], pointer[members[m] + 1]):
            counts[rows[t]] += 1


@compiled
def _number(counts: Any, place: Any, rows: Any, touched_by: Any) -> int:
    """Number the rows that were touched, ascending; how many there are."""
    found = 0
    for row in range(counts.shape[0]):
        place[row] = found
        if counts[row] > 0:
            rows[found] = row
            touched_by[found] = counts[row]
            found += 1
    return found


@compiled
def _add_values(
    rows: Any, pointer: Any, values: Any, members: Any, cursors: Any, last: int, place: Any, origin: int, sums: Any
) -> None:
    """Add each member's rows from its cursor on, up to row `last`, and move the cursors."""
    k = values.shape[1]
    for m in range(members.shape[0]):
        t, stop = cursors[m], pointer[members[m] + 1]
        while t < stop and rows[t] <= last:
            total, row = sums[place[rows[t]] - origin], values[t]
            for c in range(k):
                total[c] += row[c]
            t += 1
        cursors[m] = t


@compiled
def _finish(sums: Any, count: int, clients: int, origin: int, values: Any, squares: Any) -> None:
    """Divide `count` rows of sums by the clients, and clear them."""
    for i in range(count):
        square = 0.0
        for c in range(sums.shape[1]):
            # Division by the count comes last: up to here everything was exact.
            mean = np.float32(sums[i, c] / clients)
            square += float(mean) * float(mean)
            values[origin + i, c] = mean
            sums[i, c] = 0.0
        squares[origin + i] = square


def node_mean(parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int) -> NodeMean:
    """Average the uploads of some clients, unweighted.

    Parameters
    ----------
    parts : all uploads of the round, as they arrived. members : of each part, the clients that belong to this mean.
    num_items : rows of the table.

    Raises
    ------
    ValueError if there is no client, or if some parts have cover noise and others not.
    """
    if len({part.cover_scale for part in parts}) > 1:
        raise ValueError("uploads with and without cover noise cannot be averaged together")
    clients = sum(len(chosen) for chosen in members)
    if clients == 0:
        raise ValueError("a mean needs at least one client")
    mine = [(part, chosen) for part, chosen in zip(parts, members, strict=True) if len(chosen)]
    counts = np.zeros(num_items, np.int64)
    for part, chosen in mine:
        _count_touches(part.rows, part.pointer, chosen, counts)
    place = np.empty(num_items, np.int64)
    rows, touched_by = np.empty(num_items, np.int32), np.empty(num_items, np.int64)
    found = _number(counts, place, rows, touched_by)
    k = mine[0][0].values.shape[1]
    values, squares = np.empty((found, k), np.float32), np.empty(found)
    # Block by block of the table, so that the sums stay in the cache while all clients' rows pass by in order.
    sums = np.zeros((min(_ROWS_PER_BLOCK, found), k))
    cursors = [part.pointer[chosen] for part, chosen in mine]
    for origin in range(0, found, _ROWS_PER_BLOCK):
        count = min(_ROWS_PER_BLOCK, found - origin)
        last = int(rows[origin + count - 1])
        for (part, chosen), cursor in zip(mine, cursors, strict=True):
            _add_values(part.rows, part.pointer, part.values, chosen, cursor, last, place, origin, sums)
        _finish(sums, count, clients, origin, values, squares)
    mean = NodeMean(clients, rows[:found], values, touched_by[:found], mine[0][0].cover_scale)
    object.__setattr__(mean, "row_squares", squares)
    return mean
