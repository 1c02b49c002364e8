"""What models share beside the items' rows, as rows of the shared table. Arrays only: the server looks here too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.randomness import derive_generator

# A row's entry is the weight divided by this: the server's one step size, made for the items' rows, would shake a network.
WEIGHT_UNIT = np.float32(0.02)


@dataclass(frozen=True)
class MlpLayout:
    """The network of FedNCF after the items' rows: W_user (k, k), W_item (k, k), then the bias, the output v and the product's g.

    score(u, i) = sum_c g_c p_uc E_ic + v . relu(W_user p_u + W_item E_i + bias)

    Attributes
    ----------
    embedding_dim : k, the width of everything.
    """

    embedding_dim: int

    def rows(self, num_items: int) -> int:
        """See `Layout`."""
        return num_items + 2 * self.embedding_dim + 3

    def start(self, item_rows: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
        """See `Layout`. g is one and v zero, so it begins as matrix factorisation: a drawn v would let popularity
        in, which all items' rows then follow in large steps, and the loss rises. The other weights are drawn as usual."""
        k = self.embedding_dim
        generator = derive_generator(seed, "network")
        weights = np.zeros((2 * k + 3, k), np.float32)
        # Two inputs of k coordinates each, that is, 2 k in all.
        weights[: 2 * k] = generator.normal(0.0, np.sqrt(1.0 / k), (2 * k, k))
        weights[2 * k + 2] = 1.0
        return np.concatenate([item_rows, weights / WEIGHT_UNIT])

    def after_step(self, table: NDArray[np.float32]) -> None:
        """See `Layout`; nothing."""


def mlp_layout(config: RunConfig) -> MlpLayout:
    """FedNCF's."""
    return MlpLayout(config.embedding_dim)


@dataclass(frozen=True)
class ClusterLayout:
    """PerFedRec's tables: everybody's, one for each cluster, all (items, k), and last the clusters' centres (clusters, k).

    The centres are the server's own: K-means over the directions of the items' rows, all that it may know. One of Lloyd's steps
    after every step of the table keeps them where the items are, and their numbers the same.

    Attributes
    ----------
    clusters : K.
    """

    clusters: int

    def rows(self, num_items: int) -> int:
        """See `Layout`."""
        return num_items * (1 + self.clusters) + self.clusters

    def num_items(self, rows: int) -> int:
        """Items of a table with so many rows."""
        return (rows - self.clusters) // (1 + self.clusters)

    def start(self, item_rows: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
        """See `Layout`. All tables begin alike; centres begin at items drawn at random."""
        generator = derive_generator(seed, "clusters")
        drawn = generator.choice(len(item_rows), self.clusters, replace=len(item_rows) < self.clusters)
        return np.concatenate([*[item_rows] * (1 + self.clusters), directions(item_rows)[drawn]])

    def after_step(self, table: NDArray[np.float32]) -> None:
        """See `Layout`: one step of Lloyd's algorithm on the sphere; a centre without items stays."""
        items = table[: self.num_items(len(table))]
        _lloyd_step(items, items.mean(axis=0), table[-self.clusters :])


@compiled
def _lloyd_step(items: Any, middle: Any, centres: Any) -> None:
    """Each of `centres` ((clusters, k), in place) to the direction of the mean of the `directions` of `items` nearest to it."""
    clusters, k = centres.shape
    sums, unit = np.zeros((clusters, k)), np.empty(k, np.float32)
    for t in range(items.shape[0]):
        row = items[t]
        square = np.float32(0.0)
        for c in range(k):
            unit[c] = row[c] - middle[c]
            square += unit[c] * unit[c]
        length = max(np.float32(math.sqrt(square)), np.float32(1e-12))
        nearest, most = 0, np.float32(-np.inf)
        for cluster in range(clusters):
            likeness = np.float32(0.0)
            for c in range(k):
                likeness += unit[c] * centres[cluster, c]
            if likeness > most:
                nearest, most = cluster, likeness
        for c in range(k):
            sums[nearest, c] += unit[c] / length
    for cluster in range(clusters):
        total = 0.0
        for c in range(k):
            total += sums[cluster, c] * sums[cluster, c]
        if total > 0.0:
            for c in range(k):
                centres[cluster, c] = np.float32(sums[cluster, c] / math.sqrt(total))


def directions(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows less their mean (what all items share says nothing of taste), at unit length."""
    centred = rows - rows.mean(axis=0, keepdims=True)
    unit: NDArray[np.float32] = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.float32(1e-12))
    return unit


def cluster_layout(config: RunConfig) -> ClusterLayout:
    """PerFedRec's."""
    return ClusterLayout(config.num_clusters)
