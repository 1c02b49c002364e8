"""The beta blend on the device, exactly and cheaply (paper, Algorithm 1, step 4).

Every client blends every round: Theta_i <- (1 - beta) Theta_i + beta W_s. With Theta_i = E + D_i the table obeys
E <- (1 - beta) E + beta W_s on the server and the deviation D_i <- (1 - beta)(D_i + own change), which is nonzero only on rows
that the client trained. A round in which the client rests only multiplies D_i by (1 - beta).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Deviation:
    """One user's D_i as it stood after `server_round`.

    Attributes
    ----------
    rows : (entries,) int32, sorted and distinct. values : (entries, k) float32. server_round : when it was last current.
    """

    rows: NDArray[np.int32]
    values: NDArray[np.float32]
    server_round: int

    def at_start_of(self, server_round: int, blend_weight: float) -> Deviation:
        """D_i when `server_round` begins: multiplied by (1 - beta) for each round rested since."""
        rested = server_round - self.server_round - 1
        if rested < 0:
            raise ValueError(f"deviation is of round {self.server_round}, which is not before round {server_round}")
        factor = np.float32((1.0 - blend_weight) ** rested)
        return Deviation(self.rows, self.values * factor, server_round - 1)


def no_deviation(embedding_dim: int) -> Deviation:
    """D_i of a client that has never trained."""
    return Deviation(np.empty(0, np.int32), np.empty((0, embedding_dim), np.float32), 0)


def local_rows(
    item_table: NDArray[np.float32], rows: NDArray[np.int32], pointer: NDArray[np.int64], deviations: list[Deviation]
) -> NDArray[np.float32]:
    """Each user's own copy Theta_i of the rows that it touches.

    Parameters
    ----------
    item_table : (items, k). rows : (touched,). pointer : (users + 1,) into `rows`. deviations : of each user, current.

    Returns
    -------
    (touched, k).
    """
    local = item_table[rows]
    for user, deviation in enumerate(deviations):
        mine = rows[pointer[user] : pointer[user + 1]]
        _, here, there = np.intersect1d(mine, deviation.rows, assume_unique=True, return_indices=True)
        local[pointer[user] + here] += deviation.values[there]
    return local


def add_change(deviation: Deviation, rows: NDArray[np.int32], changes: NDArray[np.float32]) -> Deviation:
    """D_i + change: Theta_i after training minus the table, on every row where it is not zero.

    Parameters
    ----------
    rows : (touched,) sorted. changes : (touched, k).
    """
    union = np.union1d(deviation.rows, rows).astype(np.int32)
    values = np.zeros((len(union), changes.shape[1]), np.float32)
    values[np.searchsorted(union, deviation.rows)] = deviation.values
    values[np.searchsorted(union, rows)] += changes
    return Deviation(union, values, deviation.server_round)


def after_round(trained: Deviation, server_round: int, blend_weight: float) -> Deviation:
    """(1 - beta)(D_i + change): what the device keeps after the round in which it trained."""
    return Deviation(trained.rows, trained.values * np.float32(1.0 - blend_weight), server_round)
