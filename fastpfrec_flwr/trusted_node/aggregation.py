"""The mean of one node's clients (paper, eq. W_t,i), exact in any order because the values lie on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass(frozen=True)
class NodeMean:
    """Unweighted mean of Theta' - E over the clients that a node kept.

    Attributes
    ----------
    clients : how many are behind it. rows : (r,) int32 sorted; every other row's mean is zero (plus cover noise).
    values : (r, k) float64. touched_by : (r,) int64, how many of the clients sent each row.
    cover_scale : scale of the Laplace noise of each client on the rows that it did not send, still to be drawn, else 0.
    """

    clients: int
    rows: NDArray[np.int32]
    values: NDArray[np.float64]
    touched_by: NDArray[np.int64]
    cover_scale: float

    def squared_norm(self, num_items: int, normal: float) -> float:
        """||W_t - E||^2 with its cover noise, whose contribution is drawn from its limit.

        Cover noise eta on a carried mean v adds ||eta||^2 + 2 <v, eta>, which is close to normal.

        Parameters
        ----------
        num_items : rows of the table. normal : one standard normal draw.
        """
        carried = np.empty(len(self.rows))
        _row_squares(self.values, carried)
        second, of_square, repeats = self._noise_moments(num_items, 0.0)
        k = self.values.shape[1]
        mean = float((second * repeats).sum()) * k
        with np.errstate(invalid="ignore"):  # a hostile mean may be infinite; the caller looks at what comes out
            cross = 4.0 * float((second[:-1] * carried).sum())
        variance = float((of_square * repeats).sum()) * k + cross
        return float(max(float(carried.sum()) + mean + math.sqrt(variance) * normal, 0.0))

    def expected_noise(self, num_items: int, noise_scale: float) -> tuple[float, float]:
        """Mean and standard deviation of ||noise||^2, Laplace(noise_scale) on all that was sent and the cover noise."""
        second, of_square, repeats = self._noise_moments(num_items, noise_scale)
        k = self.values.shape[1]
        return float((second * repeats).sum()) * k, math.sqrt(float((of_square * repeats).sum()) * k)

    def _noise_moments(
        self, num_items: int, noise_scale: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Moments of the mean's noise x on one coordinate of each of `rows`, and last of any other row.

        A Laplace(lambda) draw has variance 2 lambda^2 and fourth cumulant 12 lambda^4; both add over the clients.

        Returns
        -------
        (r + 1,) Var x; (r + 1,) Var x^2 = 2 (Var x)^2 + fourth cumulant; (r + 1,) rows that each entry stands for.
        """
        carrying = np.append(self.touched_by, 0).astype(np.float64)
        covered = self.clients - carrying
        second = 2.0 * (noise_scale**2 * carrying + self.cover_scale**2 * covered) / self.clients**2
        fourth = 12.0 * (noise_scale**4 * carrying + self.cover_scale**4 * covered) / self.clients**4
        repeats = np.ones(len(second))
        repeats[-1] = num_items - len(self.rows)
        return second, 2.0 * second**2 + fourth, repeats


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
def _add_values(rows: Any, pointer: Any, values: Any, members: Any, place: Any, sums: Any) -> None:
    k = values.shape[1]
    for m in range(members.shape[0]):
        for t in range(pointer[members[m]], pointer[members[m] + 1]):
            total, row = sums[place[rows[t]]], values[t]
            for c in range(k):
                total[c] += row[c]


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
    counts = np.zeros(num_items, np.int64)
    for part, chosen in zip(parts, members, strict=True):
        _count_touches(part.rows, part.pointer, chosen, counts)
    rows = np.flatnonzero(counts)
    place = np.empty(num_items, np.int64)
    place[rows] = np.arange(len(rows))
    sums = np.zeros((len(rows), parts[0].values.shape[1]))
    for part, chosen in zip(parts, members, strict=True):
        _add_values(part.rows, part.pointer, part.values, chosen, place, sums)
    # Division by the count comes last: up to here everything was exact.
    sums /= clients
    return NodeMean(clients, rows.astype(np.int32), sums, counts[rows], parts[0].cover_scale)
