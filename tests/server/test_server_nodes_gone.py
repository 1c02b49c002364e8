"""Whole runs with trusted nodes that fail, are put in quarantine or are all gone; quorums; and why clients did not train."""

import re

import numpy as np
import pytest

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.messages import TrainReport
from fastpfrec_flwr.privacy.upload_costs import upload_epsilons
from fastpfrec_flwr.server.assignment import assignment_key, with_keyed_nonces
from fastpfrec_flwr.server.build import build_roster
from fastpfrec_flwr.server.rounds import RoundOutcome, Tally, count_skips
from fastpfrec_flwr.trusted_node.roster import AllThere
from fastpfrec_flwr.trusted_node.uploads import Norms
from tests.hostile import honest_upload
from tests.server.test_server_bad_uploads import LIAR, a_grid, a_strategy, fails
from tests.whole_runs import settings_of


def plain_uploads(partition=0):
    return messages.uploads.Uploads(
        *(getattr(honest_upload(partition, 1), name) for name in ("nonces", "pointer", "rows", "values", "cover_scale"))
    )


# ---- failures --------------------------------------------------------------------------------------------------------


def test_the_same_figures_whatever_the_number_of_supernodes(finished):
    settings = {
        "failed_nodes": 1,
        "failure_start": 3,
        "failure_probability": 0.1,
        "failure_rounds": 2,
        "failure_moment": "during",
    }
    one = finished(1, **settings)
    one.assert_same(finished(3, **settings))
    assert one.summary["clients"]["lost"] > 0
    assert one.summary["clients"]["reassigned"] > 0
    assert one.summary["nodes"]["failures"] > 1


def test_a_run_without_failures_is_the_run_that_it_was(finished):
    """Keys of failures that never happen change no bit."""
    finished().assert_same(finished(failed_nodes=2, failure_start=99, failure_moment="after", reassignment="none"))


def test_failed_nodes_cost_no_upload_with_a_retry_and_the_run_learns_as_before(finished):
    clean, failed = finished(), finished(failed_nodes=2)
    assert failed.summary["clients"]["lost"] == 0
    assert failed.summary["nodes"] == {
        "failures": 2,
        "rounds_away": 24,
        "rounds_quarantined": 0,
        "rounds_without_any": 0,
    }
    assert failed.summary["test"]["ndcg@20"] > 0.95 * clean.summary["test"]["ndcg@20"]
    assert "failed before collecting" in failed.log
    assert [line["nodes_away"] for line in failed.metrics] == [12, 24]


def test_without_reassignment_their_clients_are_lost(finished):
    run = finished(failed_nodes=2, reassignment="none")
    clients = run.summary["clients"]
    assert 0.4 < clients["lost_share"] < 0.6
    assert clients["trained"] == 1200
    assert clients["reassigned"] == 0
    assert [line["lost"] for line in run.metrics][-1] == clients["lost"]


def test_where_all_nodes_are_gone_the_model_stays_until_one_returns(finished):
    run = finished(failed_nodes=4, failure_start=3, failure_rounds=5, num_rounds=9, evaluate_every=1)
    losses = [line["loss"] for line in run.metrics]
    figures = [line["validation"]["ndcg@20"] for line in run.metrics]
    assert run.summary["rounds_without_update"] == run.summary["nodes"]["rounds_without_any"] == 5
    assert run.log.count("no trusted node is there; the model stays as it was") == 5
    assert "round 8: trusted nodes 0, 1, 2, 3 back" in run.log
    assert len(losses) == 9
    assert run.table.tobytes() != finished(num_rounds=2, evaluate_every=1).table.tobytes()
    assert figures[8] != figures[6]


def test_a_resumed_run_meets_the_same_failures_and_quarantine(finished, tmp_path):
    from tests.server.test_training_resume import run_until

    settings = {
        "num_rounds": 8, "evaluate_every": 2, "checkpoint_every": 4, "num_trusted_nodes": 8, "node_z_threshold": 1.0,
        "quarantine_rounds": 3, "failure_probability": 0.1, "failure_rounds": 2,
    }  # fmt: skip
    whole = finished(**settings)
    assert whole.summary["nodes"]["rounds_quarantined"] > 3
    stopped = run_until(settings_of({**settings, "output_dir": str(tmp_path / "out")}), "train", 5)
    resumed = finished(**settings, resume_from=str(stopped.folder / "checkpoints" / "latest.npz"))
    resumed.assert_same(whole)
    assert resumed.summary["nodes"] == whole.summary["nodes"]


