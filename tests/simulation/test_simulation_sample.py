"""An evaluation of a sample of users: the same sample however they are spread, and what its figures are worth."""

import math

import pytest

from fastpfrec_flwr.evaluation.metrics import half_widths


def test_a_sample_is_the_same_over_supernodes_and_comes_near_the_whole(finished):
    whole, one, five = finished(), finished(1, evaluate_users=300), finished(5, evaluate_users=300)
    assert one.summary["test"] == five.summary["test"] != whole.summary["test"]
    assert one.summary["evaluated_users"] == five.summary["evaluated_users"]
    users = one.summary["evaluated_users"]["test"]
    assert 250 < users <= 300
    widths = one.summary["half_width_95"]["test"]
    for name in ("ndcg@20", "recall@10", "hit_rate_user@20"):
        assert abs(one.summary["test"][name] - whole.summary["test"][name]) < widths[name] < 0.06
    assert "half_width_95" not in whole.summary


def test_a_sample_of_everybody_is_everybody(finished):
    assert finished(evaluate_users=10_000).summary["test"] == finished().summary["test"]


def test_half_widths_by_hand():
    found = half_widths({"ndcg@10": 0.2, "hit_rate_user@10": 0.5, "hit_ratio_micro@10": 0.3, "recall@10": 0.0}, 400)
    assert found == {
        "ndcg@10": pytest.approx(1.96 * math.sqrt(0.16) / 20),
        "hit_rate_user@10": pytest.approx(1.96 * 0.5 / 20),
        "recall@10": 0.0,
    }
