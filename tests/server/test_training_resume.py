"""Runs that are stopped, killed and gone on from: the run that was never stopped, and what a checkpoint refuses."""

import re
from pathlib import Path

import numpy as np
import pytest

from fastpfrec_flwr import messages
from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.server.app import app as server_app
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.whole_runs import Finished, settings_of


def run_until(values, phase, server_round):
    """Run, and ask for the end while `server_round` of `phase` is being trained."""

    def interrupting(message, context):
        if message.metadata.message_type == "train":
            order = messages.decode_query(message.content)
            if (order.phase, order.server_round) == (phase, server_round):
                grid.interrupt()
        return client_app(message, context)

    grid = InProcessGrid(interrupting, 2, values)
    run_in_process(server_app, grid, values)
    return Finished(Path(values["output-dir"]))


def test_a_stop_ends_after_the_round_and_leaves_everything(tmp_path):
    run = run_until(settings_of({"output_dir": str(tmp_path / "out")}), "train", 8)
    assert run.summary["stopped"] is True
    assert run.summary["rounds"] == 8
    assert run.summary["best_round"] == 6
    assert run.summary["test"]["ndcg@20"] > 0.1
    assert "stopped after round 8" in run.log
    assert run.table.shape == (400, 16)


def test_a_stop_file_ends_the_run_after_the_round_and_is_gone(tmp_path):
    values = settings_of({"output_dir": str(tmp_path / "out")})

    def stopping(message, context):
        if message.metadata.message_type == "train" and messages.decode_query(message.content).server_round == 3:
            (tmp_path / "out" / "stop").touch()
        return client_app(message, context)

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stop").touch()  # of a run before: it says nothing to this one
    run_in_process(server_app, InProcessGrid(stopping, 1, values), values)
    run = Finished(tmp_path / "out")
    assert run.summary["stopped"] is True
    assert run.summary["rounds"] == 3
    assert not (tmp_path / "out" / "stop").exists()


def test_the_end_of_the_process_loses_the_round_and_leaves_everything_else(tmp_path):
    """As `flwr stop` ends a ServerApp of a deployment: from then on no message gets through, not even a farewell."""
    values = settings_of({"output_dir": str(tmp_path / "out")})

    def ending(message, context):
        assert not ended
        order = messages.decode_query(message.content)
        if message.metadata.message_type == "train" and order.server_round == 8:
            ended.append(True)
            raise SystemExit(0)
        return client_app(message, context)

    ended = []
    with pytest.raises(SystemExit):
        run_in_process(server_app, InProcessGrid(ending, 1, values), values)
    run = Finished(Path(values["output-dir"]))
    assert run.summary["stopped"] is True
    assert run.summary["rounds"] == 7
    assert run.summary["best_round"] == 6
    assert run.summary["test"]["ndcg@20"] > 0.1
    assert "stopped after round 7" in run.log


def test_a_stop_before_the_first_evaluation_leaves_a_table(tmp_path):
    run = run_until(settings_of({"output_dir": str(tmp_path / "out")}), "train", 1)
    assert run.summary["stopped"] is True
    assert run.summary["validation"] == {}
    assert np.isfinite(run.table).all()


RESUMED = {"num_rounds": 6, "evaluate_every": 2, "checkpoint_every": 4}


@pytest.mark.parametrize(
    ("changes", "phase", "server_round"),
    [
        ({}, "train", 5),
        ({}, "train", 4),
        ({"server_step": "average", "server_learning_rate": 1.0}, "train", 5),
        ({"blend_weight": 0.5, "embedding_dim": 8, "clients_per_round": 40}, "train", 5),
        ({"refit": True, "checkpoint_every": 2}, "refit", 3),
        ({"refit": True}, "train", 5),
        # It dies in the refit before that has a checkpoint of its own: after the last round of the training, or before it.
        ({"refit": True, "checkpoint_every": 6}, "refit", 3),
        ({"refit": True}, "refit", 3),
    ],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(finished, tmp_path, changes, phase, server_round):
    settings = {**RESUMED, **changes}
    whole = finished(**settings)
    stopped = run_until(settings_of({**settings, "output_dir": str(tmp_path / "out")}), phase, server_round)
    resumed = finished(**settings, resume_from=str(stopped.folder / "checkpoints" / "latest.npz"))
    assert stopped.summary["stopped"] is True
    assert "going on after round" in resumed.log
    assert resumed.summary["stopped"] is False
    resumed.assert_same(whole)


def test_a_run_that_was_out_of_patience_is_not_trained_on(finished):
    settings = {
        "num_rounds": 12, "evaluate_every": 1, "early_stop_patience": 1, "server_learning_rate": 1e-9, "checkpoint_every": 1,
    }  # fmt: skip
    whole = finished(**settings)
    assert "stopped early" in whole.log
    resumed = finished(**settings, resume_from=str(whole.folder / "checkpoints" / "latest.npz"))
    assert resumed.summary["rounds"] == whole.summary["rounds"] < 12
    assert resumed.summary["best_round"] == whole.summary["best_round"]
    assert "stopped early" in resumed.log


def test_whose_figures_are_missing_from_the_refits_test_is_said(tmp_path):
    values = settings_of({"output_dir": str(tmp_path / "out"), "refit": True, "num_rounds": 2, "evaluate_every": 2})

    def away(message, context):
        order = messages.decode_query(message.content)
        if (
            message.metadata.message_type == "evaluate"
            and order.phase == "refit"
            and context.node_config["partition-id"] == 0
        ):
            raise RuntimeError("asleep")
        return client_app(message, context)

    run_in_process(server_app, InProcessGrid(away, 2, values), values)
    assert re.search("refit, test figures: evaluation refused: .*asleep", (tmp_path / "out" / "log.txt").read_text())


def test_a_checkpoint_of_another_configuration_is_refused(finished, tmp_path):
    stopped = run_until(settings_of({**RESUMED, "output_dir": str(tmp_path / "out")}), "train", 5)
    checkpoint = str(stopped.folder / "checkpoints" / "latest.npz")
    with pytest.raises(ConfigError) as caught:
        finished(**{**RESUMED, "num_rounds": 8}, seed=3, resume_from=checkpoint)
    assert "seed = 1 there, 3 here" in str(caught.value)
    assert "num-rounds = 6 there, 8 here" in str(caught.value)
    assert "noise-scale" not in str(caught.value)
    for less, words in (
        ({"report_loss": False}, "report-loss = True there, False"),
        ({"evaluate_every": 0}, "evaluate-every"),
    ):
        with pytest.raises(ConfigError, match=f"{words}.*what was sent up to there was sent"):
            finished(**{**RESUMED, **less}, resume_from=checkpoint)
    finished(**{**RESUMED, "checkpoint_every": 1, "evaluate_every": 3}, resume_from=checkpoint)  # these may differ


def test_a_broken_checkpoint_is_refused(finished, tmp_path):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ConfigError, match=re.escape(str(broken))):
        finished(resume_from=str(broken))
    with pytest.raises(ConfigError, match="which is no file"):
        finished(resume_from=str(tmp_path / "missing.npz"))
