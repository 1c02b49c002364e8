"""Who pulls where all others pull: the check that sees clients who collude, however small their uploads.

Honest clients change mostly different rows, so an upload has little to do with the mean of all others. Liars who send one crafted
change (ALIE, IPM, Min-Max, sybils) or pull at one goal (clustering) share a direction, and the mean of the others holds their
common part. The statistic is the length of the others' mean along the upload,

    a_j = <x_j, mean of all others> / max(|x_j|, resolution),

with |x_j| the noise-corrected size (after FoolsGold, Fung et al., RAID 2020, which compares clients pairwise and over rounds; a
node sees a client once). The trusted nodes exchange their means, and median and MAD of their clients' a_j, among themselves: the
mean of 256 clients has a third of the noise of one node's, and a node in which liars are the majority is judged by the others'
scale. The server learns nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.addresses import prefetch
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.parallel import in_parallel, results_in_parallel
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.detection import NORMAL_QUARTILE
from fastpfrec_flwr.trusted_node.distances import Distances, median
from fastpfrec_flwr.trusted_node.stacking import StackedMeans
from fastpfrec_flwr.trusted_node.uploads import Uploads

# With fewer clients a node's median of alignments says nothing, and it has no say in the scale.
_FEWEST = 5
_ROWS_AHEAD, _FLOATS_PER_LINE = 6, 16


@dataclass(frozen=True)
class Candidates:
    """What one node brings to the comparison.

    Attributes
    ----------
    members : of each part, the clients that its own check left. mean : their plain mean. distances : of them.
    normals : (clients,) one standard normal draw each, for the noise that simulated uploads do not carry.
    """

    members: list[NDArray[np.int64]]
    mean: NodeMean
    distances: Distances
    normals: NDArray[np.float64]


class CrossCheck(Protocol):
    """A rule of all trusted nodes together that compares their clients, after each node's own check."""

    def examine(
        self, parts: list[Uploads], nodes: Sequence[Candidates], num_items: int, noise_scale: float, columns: int
    ) -> list[NDArray[np.bool_]]:
        """For each node, (clients,) who is out, in the order of parts and members.

        Parameters
        ----------
        parts : all uploads of the round. num_items : rows of the table. noise_scale : lambda of honest uploads.
        columns : of an upload that are a change of the table.
        """


@dataclass(frozen=True)
class NoCrossCheck:
    """Compares nobody."""

    def examine(
        self, parts: list[Uploads], nodes: Sequence[Candidates], num_items: int, noise_scale: float, columns: int
    ) -> list[NDArray[np.bool_]]:
        """Nobody is out."""
        return [np.zeros(node.mean.clients, np.bool_) for node in nodes]


@dataclass(frozen=True)
class AlignmentCheck:
    """Isolates clients whose alignment lies more than `threshold` robust standard deviations above the middle."""

    threshold: float
    threads: int = 1

    def examine(
        self, parts: list[Uploads], nodes: Sequence[Candidates], num_items: int, noise_scale: float, columns: int
    ) -> list[NDArray[np.bool_]]:
        """See `CrossCheck`."""
        everybody = merged([node.mean for node in nodes], num_items, columns, self.threads)
        if everybody.clients < _FEWEST:
            return NoCrossCheck().examine(parts, nodes, num_items, noise_scale, columns)
        # What the noise on an upload does to its product with the others' mean, at length 1.
        deviation = noise_scale * math.sqrt(everybody.cover.unit_variance)

        def compare(node: Candidates) -> _Alignments:
            products, length = products_with_others(parts, node.members, everybody, node.normals, num_items)
            sizes = np.maximum(node.distances.corrected, max(node.distances.resolution, 1e-12))
            alignments = products / sizes
            middle = median(alignments)
            spread = median(np.abs(alignments - middle))
            return _Alignments(alignments, middle, spread, deviation * length / median(sizes))

        brought = results_in_parallel(compare, nodes, self.threads)
        heard = [each for each in brought if len(each.of_clients) >= _FEWEST or len(nodes) == 1]
        if not heard:
            return NoCrossCheck().examine(parts, nodes, num_items, noise_scale, columns)
        middle = float(np.median([each.middle for each in heard]))
        spread = max(
            float(np.median([each.spread for each in heard])) / NORMAL_QUARTILE,
            float(np.median([each.resolution for each in brought])),
            1e-300,
        )
        return [each.of_clients - middle > self.threshold * spread for each in brought]