def test_quarantine_leaves_isolated_nodes_out_and_takes_them_back(finished):
    """A check so strict that nodes are isolated all the time: each is out for two rounds, then there again."""
    run = finished(node_z_threshold=1.0, num_trusted_nodes=8, quarantine_rounds=2)
    assert 0 < run.summary["nodes"]["rounds_quarantined"] <= 2 * run.summary["clients"]["isolated_nodes"]
    assert re.search(r"round 2: .* isolated, in quarantine up to round 4", run.log)
    assert re.search(r"round 5: .* back from quarantine", run.log)
    free = finished(node_z_threshold=1.0, num_trusted_nodes=8, quarantine_rounds=0)
    assert free.summary["nodes"]["rounds_quarantined"] == 0
    assert "in quarantine" not in free.log


def test_honest_nodes_in_quarantine_cost_no_upload_and_nothing_that_was_learnt(finished):
    """Nobody lies and the check across nodes is far too strict: what its nodes would have had goes to the others."""
    clean, strict = finished(num_trusted_nodes=8), finished(num_trusted_nodes=8, node_z_threshold=1.0)
    assert strict.summary["nodes"]["rounds_quarantined"] > 12
    assert strict.summary["clients"]["reassigned"] > 100
    assert strict.summary["clients"]["lost"] == 0
    assert strict.summary["rounds_without_update"] == 0
    assert strict.summary["test"]["ndcg@20"] > 0.95 * clean.summary["test"]["ndcg@20"]


def test_a_node_isolated_for_its_clients_is_no_suspect(finished):
    """The paper's rule leaves out most nodes in every round; with them in quarantine nobody would be left to train with."""
    run = finished(check="paper", robust_z_threshold=1.0, outlier_ratio_threshold=0.2, node_z_threshold=0.0)
    assert run.summary["clients"]["isolated_nodes"] > 12
    assert run.summary["nodes"]["rounds_quarantined"] == 0


def test_the_default_quarantine_needs_no_switching_off():
    """Without trusted nodes, or with groups that the server draws, it means nothing and contradicts nothing."""
    assert default_values()["quarantine-rounds"] == 20
    for changes in ({"tier": "direct"}, {"strategy": "flwr:FedAvg"}, {"secure_sum": True, "check": "none"}):
        config = parse_run_config(settings_of(changes))
        assert config.quarantine_rounds == 20
    assert isinstance(build_roster(config), AllThere)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failed-nodes": 11}, r"failed-nodes must be <= num-trusted-nodes \(10\), got 11"),
        ({"failed-nodes": 1, "tier": "direct"}, "failed-nodes must be 0 without trusted nodes"),
        (
            {"failure-probability": 0.1, "strategy": "flwr:FedAvg"},
            "failure-probability must be 0 without trusted nodes",
        ),
        ({"min-clients": 257}, r"min-clients must be <= clients-per-round \(256\), got 257"),
        ({"failure-moment": "never"}, "failure-moment must be one of 'before', 'during' or 'after'"),
        ({"failure-rounds": -1}, "failure-rounds must be >= 0"),
    ],
)
def test_contradictions_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_run_config({**default_values(), **changes})


# ---- quorum ----------------------------------------------------------------------------------------------------------


def test_a_round_below_the_quorum_leaves_the_model():
    enough, too_few = a_strategy(min_clients=7), a_strategy(min_clients=8)
    outcome = enough.run_round(a_grid({LIAR: fails}), 1)
    assert outcome.moved
    before = too_few.state.item_table.tobytes()
    outcome = too_few.run_round(a_grid({LIAR: fails}), 1)
    assert not outcome.moved
    assert outcome.why_unmoved == "7 usable uploads, and min-clients is 8"
    assert too_few.state.item_table.tobytes() == before
    assert too_few.run_round(a_grid(), 2).moved


def test_stragglers_are_cut_off_and_the_quorum_goes_on():
    """Two hang: the round ends at its deadline with the six others, and the next one is theirs again."""
    strategy, grid = a_strategy(min_clients=6), a_grid()
    grid.silent = frozenset({1, LIAR})
    outcome = strategy.run_round(grid, 1)
    assert (outcome.trained, outcome.moved) == (6, True)
    assert outcome.refused == ["client failed (code 4): no answer within 0.2 s"] * 2
    assert outcome.tier_seconds[0] < 2
    grid.silent = frozenset()
    outcome = strategy.run_round(grid, 2)
    assert (outcome.trained, outcome.refused) == (8, [])


def test_uploads_lost_with_a_node_do_not_count_for_the_quorum():
    strategy = a_strategy(min_clients=8, failed_nodes=1, reassignment="none")
    outcome = strategy.run_round(a_grid(), 1)
    assert (outcome.trained, outcome.moved) == (8, False)
    assert outcome.attendance.lost > 0
    assert outcome.why_unmoved == f"{8 - outcome.attendance.lost} usable uploads, and min-clients is 8"


