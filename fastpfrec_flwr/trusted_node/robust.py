"""Robust rules for many vectors of which some lie: pure arithmetic, used by trusted nodes on uploads and by the server on means.

Two kinds. *Location rules* look at each coordinate alone (median, trimmed mean; Yin et al., ICML 2018). *Weight rules* look at
whole vectors: everything they need of them is their inner products, so the vectors never have to be in memory together, and what
comes out is a weighted sum: Krum and Multi-Krum (Blanchard et al., NeurIPS 2017), the smoothed geometric median (Pillutla et al.,
IEEE TSP 2022) and centred clipping (Karimireddy et al., ICML 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.trusted_node.points import Points

# Weiszfeld's iteration ends when no weight moves by more than this, and at the latest after so many steps.
WEISZFELD_TOLERANCE = 1e-9
WEISZFELD_STEPS = 500
# Distances below this share of the median one count as this: the smoothing that keeps 1 / distance finite.
SMOOTHING = 1e-6


class LocationRule(Protocol):
    """A robust location of each coordinate."""

    def locate(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, ...) values -> (...) their location along the first axis; n >= 1."""


@dataclass(frozen=True)
class Median:
    """The middle value, or the mean of the two middle ones. Holds against fewer than half."""

    def locate(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `LocationRule`."""
        n = len(values)
        return _middle(values, (n - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of what is left without the floor(fraction n) smallest and as many largest values; fraction in [0, 1/2)."""

    fraction: float

    def locate(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `LocationRule`."""
        # As SciPy counts; the small term is for products like 0.3 * 10, which fall short of their integer.
        return _middle(values, int(self.fraction * len(values) + 1e-9))


def _middle(values: NDArray[np.float64], cut: int) -> NDArray[np.float64]:
    middle: NDArray[np.float64] = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return middle


class WeightRule(Protocol):
    """Weights of whole vectors."""

    def weights(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, n) inner products of changes of the table -> (n,) non-negative weights of sum <= 1; n >= 1."""


@dataclass(frozen=True)
class Krum:
    """The vectors with the smallest sums of squared distances to their n - f - 2 nearest, f = floor(fraction n) of n lying.

    Krum keeps one, Multi-Krum (`many`) the best n - f and averages them. The guarantee needs n >= 2 f + 3.
    """

    malicious_fraction: float
    many: bool

    def weights(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `WeightRule`. Of equal scores the first wins."""
        n = len(gram)
        if n == 1:
            return np.ones(1)
        lying = int(self.malicious_fraction * n + 1e-9)
        norms = np.diagonal(gram)
        squared = np.maximum(norms[:, None] + norms[None, :] - 2.0 * gram, 0.0)
        np.fill_diagonal(squared, np.inf)
        nearest = np.sort(squared, axis=1)[:, : min(max(n - lying - 2, 1), n - 1)]
        kept = np.argsort(nearest.sum(axis=1), kind="stable")[: n - lying if self.many else 1]
        weights = np.zeros(n)
        weights[kept] = 1.0 / len(kept)
        return weights


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest sum of distances to all, by Weiszfeld's iteration; holds against fewer than half."""

    def weights(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `WeightRule`."""
        weights = np.full(len(gram), 1.0 / len(gram))
        floor = SMOOTHING * float(np.median(_distances(gram, weights)))
        for _ in range(WEISZFELD_STEPS):
            pull = 1.0 / np.maximum(_distances(gram, weights), max(floor, 1e-300))
            moved: NDArray[np.float64] = pull / pull.sum()
            if np.abs(moved - weights).max() <= WEISZFELD_TOLERANCE:
                return moved
            weights = moved
        return weights


@dataclass(frozen=True)
class CenteredClipping:
    """v <- v + mean of (x_i - v) min(1, radius / ||x_i - v||), from v = 0, the current table, `iterations` times.

    `radius` 0 takes the median distance to v in each iteration: half of the vectors pass whole.
    """

    radius: float
    iterations: int

    def weights(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `WeightRule`."""
        n = len(gram)
        weights = np.zeros(n)
        for _ in range(self.iterations):
            distances = _distances(gram, weights)
            radius = self.radius if self.radius > 0 else float(np.median(distances))
            passed = np.minimum(1.0, radius / np.maximum(distances, 1e-300))
            weights = weights * (1.0 - passed.mean()) + passed / n
        return weights


def _distances(gram: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) distance of each vector to their weighted sum: ||x_i - sum_j w_j x_j||."""
    towards = gram @ weights
    return np.sqrt(np.maximum(np.diagonal(gram) - 2.0 * towards + weights @ towards, 0.0))


def inner_products(points: Points) -> NDArray[np.float64]:
    """(n, n) inner products of all points."""
    gram = np.zeros((points.count, points.count))
    for _, values in points.blocks():
        flat = values.reshape(points.count, -1)
        gram += flat @ flat.T
    return gram


def located(points: Points, rule: LocationRule) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Rows (r,) and values (r, k) of the location of all points; other rows are zero."""
    return _joined([(rows, rule.locate(values)) for rows, values in points.blocks()])


def weighted(points: Points, weights: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Rows (r,) and values (r, k) of the weighted sum of the points; points of weight zero are not looked at."""
    chosen = np.flatnonzero(weights)
    return _joined([(rows, np.tensordot(weights[chosen], values, axes=1)) for rows, values in points.blocks(chosen)])


def weighted_by(points: Points, rule: WeightRule) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Rows (r,) and values (r, k) of what a weight rule makes of the points; other rows are zero."""
    return weighted(points, rule.weights(inner_products(points)))


def _joined(
    blocks: list[tuple[NDArray[np.int32], NDArray[np.float64]]],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    if not blocks:  # everybody sent nothing: decoding refuses that, so it is a table without rows
        return np.empty(0, np.int32), np.empty((0, 0))
    return np.concatenate([rows for rows, _ in blocks]), np.concatenate([values for _, values in blocks])