class _Alignments(NamedTuple):
    """What one node finds: (clients,) alignments, their median and MAD, and what noise does to one of them."""

    of_clients: NDArray[np.float64]
    middle: float
    spread: float
    resolution: float


def merged(means: Sequence[NodeMean], num_items: int, columns: int, threads: int = 1) -> NodeMean:
    """The mean over the clients of all nodes, on every row; `columns` of an upload count."""
    clients, first = sum(mean.clients for mean in means), means[0]
    total, touches, squares = np.empty((num_items, columns), np.float32), np.empty(num_items), np.empty(num_items)
    shares = np.array([mean.clients / clients for mean in means], np.float32)
    stack, each_client = StackedMeans(means, num_items), np.ones(len(means))

    def run(block: int) -> None:
        stack.add(block, shares, each_client, total, touches)
        _squares(total, *stack.blocks[block], squares)

    in_parallel(run, range(len(stack.blocks)), threads)
    rows = np.arange(num_items, dtype=np.int32)
    together = NodeMean(clients, rows, total, touches.astype(np.int64), first.cover_scale, first.noise_kind)
    object.__setattr__(together, "row_squares", squares)
    return together


@compiled
def _squares(values: Any, first: int, last: int, out: Any) -> None:
    for t in range(first, last):
        square = np.float32(0.0)
        for c in range(values.shape[1]):
            square += values[t, c] * values[t, c]
        out[t] = np.float64(square)


def products_with_others(
    parts: list[Uploads],
    members: list[NDArray[np.int64]],
    mean: NodeMean,
    normals: NDArray[np.float64],
    num_items: int,
) -> tuple[NDArray[np.float64], float]:
    """(clients,) <x_j, mean of the others> for some clients, and the length of the mean.

    <x_j, M_-j> = (n <x_j, M> - |x_j|^2) / (n - 1). Cover noise that is not drawn yet adds a normal of its variance: the others' on
    the rows that x_j carries, and its own on all others.

    Parameters
    ----------
    mean : over n clients, these among them, on every row (`merged`); its columns are the ones that count.

    Raises
    ------
    ValueError if it is the mean of one client.
    """
    n, k = mean.clients, mean.values.shape[1]
    if n < 2:
        raise ValueError("a single upload has no others to compare it with")
    squares = mean.row_squares
    if squares is None:
        raise ValueError("the mean must be one that `merged` made")
    count = sum(len(chosen) for chosen in members)
    dots, own, weighted, carried, free = (np.zeros(count) for _ in range(5))
    first = 0
    for part, chosen in zip(parts, members, strict=True):
        last = first + len(chosen)
        _products(
            part.rows, part.values, part.pointer, chosen, mean.values, squares, mean.touched_by, n,
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
        lengths = np.concatenate([np.diff(p.pointer)[m] for p, m in zip(parts, members, strict=True)])
        others = (missing - free) - (num_items - lengths)
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
    mean: Any,
    squares: Any,
    touched_by: Any,
    clients: int,
    dots: Any,
    own: Any,
    weighted: Any,
    carried: Any,
    free: Any,
) -> None:
    """Sums over the rows that each client carries: with the mean, with itself, itself times the others that lack the row, the
    mean's squares, and the others that lack it."""
    start = mean.ctypes.data
    for i in range(chosen.shape[0]):
        j = chosen[i]
        for t in range(pointer[j], pointer[j + 1]):
            row = rows[t]
            if t + _ROWS_AHEAD < pointer[j + 1]:
                # Rows of a large table come from memory one by one: half of the time was waiting for them.
                for column in range(0, mean.shape[1], _FLOATS_PER_LINE):
                    prefetch(start + 4 * (mean.shape[1] * rows[t + _ROWS_AHEAD] + column))
            mine, others = values[t], mean[row]
            with_mean, with_self = np.float32(0.0), np.float32(0.0)
            for c in range(others.shape[0]):
                with_mean += mine[c] * others[c]
                with_self += mine[c] * mine[c]
            lacking = float(clients - touched_by[row])
            dots[i] += np.float64(with_mean)
            own[i] += np.float64(with_self)
            weighted[i] += np.float64(with_self) * lacking
            carried[i] += squares[row]
            free[i] += lacking
