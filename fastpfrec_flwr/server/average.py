"""The average over trusted nodes (paper, eq. W_s), the check across their means, and the cover noise of simulated uploads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.randomness import derive_generator, stream_key
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.detection import robust_z_scores
from fastpfrec_flwr.trusted_node.tier import NodeReport

_ROWS_PER_TASK = 1024


def healthy_nodes(
    reports: list[NodeReport],
    num_items: int,
    noise_scale: float,
    threshold: float,
    seed: int,
    server_round: int,
    threads: int = 1,
) -> list[bool]:
    """Check the node means against each other: a node that lies throughout is seen by nobody else.

    Each node's noise-corrected distance to the table, times the root of its clients, gets a robust z-score among the nodes:
    clients change mostly different rows, so a mean over n of them is about sqrt(n) times shorter than each.

    Parameters
    ----------
    threshold : largest z of a healthy node; 0 keeps every node whose mean is finite. noise_scale : lambda of honest uploads.

    Returns
    -------
    For each report whether it goes into the average; False where it has no finite mean.
    """
    distances, resolutions = np.full(len(reports), np.nan), np.full(len(reports), np.nan)

    def measure(i: int) -> None:
        mean = reports[i].mean
        if mean is None:
            return
        normal = float(derive_generator(seed, "node-norm", server_round, reports[i].node).standard_normal())
        squared = mean.squared_norm(num_items, normal)
        if math.isfinite(squared):
            expected, sd = mean.expected_noise(num_items, noise_scale)
            distances[i] = (mean.clients * max(squared - expected, 0.0)) ** 0.5
            resolutions[i] = (mean.clients * sd) ** 0.5

    in_parallel(measure, range(len(reports)), threads)
    healthy = np.isfinite(distances)
    if threshold > 0 and healthy.sum() >= 3:
        scores = robust_z_scores(distances[healthy], float(np.median(resolutions[healthy])))
        healthy[healthy] = scores <= threshold
    return [bool(well) for well in healthy]


@compiled
def _add_rows(rows: Any, values: Any, factor: float, start: int, stop: int, total: Any) -> None:
    """Add factor * values to `total`, for entries `start` to `stop` of `rows`."""
    for t in range(start, stop):
        out = total[rows[t]]
        for c in range(values.shape[1]):
            out[c] += factor * values[t, c]


@compiled
def _add_cover(key: Any, deviations: Any, first: int, last: int, total: Any) -> None:
    k = total.shape[1]
    normals = np.empty((last - first) * k, np.float32)
    fill_normal(key, normals)
    for t in range(first, last):
        for c in range(k):
            total[t, c] += deviations[t] * normals[(t - first) * k + c]


def average_nodes(
    means: list[NodeMean], num_items: int, embedding_dim: int, seed: int, server_round: int, threads: int = 1
) -> NDArray[np.float64]:
    """W_s - E: the unweighted average of the node means, cover noise included.

    The noise on rows that clients did not send is independent of their data, so its average over all of them is drawn here in
    one go: normal, of exactly its variance (its excess kurtosis at n clients is 3/n).

    Parameters
    ----------
    means : of the healthy nodes, at least one.

    Returns
    -------
    (items, k) float64.
    """
    total = np.zeros((num_items, embedding_dim))
    share = 1.0 / len(means)
    variances = np.zeros(num_items)
    for mean in means:
        if mean.cover_scale > 0:
            each = 2.0 * mean.cover_scale**2 * (share / mean.clients) ** 2
            variances += each * mean.clients
            variances[mean.rows] -= each * mean.touched_by
    deviations = np.sqrt(np.maximum(variances, 0.0))
    covered = bool(variances.any())

    def run(first: int) -> None:
        last = min(first + _ROWS_PER_TASK, num_items)
        for mean in means:
            start, stop = np.searchsorted(mean.rows, [first, last])
            _add_rows(mean.rows, mean.values, share, start, stop, total)
        if covered:
            _add_cover(np.uint64(stream_key(seed, "cover", server_round, first)), deviations, first, last, total)

    in_parallel(run, range(0, num_items, _ROWS_PER_TASK), threads)
    return total
