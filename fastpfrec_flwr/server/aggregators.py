"""What the server makes of the nodes' means: the paper's average, or a robust rule across nodes in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal, stream_value
from fastpfrec_flwr.parallel import one_thread_products
from fastpfrec_flwr.randomness import stream_key
from fastpfrec_flwr.server.average import average_nodes
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.points import BLOCK_VALUES, Points

_STREAM_ROWS = 64


class ServerAggregator(Protocol):
    """Turns the means of the healthy nodes into one change of the table."""

    def combine(
        self, means: list[NodeMean], num_items: int, columns: int, seed: int, server_round: int, threads: int = 1
    ) -> NDArray[np.floating[Any]]:
        """W_s - E, (items, columns), cover noise included.

        Parameters
        ----------
        means : of the healthy nodes, at least one. columns : of an upload.
        """


@dataclass(frozen=True)
class NodeAverage:
    """The paper's unweighted average."""

    def combine(
        self, means: list[NodeMean], num_items: int, columns: int, seed: int, server_round: int, threads: int = 1
    ) -> NDArray[np.floating[Any]]:
        """See `ServerAggregator`."""
        return average_nodes(means, num_items, columns, seed, server_round, threads)


@dataclass(frozen=True)
class AcrossNodes:
    """A robust rule over the nodes' whole tables.

    `rule` makes rows and values of points: `robust.located` or `robust.weighted_by` with a rule of its kind.

    Cover noise that a mean lacks is drawn per node, because the rule must see it: normal, of exactly its variance, as in
    `average_nodes`.
    """

    rule: Callable[[Points], tuple[NDArray[np.int32], NDArray[np.float64]]]

    def combine(
        self, means: list[NodeMean], num_items: int, columns: int, seed: int, server_round: int, threads: int = 1
    ) -> NDArray[np.floating[Any]]:
        """See `ServerAggregator`."""
        keys = [stream_key(seed, "cover-node", server_round, node) for node in range(len(means))]
        points = MeanPoints(means, num_items, columns, np.array(keys, np.uint64))
        total = np.zeros((num_items, columns))
        with one_thread_products():
            rows, values = self.rule(points)
        total[rows] = values
        return total


@dataclass(frozen=True)
class MeanPoints:
    """Node means as points in the space of whole tables (`trusted_node.points.Points`).

    Attributes
    ----------
    keys : (nodes,) uint64 streams of the cover noise.
    """

    means: list[NodeMean]
    num_items: int
    columns: int
    keys: NDArray[np.uint64]

    @property
    def count(self) -> int:
        """Nodes."""
        return len(self.means)

    def blocks(
        self, chosen: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """See `Points`."""
        nodes = np.arange(self.count) if chosen is None else chosen
        deviations = [self._cover_deviations(node) for node in nodes]
        step = max(BLOCK_VALUES // (max(len(nodes), 1) * self.columns), 1)
        step = -(-step // _STREAM_ROWS) * _STREAM_ROWS
        for first in range(0, self.num_items, step):
            last = min(first + step, self.num_items)
            values = np.zeros((len(nodes), last - first, self.columns))
            for j, node in enumerate(nodes):
                mean = self.means[node]
                start, stop = np.searchsorted(mean.rows, [first, last])
                values[j, mean.rows[start:stop] - first] = mean.values[start:stop]
                if mean.cover_scale > 0:
                    _add_cover(self.keys[node], deviations[j], first, last, values[j])
            yield np.arange(first, last, dtype=np.int32), values

    def _cover_deviations(self, node: int) -> NDArray[np.float64]:
        """(items,) standard deviation of the noise that a mean's rows still lack."""
        mean = self.means[node]
        missing = np.full(self.num_items, mean.clients, np.float64)
        missing[mean.rows] -= mean.touched_by
        deviations: NDArray[np.float64] = mean.cover_scale / mean.clients * np.sqrt(mean.cover.unit_variance * missing)
        return deviations


@compiled
def _add_cover(key: Any, deviations: Any, first: int, last: int, out: Any) -> None:
    """Add normal noise to rows `first` to `last`; each stretch of `_STREAM_ROWS` has a stream of its own."""
    k = out.shape[1]
    normals = np.empty(_STREAM_ROWS * k, np.float32)
    for start in range(first, last, _STREAM_ROWS):
        fill_normal(stream_value(key, np.uint64(start)), normals)
        for t in range(start, min(start + _STREAM_ROWS, last)):
            for c in range(k):
                out[t - first, c] += deviations[t] * normals[(t - start) * k + c]
