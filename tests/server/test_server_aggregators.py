"""The server's rule across node means: by hand, blocks, cover noise, and the mean that stays what it was."""

import numpy as np
import pytest

from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.server import aggregators as module
from fastpfrec_flwr.server.aggregators import NodeAverage
from fastpfrec_flwr.server.average import average_nodes
from fastpfrec_flwr.server.build import build_server_aggregator
from fastpfrec_flwr.trusted_node.aggregation import NodeMean

ROBUST = ["median", "trimmed-mean", "geometric-median"]


def aggregator(name, **changes):
    return build_server_aggregator(parse_run_config({**default_values(), "server-aggregator": name, **changes}))


def mean_of(rows, values, clients=4, touched=None, cover=0.0):
    touched = np.full(len(rows), clients) if touched is None else np.array(touched)
    return NodeMean(clients, np.array(rows, np.int32), np.array(values, np.float64), touched, cover)


def test_by_hand():
    """Three nodes, three items. Row 0: 1, 3, 100; row 1: 5 and twice nothing; row 2: nothing, 2, 4."""
    means = [mean_of([0, 1], [[1.0], [5]]), mean_of([0, 2], [[3.0], [2]]), mean_of([0, 2], [[100.0], [4]])]
    np.testing.assert_array_equal(aggregator("median").combine(means, 3, 1, 1, 1)[:, 0], [3, 0, 2])
    trimmed = aggregator("trimmed-mean", **{"trim-fraction": 0.4}).combine(means, 3, 1, 1, 1)
    np.testing.assert_array_equal(trimmed[:, 0], [3, 0, 2])
    # One far away: the other two balance, so the result lies on the way between them and near it.
    far = aggregator("geometric-median").combine(means, 3, 1, 1, 1)[:, 0]
    assert np.linalg.norm(far - [2, 2.5, 1]) < 3


def test_mean_is_the_average_to_the_bit():
    generator = np.random.default_rng(0)
    means = [mean_of([1, 4, 7], generator.normal(size=(3, 5)), cover=0.1, touched=[1, 2, 3]) for _ in range(3)]
    assert isinstance(aggregator("mean"), NodeAverage)
    ours = aggregator("mean").combine(means, 10, 5, 3, 8)
    assert ours.tobytes() == average_nodes(means, 10, 5, 3, 8).tobytes()


@pytest.mark.parametrize("name", ROBUST)
def test_a_lying_node_moves_little(name):
    generator = np.random.default_rng(1)
    rows = np.arange(20)
    honest = [mean_of(rows, generator.normal(size=(20, 3))) for _ in range(9)]
    liar = mean_of(rows, np.full((20, 3), 1e6))
    centre = np.mean([mean.values for mean in honest], axis=0)
    moved = aggregator(name).combine([*honest, liar], 20, 3, 1, 1)
    assert np.abs(moved - centre).max() < 3
    assert np.abs(aggregator("mean").combine([*honest, liar], 20, 3, 1, 1)).max() > 1e4


@pytest.mark.parametrize("name", ROBUST)
def test_blocks_change_nothing(name, monkeypatch):
    generator = np.random.default_rng(2)
    means = [
        mean_of(
            np.sort(generator.choice(500, 200, replace=False)),
            generator.normal(size=(200, 4)),
            cover=0.1,
            touched=[2] * 200,
        )
        for _ in range(5)
    ]
    one = aggregator(name).combine(means, 500, 4, 1, 1)
    monkeypatch.setattr(module, "BLOCK_VALUES", 5 * 4 * 64)
    np.testing.assert_allclose(aggregator(name).combine(means, 500, 4, 1, 1), one, atol=1e-9)
    assert not np.array_equal(aggregator(name).combine(means, 500, 4, 1, 2), one), "noise is drawn anew every round"
    assert not np.array_equal(aggregator(name).combine(means, 500, 4, 2, 1), one)


def test_cover_noise_of_each_node_has_its_variance():
    """Two nodes and the trimmed mean that cuts nothing: (2 lambda^2 / 4)(missing / clients) on each row, as `average_nodes`."""
    nothing = aggregator("trimmed-mean", **{"trim-fraction": 0.0})
    means = [
        mean_of([0], np.zeros((1, 400)), clients=2, cover=0.1),
        mean_of([0], np.zeros((1, 400)), clients=4, cover=0.1),
    ]
    noise = np.stack([nothing.combine(means, 30, 400, 1, r) for r in range(20)])
    assert not noise[:, 0].any()
    expected = 0.02 / 4 * (1 / 2 + 1 / 4)
    np.testing.assert_allclose(noise[:, 1:].var(), expected, rtol=5 * np.sqrt(2 / noise[:, 1:].size))


@pytest.mark.parametrize("name", [*ROBUST, "mean"])
def test_one_node_is_itself(name):
    values = np.random.default_rng(3).normal(size=(4, 2))
    np.testing.assert_allclose(
        aggregator(name).combine([mean_of([0, 1, 2, 3], values)], 4, 2, 1, 1), values, atol=1e-12
    )