def test_another_strategy_keeps_the_quorum_too(finished):
    run = finished(strategy="flwr:FedAvg", num_rounds=2, evaluate_every=2, min_clients=100)
    assert run.summary["rounds_without_update"] == 0
    run = finished(2, _one_reply_less, strategy="flwr:FedAvg", num_rounds=2, evaluate_every=2, min_clients=100)
    assert run.summary["rounds_without_update"] == 2
    assert "usable uploads, and min-clients is 100; the model stays as it was" in run.log


def _one_reply_less(message, context):
    from fastpfrec_flwr.client.app import app

    if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
        raise ZeroDivisionError("out of battery")
    return app(message, context)


def test_a_supernode_refuses_a_table_that_is_not_of_its_catalogue(finished):
    """As when its data set changed since the run began, or the server's did."""
    from fastpfrec_flwr.client.app import app

    def with_another_table(message, context):
        if context.node_config["partition-id"] == 0 and "model" in message.content:
            message.content["model"] = messages.encode_model(np.zeros((399, 16), np.float32))
        return app(message, context)

    run = finished(2, with_another_table, num_rounds=2, evaluate_every=2)
    reason = "the item table has 399 rows, this SuperNode's catalogue 400 items"
    assert run.log.count(f"1 refused: {reason}") == 2
    assert f"evaluation refused: {reason}" in run.log
    assert run.summary["rounds_without_update"] == 0


# ---- who goes where --------------------------------------------------------------------------------------------------


def test_with_real_devices_each_round_has_a_key_that_nobody_knows():
    plain, seeded = (parse_run_config(settings_of({"secret_assignment": secret})) for secret in (False, True))
    assert assignment_key(plain, False, "train", 1) is None
    assert assignment_key(seeded, False, "train", 1) == assignment_key(seeded, False, "train", 1)
    assert len({assignment_key(seeded, False, phase, r) for phase in ("train", "refit") for r in (1, 2)}) == 4
    assert len({assignment_key(plain, True, "train", 1) for _ in range(20)}) == 20
    devices = a_strategy()
    devices.attach(type(devices._nodes)([1], [messages.Description(-1, 1, 40, "c", "d", "n")], []), "s")
    assert devices._exchange._one_by_one


def test_a_key_changes_nonces_and_nothing_else():
    uploads = plain_uploads().with_norms(Norms(np.array([2.0]), np.array([1.0])))
    mixed = with_keyed_nonces(uploads, 77)
    assert mixed.nonces != uploads.nonces
    assert mixed.values is uploads.values
    assert mixed.norms is uploads.norms
    assert with_keyed_nonces(uploads, None) is uploads


def test_a_secret_assignment_gives_the_same_run_whatever_the_number_of_supernodes(finished):
    one = finished(1, secret_assignment=True)
    one.assert_same(finished(3, secret_assignment=True))
    assert one.table.tobytes() != finished(1).table.tobytes()


# ---- why clients did not train ---------------------------------------------------------------------------------------


def test_skips_carry_their_reason(finished):
    """A budget for one upload: in the second half of the run everybody that is drawn has spent it."""
    config = parse_run_config(settings_of({}))
    one_upload, _ = upload_epsilons(config, 400)
    run = finished(epsilon_budget=1.5 * one_upload, evaluate_every=6)
    assert run.summary["clients"]["skip_reasons"] == {"privacy budget spent": 600}
    assert [line["skipped"] for line in run.metrics] == [{}, {"privacy budget spent": 600}]
    assert run.log.count("round 7: clients that did not train: 100 privacy budget spent") == 1
    assert run.log.count("clients that did not train") == 1


def test_skips_of_a_round_are_counted_by_reason():
    reports = [TrainReport(1, 5, 0.0, 0, 2), TrainReport(1, 1, 0.0, 0, 1), TrainReport(1, 0, 0.0, 0)]
    assert count_skips(reports) == {"nothing to learn from": 3, "privacy budget spent": 3}
    assert count_skips(reports[1:]) == {"privacy budget spent": 1}


def test_reasons_are_counted_up_to_a_bound():
    tally = Tally()
    for number in range(1000):
        tally.add(RoundOutcome(0, [f"reason {number}", "upload came twice"], 0, 0, 0, None, 0, False))
    assert len(tally.reasons) <= 201
    assert tally.reasons["upload came twice"] == 1000
    assert tally.reasons.total() == 2000
