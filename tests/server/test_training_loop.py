"""The loop around the rounds: what it leaves, stop and resume."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp

from fastpfrec_flwr import messages
from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import ConfigError, parse_run_config
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.app import app as server_app
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.run_folder import LEFT_BY_RUNS, RunFolder, choose_run_folder
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.whole_runs import Finished, settings_of

METRICS = {
    "ndcg@10", "ndcg@20", "hit_ratio_micro@10", "hit_ratio_micro@20", "hit_rate_user@10", "recall@10", "recall@20", "precision@10",
}  # fmt: skip


def device_states():
    root = Path(os.environ["XDG_STATE_HOME"]) / "fastpfrec" / "clients"
    # A database's log and its index come and go with the connection that an earlier test left open.
    found = root.rglob("*") if root.exists() else []
    return {path for path in found if path.is_file() and not path.name.endswith(("-wal", "-shm"))}


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(monkeypatch, tmp_path):
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_data_path", lambda *names, **more: tmp_path)
    config = parse_run_config(settings_of({"output_dir": ""}))
    found = [choose_run_folder(config, "now").path for _ in range(3)]
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["runs/now", "runs/now-2", "runs/now-3"]
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *names, **more: tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        choose_run_folder(config, "now")


# ---- what a run leaves -----------------------------------------------------------------------------------------------


def test_the_run_folder(finished):
    run = finished(checkpoint_every=6)
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        "config.json", "metrics.jsonl", "summary.json", "item_table.npz", "log.txt", "learning_curve.png", "checkpoints/latest.npz",
    }  # fmt: skip
    summary = run.summary
    assert set(summary) >= {
        "data_set", "rounds", "best_round", "validation", "test", "seconds", "peak_rss_mb", "clients", "bytes",
    }  # fmt: skip
    assert set(summary["validation"]) >= METRICS
    assert set(summary["test"]) >= METRICS
    seconds = summary["seconds"]
    assert set(seconds) == {"total", "round_median", "epoch", "clients_round", "trusted_nodes_round", "server_round"}
    assert seconds["epoch"] == pytest.approx(6 * seconds["round_median"])
    assert 0 < seconds["trusted_nodes_round"] < seconds["total"] / 12
    assert set(summary["clients"]) >= {"trained", "refused", "isolated"}
    assert summary["clients"]["trained"] == 12 * 100
    table = 400 * 16 * 4
    assert summary["bytes"] == {"down": 100 * table, "up": 100 * table, "nodes_up": 4 * table}
    config = run.json("config.json")
    assert parse_run_config(config["config"]).to_flat_dict() == config["config"]
    assert config["data"]["users"] == 600
    assert {"python", "flwr", "torch", "numpy"} <= set(config["versions"])
    assert [line["round"] for line in run.metrics] == [6, 12]
    with np.load(run.folder / "item_table.npz") as arrays:
        assert arrays["item_table"].shape == (400, 16)
        assert len(set(arrays["item_ids"].tolist())) == 400
    assert (run.folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_arrays_to_begin_with_and_metrics_of_ones_own():
    """What Flower's `start` may be given, without a run folder."""
    values = settings_of({"num_rounds": 2, "evaluate_every": 1})
    own_app, results, tables = ServerApp(), [], {}

    def measure(server_round, arrays):
        tables[server_round] = arrays["item-table"].numpy()
        return MetricRecord({"mean": float(tables[server_round].mean())}) if server_round == 2 else None

    @own_app.main()
    def main(grid, context):
        ones = messages.encode_model(np.ones((400, 16), np.float32))
        results.append(build_strategy(parse_run_config(context.run_config)).start(grid, ones, evaluate_fn=measure))

    run_in_process(own_app, InProcessGrid(client_app, 2, values), values)
    (result,) = results
    assert list(tables) == [1, 2]
    assert 0.5 < tables[1].mean() < 1.5, "the seed's own table has a mean of 0"
    assert list(result.evaluate_metrics_serverapp) == [2]
    assert result.evaluate_metrics_serverapp[2]["mean"] == pytest.approx(tables[2].mean())
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[1]["clients"] == 100
    assert result.arrays["item-table"].numpy().shape == (400, 16)


def test_a_refit_begins_from_the_given_arrays_too():
    """As if a run on train and validation had been given them: here one of learning rate zero leaves them as they are."""
    given = np.random.default_rng(5).normal(size=(400, 16)).astype(np.float32)
    values = settings_of({"num_rounds": 2, "evaluate_every": 2, "refit": True, "server_learning_rate": 1e-12})
    own_app, results = ServerApp(), []

    @own_app.main()
    def main(grid, context):
        config = parse_run_config(context.run_config)
        results.append(build_strategy(config).start(grid, messages.encode_model(given)))

    run_in_process(own_app, InProcessGrid(client_app, 2, values), values)
    np.testing.assert_allclose(results[0].arrays["item-table"].numpy(), given, atol=1e-6)


