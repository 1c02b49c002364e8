"""Who pulls where others pull: the check that sees clients who collude, however small their uploads.

Honest clients change mostly different rows, so an upload has little to do with the mean of the others in its node. Liars who send
one crafted change (ALIE, IPM, Min-Max, sybils) share a direction, and the mean of the others holds their common part. The statistic
is the length of the others' mean along the upload,

    a_j = <x_j, mean of the others> / max(|x_j|, resolution),

with |x_j| the noise-corrected size. Its robust z within the node, upwards only, says who is out (after FoolsGold, Fung et al.,
RAID 2020, which compares clients pairwise and over rounds; a node sees a client once).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.detection import Distances, robust_z_scores
from fastpfrec_flwr.trusted_node.uploads import Uploads

# With fewer clients a median of alignments says nothing.
_FEWEST = 5


class CrossCheck(Protocol):
    """A rule of one trusted node that compares its clients with each other, after the check of each alone."""

    def examine(
        self,
        parts: list[Uploads],
        members: list[NDArray[np.int64]],
        mean: NodeMean,
        distances: Distances,
        normals: NDArray[np.float64],
        num_items: int,
        noise_scale: float,
        columns: int,
    ) -> NDArray[np.bool_]:
        """(clients,) who is out, in the order of parts and members.

        Parameters
        ----------
        parts, members : as in `aggregation.node_mean`. mean : their plain mean. distances : of these clients.
        normals : (clients,) one standard normal draw each, for the noise that simulated uploads do not carry.
        num_items : rows of the table. noise_scale : lambda of honest uploads. columns : of an upload that are the table's.
        """


@dataclass(frozen=True)
class NoCrossCheck:
    """Compares nobody."""

    def examine(
        self,
        parts: list[Uploads],
        members: list[NDArray[np.int64]],
        mean: NodeMean,
        distances: Distances,
        normals: NDArray[np.float64],
        num_items: int,
        noise_scale: float,
        columns: int,
    ) -> NDArray[np.bool_]:
        """Nobody is out."""
        return np.zeros(mean.clients, np.bool_)


@dataclass(frozen=True)
class AlignmentCheck:
    """Isolates clients whose alignment has a robust z above `threshold` in their node."""

    threshold: float

    def examine(
        self,
        parts: list[Uploads],
        members: list[NDArray[np.int64]],
        mean: NodeMean,
        distances: Distances,
        normals: NDArray[np.float64],
        num_items: int,
        noise_scale: float,
        columns: int,
    ) -> NDArray[np.bool_]:
        """See `CrossCheck`."""
        if mean.clients < _FEWEST:
            return np.zeros(mean.clients, np.bool_)
        products, length = products_with_others(parts, members, mean, normals, num_items, columns)
        sizes = np.maximum(distances.corrected, max(distances.resolution, 1e-12))
        # What the noise on an upload does to its product with the others' mean.
        resolution = noise_scale * math.sqrt(2.0) * length / float(np.median(sizes))
        flags: NDArray[np.bool_] = robust_z_scores(products / sizes, resolution) > self.threshold
        return flags


def products_with_others(
    parts: list[Uploads],
    members: list[NDArray[np.int64]],
    mean: NodeMean,
    normals: NDArray[np.float64],
    num_items: int,
    columns: int,
) -> tuple[NDArray[np.float64], float]:
    """(clients,) <x_j, mean of the others>, and the length of the mean.

    <x_j, M_-j> = (n <x_j, M> - |x_j|^2) / (n - 1). Cover noise that is not drawn yet adds a normal of its variance: the others' on
    the rows that x_j carries, and its own on all others.

    Raises
    ------
    ValueError if there are fewer than two clients.
    """
    n, k = mean.clients, columns
    if n < 2:
        raise ValueError("an upload of a node with one client has no others to compare it with")
    place = np.zeros(num_items, np.int64)
    place[mean.rows] = np.arange(len(mean.rows))
    squares = mean.row_squares
    if squares is None or k < mean.values.shape[1]:
        squares = np.einsum("ij,ij->i", mean.values[:, :k], mean.values[:, :k], dtype=np.float64)
    values = np.ascontiguousarray(mean.values, np.float32)
    dots, own, weighted, carried, free = (np.zeros(n) for _ in range(5))
    first = 0
    for part, chosen in zip(parts, members, strict=True):
        last = first + len(chosen)
        _products(
            part.rows, part.values, part.pointer, chosen, place, values, squares, mean.touched_by, n, k,
            dots[first:last], own[first:last], weighted[first:last], carried[first:last], free[first:last],
        )  # fmt: skip
        first = last
    products = (n * dots - own) / (n - 1)
    total = float(squares.sum())
    variance = mean.cover.unit_variance * mean.cover_scale**2
    missing = num_items * float(n) - float(mean.touched_by.sum())  # (client, row) pairs that nobody carried
    length = math.sqrt(total + k * variance * missing / n**2)
    if variance > 0:
        # Rows that x_j does not carry: each has n - 1 others, of whom some carry it.
        others = (missing - free) - (
            num_items - np.concatenate([np.diff(p.pointer)[m] for p, m in zip(parts, members, strict=True)])
        )
        elsewhere = (n / (n - 1)) ** 2 * np.maximum(total - carried, 0.0) + k * variance * others / (n - 1) ** 2
        spread = variance * weighted / (n - 1) ** 2 + variance * elsewhere
        products += np.sqrt(np.maximum(spread, 0.0)) * normals
    return products, length


@compiled
def _products(
    rows: Any,
    values: Any,
    pointer: Any,
    chosen: Any,
    place: Any,
    mean: Any,
    squares: Any,
    touched_by: Any,
    clients: int,
    k: int,
    dots: Any,
    own: Any,
    weighted: Any,
    carried: Any,
    free: Any,
) -> None:
    """Sums over the rows that each client carries: with the mean, with itself, itself times the others that lack the row, the
    mean's squares, and the others that lack it."""
    for i in range(chosen.shape[0]):
        j = chosen[i]
        for t in range(pointer[j], pointer[j + 1]):
            p = place[rows[t]]
            with_mean, with_self = np.float32(0.0), np.float32(0.0)
            for c in range(k):
                with_mean += values[t, c] * mean[p, c]
                with_self += values[t, c] * values[t, c]
            lacking = float(clients - touched_by[p])
            dots[i] += np.float64(with_mean)
            own[i] += np.float64(with_self)
            weighted[i] += np.float64(with_self) * lacking
            carried[i] += squares[p]
            free[i] += lacking
