"""The average over trusted nodes (paper, eq. W_s), the check across their means, and the cover noise of simulated uploads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.detection import robust_z_scores
from fastpfrec_flwr.trusted_node.distances import first_normals
from fastpfrec_flwr.trusted_node.stacking import StackedMeans
from fastpfrec_flwr.trusted_node.tier import NodeReport


def healthy_nodes(
    reports: list[NodeReport],
    num_items: int,
    noise_scale: float,
    threshold: float,
    seed: int,
    server_round: int,
) -> list[bool]:
    """Check the node means against each other: a node that lies throughout is seen by nobody else.

    Each node's noise-corrected distance to the table, times the root of its clients, gets a robust z-score among the nodes:
    clients change mostly different rows, so a mean over n of them is about sqrt(n) times shorter than each.

    Parameters
    ----------
    threshold : largest z of a healthy node; 0 keeps every node whose mean is finite. noise_scale : of honest uploads.

    Returns
    -------
    For each report whether it goes into the average; False where it has no finite mean.
    """
    distances, resolutions = np.full(len(reports), np.nan), np.full(len(reports), np.nan)
    numbers = np.array([report.node for report in reports], np.int64)
    normals = np.empty(len(reports))
    first_normals(user_stream_keys(stream_key(seed, "node-norm", server_round), numbers), normals)
    for i, report in enumerate(reports):
        mean = report.mean
        if mean is None:
            continue
        squared = mean.squared_norm(num_items, float(normals[i]))
        if math.isfinite(squared):
            expected, sd = mean.expected_noise(num_items, noise_scale)
            distances[i] = (mean.clients * max(squared - expected, 0.0)) ** 0.5
            resolutions[i] = (mean.clients * sd) ** 0.5
    healthy = np.isfinite(distances)
    if threshold > 0 and healthy.sum() >= 3:
        scores = robust_z_scores(distances[healthy], float(np.median(resolutions[healthy])))
        healthy[healthy] = scores <= threshold
    return [bool(well) for well in healthy]


@compiled
def _add_cover(key: Any, everywhere: float, variances: Any, first: int, last: int, total: Any) -> None:
    """Add normal noise of variance `everywhere` + `variances` to rows `first` to `last`."""
    k = total.shape[1]
    normals = np.empty((last - first) * k, np.float32)
    fill_normal(key, normals)
    for t in range(first, last):
        deviation = np.float32(math.sqrt(max(everywhere + variances[t], 0.0)))
        for c in range(k):
            total[t, c] += deviation * normals[(t - first) * k + c]


def average_nodes(
    means: list[NodeMean], num_items: int, embedding_dim: int, seed: int, server_round: int, threads: int = 1
) -> NDArray[np.float32]:
    """W_s - E: the unweighted average of the node means, cover noise included.

    The noise on rows that clients did not send is independent of their data, so its average over all of them is drawn here in
    one go: normal, of exactly its variance (excess kurtosis at n clients: 3/n for Laplace, none for Gaussian noise).

    Parameters
    ----------
    means : of the healthy nodes, at least one.

    Returns
    -------
    (items, k) float32.
    """
    total, variances = np.empty((num_items, embedding_dim), np.float32), np.empty(num_items)
    share = 1.0 / len(means)
    # Per client and coordinate that its upload did not bring: the variance of its noise in the average.
    unseen = [mean.cover.unit_variance * mean.cover_scale**2 * (share / mean.clients) ** 2 for mean in means]
    everywhere = sum(each * mean.clients for each, mean in zip(unseen, means, strict=True))
    stack = StackedMeans(means, num_items)
    shares, lacking = np.full(len(means), share, np.float32), -np.array(unseen)

    def run(block: int) -> None:
        # What a row's cover noise lacks to that of a row nobody sent: the noise of those who sent it is in their values.
        stack.add(block, shares, lacking, total, variances)
        if everywhere > 0:
            first, last = stack.blocks[block]
            key = np.uint64(stream_key(seed, "cover", server_round, first))
            _add_cover(key, everywhere, variances, first, last, total)

    in_parallel(run, range(len(stack.blocks)), threads)
    return total