def test_device_states_stay_only_for_a_checkpoint(finished):
    before = device_states()
    finished()
    assert device_states() == before, "what the devices kept of a finished simulation is of no use to anybody"
    finished(checkpoint_every=6)
    copies = {path.name for path in device_states() - before if "round-" in path.name}
    assert copies == {f"{i}-of-2.round-{r}.sqlite3" for i in (0, 1) for r in (6, 12)}, "a resume needs them"


def test_sparse_uploads_are_counted_as_sent(finished):
    assert 0 < finished(upload="sparse").summary["bytes"]["up"] < 100 * 400 * 16 * 4


def test_a_folder_that_cannot_be_written(finished, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"output-dir must be a folder that can be written, got '.*file/run'"):
        finished(output_dir=str(tmp_path / "file" / "run"))
    with pytest.raises(ConfigError, match="output-dir must be an absolute path, got 'here'"):
        finished(output_dir="here")


def test_more_trusted_nodes_than_users(finished):
    with pytest.raises(RunError, match=r"num-trusted-nodes must be <= the users of the data set \(600\), got 700"):
        finished(num_trusted_nodes=700, clients_per_round=1000)


def test_a_step_that_knows_the_noise_of_more_clients_than_there_are(finished):
    spectral = {"encoder": "spectral", "server_step": "posterior", "perturbation": "none"}
    with pytest.raises(RunError, match=r"clients-per-round must be <= the users of the data set \(600\).*got 601"):
        finished(**spectral, clients_per_round=601)


def earlier_run(folder):
    """What a run with liars and figures per user leaves, with invented content, and a checkpoint."""
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "log.txt", *LEFT_BY_RUNS, "checkpoints/latest.npz", "settings.toml", "run.json"):
        (folder / name).write_text("of the earlier run")
    return folder


def test_a_killed_run_leaves_nothing_of_an_earlier_one_in_its_folder(tmp_path):
    class Killed(BaseException):
        pass

    def killed(message, context):
        if message.metadata.message_type == "train":
            raise Killed
        return client_app(message, context)

    values = settings_of({"output_dir": str(earlier_run(tmp_path / "out"))})
    with pytest.raises(Killed):
        run_in_process(server_app, InProcessGrid(killed, 1, values), values)
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    # The checkpoint is what somebody may go on from; the last two are the study's that runs here.
    assert files == {"config.json", "log.txt", "checkpoints/latest.npz", "settings.toml", "run.json"}
    assert Finished(tmp_path / "out").json("config.json")["config"]["seed"] == values["seed"]


def test_a_run_that_is_refused_leaves_an_earlier_ones_files(finished, tmp_path):
    folder = earlier_run(tmp_path / "out")
    with pytest.raises(ConfigError, match="resume-from"):
        finished(output_dir=str(folder), resume_from=str(tmp_path / "no checkpoint"))
    assert all((folder / name).read_text() == "of the earlier run" for name in ("config.json", *LEFT_BY_RUNS))


def test_what_the_run_wrote_itself_or_begins_from_is_kept(tmp_path):
    folder = RunFolder(earlier_run(tmp_path / "out"))
    write_atomically(
        folder.path / "user_metrics.npz", b"of this run"
    )  # as a central model does, before its configuration
    changes = {"output_dir": str(folder.path), "initial_model": str(folder.path)}
    folder.write_config(parse_run_config(settings_of(changes)), {})
    left = {path.name for path in folder.path.iterdir()} & set(LEFT_BY_RUNS)
    assert left == {"user_metrics.npz", "item_table.npz", "catalogue.json"}


def test_a_run_goes_on_in_its_own_folder(finished, tmp_path):
    whole = finished()
    settings = settings_of({"output_dir": str(tmp_path / "out"), "checkpoint_every": 6})
    run_until(settings, "train", 8)
    resumed = finished(
        output_dir=str(tmp_path / "out"),
        checkpoint_every=6,
        resume_from=str(tmp_path / "out" / "checkpoints" / "latest.npz"),
    )
    assert resumed.folder == tmp_path / "out"
    assert [line["round"] for line in resumed.metrics] == [6, 12]
    assert resumed.summary["test"] == whole.summary["test"]


# ---- stop and resume -------------------------------------------------------------------------------------------------


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
