"""An evaluation of a sample of users: the same sample however they are spread, and what its figures are worth."""

import math

import pytest

from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.evaluation.metrics import half_widths
from fastpfrec_flwr.server.steps import initial_table
from tests.whole_runs import settings_of


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


@pytest.mark.parametrize("share", [0.5, 0.1, 0.002, 0.0005])
def test_rows_drawn_by_lot_make_the_step_of_whole_tables(finished, share):
    """Slope of the one's change on the other's, one step of all users: 1, also where the share of 400 rows is no whole number.

    Its standard error is sqrt(1 / share / 600) of a row's own spread, so a few percent to a third: 4.3 was what an upload of one
    row, taken for a fifth of one, came to.
    """
    plain = {
        "num_rounds": 1, "evaluate_every": 1, "embedding_dim": 8, "clients_per_round": 600, "noise": "none", "noise_scale": 0.0,
        "check": "none", "node_z_threshold": 0.0, "row_steadiness_threshold": 0.0, "num_trusted_nodes": 1, "row_clip": 0.0,
        "clip_norm": 0.0, "server_step": "average",
    }  # fmt: skip
    before = initial_table(400, 8, parse_run_config(settings_of({"embedding_dim": 8})))
    whole = finished(**plain).table - before
    drawn = finished(**plain, upload="sampled", sampled_share=share).table - before
    assert (drawn * whole).sum() / (whole * whole).sum() == pytest.approx(1.0, abs=0.4)
