"""The mean of one node's clients (paper, eq. W_t,i), exact in any order because the values lie on a grid."""

from __future__ import annotations

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
        """||W_t - E||^2 with its cover noise, whose norm is drawn from its limit.

        The mean over n clients carries noise of variance 2 lambda^2 (n - touching) / n^2 on each coordinate of a row.

        Parameters
        ----------
        num_items : rows of the table. normal : one standard normal draw.
        """
        carried = float(np.einsum("ij,ij->", self.values, self.values))
        mean, sd = self._cover_moments(num_items)
        return carried + max(mean + sd * normal, 0.0)

    def expected_noise(self, num_items: int, noise_scale: float) -> tuple[float, float]:
        """Mean and standard deviation of what Laplace(noise_scale) noise on everything that was sent adds to `squared_norm`."""
        k = self.values.shape[1]
        variance = 2.0 * noise_scale**2 * self.touched_by / self.clients**2
        carried_mean = float(variance.sum()) * k
        # Averaged over many clients the noise is close to normal: Var(x^2) = 2 Var(x)^2.
        carried_variance = 2.0 * float((variance**2).sum()) * k
        mean, sd = self._cover_moments(num_items)
        return carried_mean + mean, (carried_variance + sd**2) ** 0.5

    def _cover_moments(self, num_items: int) -> tuple[float, float]:
        if self.cover_scale == 0:
            return 0.0, 0.0
        k = self.values.shape[1]
        missing = np.concatenate([self.clients - self.touched_by, [self.clients]]).astype(np.float64)
        repeats = np.ones(len(missing))
        repeats[-1] = num_items - len(self.rows)
        variance = 2.0 * self.cover_scale**2 * missing / self.clients**2
        mean = float((variance * repeats).sum()) * k
        return mean, (2.0 * float((variance**2 * repeats).sum()) * k) ** 0.5


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
            total = sums[place[rows[t]]]
            for c in range(k):
                total[c] += float(values[t, c])


def node_mean(parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int) -> NodeMean:
    """Average the uploads of some clients, unweighted.

    Parameters
    ----------
    parts : all uploads of the round, as they arrived. members : of each part, the clients that belong to this mean.
    num_items : rows of the table.

    Raises
    ------
    ValueError if there is no client.
    """
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
