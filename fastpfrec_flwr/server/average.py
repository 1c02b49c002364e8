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

_ROWS_PER_TASK = 2048


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
def _clear(first: int, last: int, total: Any, variances: Any) -> None:
    for t in range(first, last):
        variances[t] = 0.0
        for c in range(total.shape[1]):
            total[t, c] = 0.0


@compiled
def _add_rows(
    rows: Any,
    values: Any,
    touched_by: Any,
    factor: float,
    unseen: float,
    start: int,
    stop: int,
    total: Any,
    variances: Any,
) -> None:
    """Add factor * values to `total` for entries `start` to `stop` of `rows`; take their cover noise out of `variances`."""
    for t in range(start, stop):
        out = total[rows[t]]
        variances[rows[t]] -= unseen * touched_by[t]
        for c in range(values.shape[1]):
            out[c] += factor * values[t, c]


@compiled
def _add_cover(key: Any, everywhere: float, variances: Any, first: int, last: int, total: Any) -> None:
    """Add normal noise of variance `everywhere` + `variances` to rows `first` to `last`."""
    k = total.shape[1]
    normals = np.empty((last - first) * k, np.float32)
    fill_normal(key, normals)
    for t in range(first, last):
        deviation = math.sqrt(max(everywhere + variances[t], 0.0))
        for c in range(k):
            total[t, c] += deviation * normals[(t - first) * k + c]


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
    total, variances = np.empty((num_items, embedding_dim)), np.empty(num_items)
    share = 1.0 / len(means)
    # Per client and coordinate that its upload did not bring: the variance of its noise in the average.
    unseen = [2.0 * mean.cover_scale**2 * (share / mean.clients) ** 2 for mean in means]
    everywhere = sum(each * mean.clients for each, mean in zip(unseen, means, strict=True))
    bounds = np.append(np.arange(0, num_items, _ROWS_PER_TASK), num_items)
    places = [np.searchsorted(mean.rows, bounds) for mean in means]

    def run(task: int) -> None:
        first, last = int(bounds[task]), int(bounds[task + 1])
        _clear(first, last, total, variances)
        for mean, each, place in zip(means, unseen, places, strict=True):
            _add_rows(
                mean.rows, mean.values, mean.touched_by, share, each, place[task], place[task + 1], total, variances
            )
        if everywhere > 0:
            key = np.uint64(stream_key(seed, "cover", server_round, first))
            _add_cover(key, everywhere, variances, first, last, total)

    in_parallel(run, range(len(bounds) - 1), threads)
    return total
