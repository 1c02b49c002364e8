"""The mean of one node's clients (paper, eq. W_t,i), exact in any order because the values lie on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.addresses import address_of, floats_at, ints_at
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.privacy.laws import LAPLACE, NoiseLaw
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
    cover_scale : scale of the noise of each client on the rows that it did not send, still to be drawn, else 0.
    noise_kind : law of all noise in it, see `privacy.laws`.
    row_squares : (r,) squared norms of the rows of `values` where `node_mean` had them at hand; a changed copy has none.
    """

    clients: int
    rows: NDArray[np.int32]
    values: NDArray[np.floating[Any]]
    touched_by: NDArray[np.int64]
    cover_scale: float
    noise_kind: str = LAPLACE
    row_squares: NDArray[np.float64] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def cover(self) -> NoiseLaw:
        """Law of each client's cover noise."""
        return NoiseLaw(self.noise_kind, self.cover_scale)

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
        law = self.cover
        second, of_square, cross = _noise_moments(
            self.touched_by, carried, self.clients, float(num_items - len(self.rows)), 0.0, float(self.cover_scale),
            law.unit_variance, law.unit_fourth,
        )  # fmt: skip
        # A hostile mean may be infinite; the caller looks at what comes out.
        variance = k * of_square + 4.0 * cross
        return float(max(float(carried.sum()) + k * second + math.sqrt(variance) * normal, 0.0))

    def expected_noise(self, num_items: int, noise_scale: float) -> tuple[float, float]:
        """Mean and standard deviation of ||noise||^2: of scale `noise_scale` on all that was sent, and the cover noise."""
        law = self.cover
        second, of_square, _ = _noise_moments(
            self.touched_by, np.zeros(len(self.rows)), self.clients, float(num_items - len(self.rows)),
            float(noise_scale), float(self.cover_scale), law.unit_variance, law.unit_fourth,
        )  # fmt: skip
        k = self.values.shape[1]
        return k * second, math.sqrt(k * of_square)


@compiled
def _noise_moments(
    touched_by: Any,
    carried: Any,
    clients: int,
    other_rows: float,
    noise_scale: float,
    cover_scale: float,
    unit_variance: float,
    unit_fourth: float,
) -> tuple[float, float, float]:
    """Moments of the mean's noise x on one coordinate, summed over all rows: the carried ones and `other_rows` more.

    A draw's variance (2 lambda^2 for Laplace) and fourth cumulant (12 lambda^4) add over the clients; given for scale 1.

    Returns
    -------
    Sum of Var x; sum of Var x^2 = 2 (Var x)^2 + fourth cumulant; sum of Var x times the row's squared norm (`carried`).
    """
    # A row's moments depend on how many clients carry it alone, and those are few numbers.
    most = clients  # a weighted mean counts as one over fewer clients than there were
    for i in range(touched_by.shape[0]):
        most = max(most, touched_by[i])
    second, of_square = np.empty(most + 1), np.empty(most + 1)
    for carrying in range(most + 1):
        own, covered = float(carrying), float(clients - carrying)
        variance = unit_variance * (noise_scale**2 * own + cover_scale**2 * covered) / clients**2
        fourth = unit_fourth * (noise_scale**4 * own + cover_scale**4 * covered) / clients**4
        second[carrying] = variance
        of_square[carrying] = 2.0 * variance * variance + fourth
    seconds, squares, cross = other_rows * second[0], other_rows * of_square[0], 0.0
    for i in range(touched_by.shape[0]):
        carrying = touched_by[i]
        seconds += second[carrying]
        squares += of_square[carrying]
        cross += second[carrying] * carried[i]
    return seconds, squares, cross


@compiled
def _row_squares(values: Any, out: Any) -> None:
    for t in range(values.shape[0]):
        square = 0.0
        for c in range(values.shape[1]):
            square += values[t, c] * values[t, c]
        out[t] = square


@compiled
def _count_touches(rows_at: Any, lengths: Any, counts: Any, place: Any, rows: Any, touched_by: Any) -> int:
    """Number the rows that some client sent, ascending; how many there are."""
    for client in range(lengths.shape[0]):
        sent = numba.carray(ints_at(rows_at[client]), (lengths[client],))
        for t in range(lengths[client]):
            counts[sent[t]] += 1
    found = 0
    for row in range(counts.shape[0]):
        place[row] = found
        if counts[row] > 0:
            rows[found] = row
            touched_by[found] = counts[row]
            found += 1
    return found


@compiled
def _mean_rows(
    rows_at: Any, values_at: Any, lengths: Any, place: Any, rows: Any, sums: Any, means: Any, squares: Any
) -> None:
    """Means of the numbered `rows` and their squared norms, block by block of them."""
    clients, k, per_block = lengths.shape[0], means.shape[1], sums.shape[0]
    cursors = np.zeros(clients, np.int64)
    for origin in range(0, means.shape[0], per_block):
        size = min(per_block, means.shape[0] - origin)
        last = rows[origin + size - 1]
        for i in range(size):
            for c in range(k):
                sums[i, c] = 0.0
        for client in range(clients):
            sent = numba.carray(ints_at(rows_at[client]), (lengths[client],))
            values = numba.carray(floats_at(values_at[client]), (lengths[client], k))
            t = cursors[client]
            while t < lengths[client] and sent[t] <= last:
                total, row = sums[place[sent[t]] - origin], values[t]
                for c in range(k):
                    total[c] += row[c]
                t += 1
            cursors[client] = t
        for i in range(size):
            square = 0.0
            for c in range(k):
                # Division by the count comes last: up to here everything was exact.
                mean = np.float32(sums[i, c] / clients)
                square += np.float64(mean) * np.float64(mean)
                means[origin + i, c] = mean
            squares[origin + i] = square


def noise_of(parts: list[Uploads], verb: str) -> tuple[float, str]:
    """Scale and law of the cover noise that all of `parts` have.

    Raises
    ------
    ValueError if some have cover noise and others not; it says that they cannot be `verb` together.
    """
    laws = {(part.cover_scale, part.noise_kind) for part in parts}
    if len(laws) > 1:
        raise ValueError(f"uploads with and without cover noise cannot be {verb} together")
    return laws.pop() if laws else (0.0, LAPLACE)


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
    noise = noise_of(parts, "averaged")
    mine = [(part, chosen) for part, chosen in zip(parts, members, strict=True) if len(chosen)]
    if not mine:
        raise ValueError("a mean needs at least one client")
    k = mine[0][0].values.shape[1]
    # The clients of all parts one after the other, each by where its rows and values lie.
    lengths = np.concatenate([part.pointer[chosen + 1] - part.pointer[chosen] for part, chosen in mine])
    rows_at = np.concatenate([address_of(part.rows, "int32") + 4 * part.pointer[chosen] for part, chosen in mine])
    values_at = np.concatenate(
        [address_of(part.values, "float32") + 4 * k * part.pointer[chosen] for part, chosen in mine]
    )
    rows, touched_by, place = (
        np.empty(num_items, np.int32),
        np.empty(num_items, np.int64),
        np.empty(num_items, np.int64),
    )
    found = _count_touches(rows_at, lengths, np.zeros(num_items, np.int64), place, rows, touched_by)
    means, squares = np.empty((found, k), np.float32), np.empty(found)
    sums = np.empty((min(_ROWS_PER_BLOCK, max(found, 1)), k))
    _mean_rows(rows_at, values_at, lengths, place, rows, sums, means, squares)
    mean = NodeMean(len(lengths), rows[:found], means, touched_by[:found], *noise)
    object.__setattr__(mean, "row_squares", squares)
    return mean
