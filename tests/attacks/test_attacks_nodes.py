"""Compromised trusted nodes."""

import numpy as np
import pytest
from scenes import K, config_of

from fastpfrec_flwr.attacks.nodes import CompromisedTier, poisoned
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.tier import NodeReport

ITEMS = 500
TABLE = np.full((ITEMS, K), 3.0, np.float32)


def mean_of(cover=0.0):
    rows = np.array([1, 4], np.int32)
    return NodeMean(10, rows, np.array([[1, 2], [3, 4]], np.float32), np.array([10, 10]), cover)


def lie(attack, strength=0.0, mean=None):
    return poisoned(attack, strength, mean, TABLE, 10, np.random.default_rng(0), 0.05)


def whole(mean):
    table = np.zeros((ITEMS, K))
    table[mean.rows] = mean.values
    return table


def test_scaling():
    assert whole(lie("scaling", 0.0, mean_of()))[[1, 4]].tolist() == [[-5, -10], [-15, -20]]
    assert whole(lie("scaling", 10.0, mean_of()))[4].tolist() == [30, 40]
    assert lie("scaling", 10.0, mean_of(0.1)).cover_scale == 0.1
    assert len(lie("scaling", 10.0).rows) == 0


def test_shift():
    shifted = whole(lie("shift", 0.5, mean_of()))
    assert shifted[[1, 4]].tolist() == [[1.5, 2.5], [3.5, 4.5]]
    assert (np.delete(shifted, [1, 4], axis=0) == 0.5).all()


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_noise(sigma):
    noise = whole(lie("noise", sigma, mean_of())) - whole(mean_of())
    assert noise.std() == pytest.approx(sigma, rel=4 / np.sqrt(2 * noise.size))


def test_replacement_sends_another_table():
    sent = TABLE + whole(lie("replacement", 0.0, mean_of()))
    assert np.abs(sent).max() < 5 * 0.05
    assert sent.std() == pytest.approx(0.05, rel=0.1)


def test_noise_that_clients_did_not_carry_is_still_there():
    """The mean of 10 clients' Laplace(2) noise has deviation 2 sqrt(2 / 10) on rows that none carried."""
    cover = np.delete(whole(lie("shift", 1e-9, mean_of(2.0))), [1, 4], axis=0)
    assert cover.std() == pytest.approx(2 * np.sqrt(2 / 10), rel=4 / np.sqrt(2 * cover.size))
    assert whole(lie("shift", 1e-9, mean_of(2.0)))[1] == pytest.approx([1, 2], abs=1e-6)


class Honest:
    def collect(self, parts, num_items, server_round):
        means = [mean_of(), None, mean_of()]
        return [NodeReport(i, 12, 2, mean is None, mean) for i, mean in enumerate(means)]


def test_only_compromised_nodes_lie_and_from_the_asked_for_round_on():
    config = config_of(num_trusted_nodes=3, compromised_nodes=3, node_attack="shift", attack_from_round=2)
    tier = CompromisedTier(Honest(), config, lambda: TABLE)
    before = tier.collect([], ITEMS, 1)
    assert [report.node_isolated for report in before] == [False, True, False]
    after = tier.collect([], ITEMS, 2)
    assert [(report.node_isolated, report.isolated_clients) for report in after] == [(False, 0)] * 3
    assert [report.mean.clients for report in after] == [12] * 3
    one = CompromisedTier(Honest(), config.model_copy(update={"compromised_nodes": 1}), lambda: TABLE).collect(
        [], ITEMS, 2
    )
    assert sum(report.mean is not None and len(report.mean.rows) == ITEMS for report in one) == 1


def test_an_unknown_attack_is_refused():
    with pytest.raises(ValueError, match="got 'nonsense'"):
        lie("nonsense", 0.0, mean_of())
