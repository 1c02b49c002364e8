"""Whose folder a run takes: its own, where it can be written, and with nothing of an earlier run in it."""

import pytest

from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import ConfigError, parse_run_config
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.app import app as server_app
from fastpfrec_flwr.server.run_folder import LEFT_BY_RUNS, RunFolder, choose_run_folder
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.server.test_training_resume import run_until
from tests.whole_runs import Finished, settings_of


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


def test_a_folder_that_cannot_be_written(finished, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"output-dir must be a folder that can be written, got '.*file/run'"):
        finished(output_dir=str(tmp_path / "file" / "run"))
    with pytest.raises(ConfigError, match="output-dir must be an absolute path, got 'here'"):
        finished(output_dir="here")


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
