"""Gaussian noise that is drawn late, on simulated dense uploads, is that of real devices."""

import dataclasses
import math

import numpy as np
import pytest
from gaussian_uploads import CLIENTS, ITEMS, SCALE, K, made
from scipy import stats

from fastpfrec_flwr.randomness import user_stream_keys
from fastpfrec_flwr.server.average import average_nodes, healthy_nodes
from fastpfrec_flwr.trusted_node.aggregation import node_mean
from fastpfrec_flwr.trusted_node.detection import beyond_clip
from fastpfrec_flwr.trusted_node.distances import upload_distances
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.tier import NodeReport

REPEATS = 120


@pytest.fixture(scope="module")
def both_ways():
    found = {}
    for real in (True, False):
        squares, norms, averages = [], [], []
        for repeat in range(REPEATS):
            uploads = made(real, repeat)
            keys = user_stream_keys(1000 + repeat, np.arange(CLIENTS))
            distances = upload_distances(
                uploads.values, uploads.pointer, SCALE, uploads.cover_scale, ITEMS, keys, noise_kind="gaussian"
            )
            mean = node_mean([uploads], [np.arange(CLIENTS)], ITEMS)
            squares.append(distances.squared)
            norms.append(mean.squared_norm(ITEMS, float(np.random.default_rng(repeat).standard_normal())))
            averages.append(average_nodes([mean], ITEMS, K, 1, repeat))
        found[real] = np.array(squares), np.array(norms), np.array(averages), distances, mean
    return found


def test_distances_agree(both_ways):
    real, simulated = both_ways[True], both_ways[False]
    centred = [each[0] - real[0].mean(axis=0) for each in (real, simulated)]
    assert stats.ks_2samp(centred[0].ravel(), centred[1].ravel()).pvalue > 1e-6
    for each in (real, simulated):
        np.testing.assert_allclose(each[3].noise_mean, SCALE**2 * ITEMS * K)
        np.testing.assert_allclose(each[3].noise_sd, np.sqrt(2 * SCALE**4 * ITEMS * K))
        np.testing.assert_allclose((each[0] - real[0].mean(axis=0)).std(), each[3].noise_sd[0], rtol=0.15)


def test_norms_of_the_mean_agree(both_ways):
    real, simulated = both_ways[True], both_ways[False]
    assert stats.ks_2samp(real[1], simulated[1]).pvalue > 1e-6
    # A mean of Gaussians is one: 2 sigma^4 / n^2 per coordinate.
    expected = SCALE**2 / CLIENTS * ITEMS * K, math.sqrt(2 * (SCALE**2 / CLIENTS) ** 2 * ITEMS * K)
    for each in (real, simulated):
        np.testing.assert_allclose(each[4].expected_noise(ITEMS, SCALE), expected, rtol=1e-12)


def test_averages_agree(both_ways):
    real, simulated = (both_ways[way][2] - both_ways[True][2].mean(axis=0) for way in (True, False))
    for noise in (real, simulated):
        np.testing.assert_allclose(noise.var(), SCALE**2 / CLIENTS, rtol=0.03)
        assert abs(stats.kurtosis(noise.ravel()[:100_000])) < 0.1
    assert stats.ks_2samp(real.ravel()[:20_000], simulated.ravel()[:20_000]).pvalue > 1e-6


def test_rules_that_see_every_upload_are_given_gaussian_cover():
    uploads = made(False, 0)
    points = UploadPoints.gather([uploads], [np.arange(CLIENTS)], ITEMS, 77)
    whole = np.stack([points.table(client) for client in range(CLIENTS)])
    cover = np.ones((CLIENTS, ITEMS), bool)
    cover[np.repeat(np.arange(CLIENTS), np.diff(uploads.pointer)), uploads.rows] = False
    noise = whole[cover].ravel() / SCALE
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(noise)) < 0.1


def test_checks_know_what_gaussian_noise_can_do():
    """An honest upload at its clip stays below the absolute bound, one far beyond it does not; healthy nodes stay healthy."""
    flags = []
    for repeat in range(20):
        uploads = made(True, repeat, 1.0)
        values = uploads.values.copy()
        values[:ITEMS] += np.float32(40 / math.sqrt(ITEMS * K))  # the first client moves by 40
        distances = upload_distances(
            values, uploads.pointer, 1.0, 0.0, ITEMS, np.zeros(CLIENTS, np.uint64), noise_kind="gaussian"
        )
        flags.append(beyond_clip(distances, 5.0))
    assert not np.array(flags)[:, 1:].any()
    assert np.array(flags)[:, 0].mean() > 0.9
    means = [node_mean([made(False, r)], [np.arange(CLIENTS)], ITEMS) for r in range(5)]
    reports = [NodeReport(node, CLIENTS, 0, False, mean) for node, mean in enumerate(means)]
    assert all(healthy_nodes(reports, ITEMS, SCALE, 6.0, 1, 1))


def test_uploads_of_two_laws_are_not_added_up():
    one, other = made(False, 0), dataclasses.replace(made(False, 1), noise_kind="laplace")
    with pytest.raises(ValueError, match="together"):
        node_mean([one, other], [np.arange(CLIENTS)] * 2, ITEMS)
