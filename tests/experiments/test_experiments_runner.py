"""Running a study: real runs in real worker processes, resumed, failing, interrupted, and by two at once."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fastpfrec_flwr.evaluation.user_metrics import UserMetrics
from fastpfrec_flwr.experiments.cells import Choice, cells_of
from fastpfrec_flwr.experiments.pool import Worker, WorkerDied
from fastpfrec_flwr.experiments.runner import State, current_round, run_cells
from fastpfrec_flwr.experiments.study import Study
from fastpfrec_flwr.experiments.suite import SuiteError, load_suite
from fastpfrec_flwr.experiments.worker import write_settings
from tests.experiments.own import MINE, record_of, write

ROOT = Path(__file__).resolve().parents[2]


class Told:
    """Keeps what the runner tells."""

    def __init__(self):
        self.cells, self.steps = [], []

    def step(self, text):
        self.steps.append(text)

    def progress(self, state):
        self.state = state

    def ended(self, cell, record, folder):
        self.cells.append((cell.variant, cell.seed, record.status))


def run(path, suite_file, choice=None, workers=1):
    suite = load_suite(str(suite_file))
    choice = choice or Choice()
    cells = cells_of(suite, choice)
    study, told = Study(path), Told()
    with study.lock():
        study.write(suite, cells, choice.quick)
        state = run_cells(study, cells, workers, told)
    return study, cells, state, told


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return (*run(folder / "study", write(folder), workers=2), write(folder))


# ---- a whole study ---------------------------------------------------------------------------------------------------


def test_every_run_leaves_what_the_report_needs(finished_study):
    study, cells, state, told, _ = finished_study
    assert (state.total, state.done, state.failed) == (6, 6, 0)
    assert sorted(told.cells) == sorted((cell.variant, cell.seed, "done") for cell in cells)
    for cell in cells:
        folder = study.folder(cell)
        record = record_of(folder)
        assert set(record) == {
            "variant", "data_set", "seed", "key", "status", "error", "seconds", "finished_at", "source",
        }  # fmt: skip
        assert (record["status"], record["error"], record["key"]) == ("done", None, cell.key)
        assert record["seconds"] > 0
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["seed"] == cell.seed
        users = UserMetrics.load(folder / "user_metrics.npz")
        for k in (10, 20):
            assert users.hit_ratio_micro(k) == summary["test"][f"hit_ratio_micro@{k}"]
            assert users.values[f"ndcg@{k}"].mean(dtype=np.float64) == pytest.approx(summary["test"][f"ndcg@{k}"])
        assert not (folder / "state").exists()
        config = json.loads((folder / "config.json").read_text())["config"]
        assert config["seed"] == cell.seed
    # Users pair between variants of a seed.
    first = [UserMetrics.load(study.folder(cell) / "user_metrics.npz") for cell in cells if cell.seed == 1]
    assert all((first[0].users == each.users).all() for each in first)
    assert all((first[0].values["truth"] == each.values["truth"]).all() for each in first)


def test_the_study_says_what_belongs_to_it(finished_study):
    study, cells, *_ = finished_study
    found = study.read()
    assert found["name"] == "mine"
    assert found["metrics"] == ["hit_ratio_micro@20", "ndcg@20"]
    assert (found["data_sets"], found["seeds"], found["quick"]) == (["synthetic"], [1, 2], False)
    assert found["reference"] == "none"
    assert found["paper"][0] == {
        "variant": "none", "data_set": "synthetic", "metric": "hit_ratio_micro", "value": 0.5, "where": "Table 1",
    }  # fmt: skip
    assert {entry["folder"] for entry in found["runs"]} == {cell.folder for cell in cells}


def test_a_run_is_what_simulate_makes(finished_study, finished):
    study, cells, *_ = finished_study
    cell = next(cell for cell in cells if cell.variant == "none" and cell.seed == 2)
    own = {key.replace("-", "_"): value for key, value in cell.values.items() if key not in ("output-dir", "state-dir")}
    direct = finished(**own)
    summary = json.loads((study.folder(cell) / "summary.json").read_text())
    assert summary["test"] == direct.summary["test"]
    with np.load(study.folder(cell) / "item_table.npz") as arrays:
        assert arrays["item_table"].tobytes() == direct.table.tobytes()


def test_the_references_are_those_of_the_command(finished_study):
    from fastpfrec_flwr.baselines.central import reference_metrics
    from fastpfrec_flwr.data import SplitSettings, prepare

    study, cells, *_ = finished_study
    cell = next(cell for cell in cells if cell.kind == "central" and cell.seed == 1)
    split = prepare("synthetic", None, SplitSettings("auto", 0.1, 0.2, 1)).load()
    for part in ("validation", "test"):
        found = json.loads((study.folder(cell) / "summary.json").read_text())[part]
        assert found == reference_metrics(split, part)["item_knn"]


def test_what_is_done_is_not_run_again(finished_study):
    study, cells, _, _, file = finished_study
    before = {cell.folder: (study.folder(cell) / "summary.json").stat().st_mtime_ns for cell in cells}
    _, _, state, told = run(study.path, file)
    assert (state.done, told.cells, told.steps) == (6, [], [])
    assert before == {cell.folder: (study.folder(cell) / "summary.json").stat().st_mtime_ns for cell in cells}


def test_a_changed_variant_is_run_and_the_old_one_no_longer_listed(finished_study, tmp_path):
    import shutil

    study, cells, *_ = finished_study
    copy = tmp_path / "study"
    shutil.copytree(study.path, copy)
    changed = write(tmp_path, MINE.replace('perturbation = "none"', 'perturbation = "none", l2 = 0.5'))
    _, _, _, told = run(copy, changed, Choice(seeds=[1]))
    assert told.cells == [("none", 1, "done")]
    listed = Study(copy).read()["runs"]
    # Seed 2 of the old "none" lies there still but belongs to another variant; the rest of seed 2 goes on being listed.
    assert sorted((entry["variant"], entry["seed"]) for entry in listed) == [
        ("10 % false", 1), ("10 % false", 2), ("ItemKNN", 1), ("ItemKNN", 2), ("none", 1),
    ]  # fmt: skip
    assert (copy / next(cell.folder for cell in cells if cell.variant == "none" and cell.seed == 2)).is_dir()


def test_another_study_in_the_folder_is_refused(finished_study, tmp_path):
    study, *_ = finished_study
    other = tmp_path / "mine.toml"
    other.write_text(MINE.replace('name = "mine"', 'name = "other"'))
    with pytest.raises(SuiteError, match="holds the study 'mine'; give another folder"):
        run(study.path, other)
    with pytest.raises(SuiteError, match="holds the study 'mine'"):
        run(study.path, write(tmp_path), Choice(quick=True))


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path):
    """More trusted nodes than the data set has users: only a run can find that out."""
    broken = MINE.replace(
        'name = "10 % false"', 'name = "10 % false"\noverrides = { num-trusted-nodes = 700 }'
    ).replace("clients-per-round = 60", "clients-per-round = 700")
    study, cells, state, told = run(tmp_path / "study", write(tmp_path, broken), Choice(seeds=[1]))
    assert sorted(told.cells) == [("10 % false", 1, "failed"), ("ItemKNN", 1, "done"), ("none", 1, "done")]
    assert (state.done, state.failed) == (2, 1)
    cell = next(cell for cell in cells if cell.variant == "10 % false")
    record = record_of(study.folder(cell))
    assert record["error"].startswith("num-trusted-nodes must be <= the users of the data set (600), got 700")
    # It is tried again, alone.
    _, _, again, told = run(tmp_path / "study", write(tmp_path, broken), Choice(seeds=[1]))
    assert told.cells == [("10 % false", 1, "failed")]
    assert (again.done, again.failed) == (2, 1)


def test_data_that_cannot_be_had_end_it_before_any_run(tmp_path):
    with pytest.raises(SuiteError, match=r"/nowhere\.csv"):
        run(tmp_path / "study", write(tmp_path), Choice(seeds=[1], data_sets=["/nowhere.csv"]))
    assert not list((tmp_path / "study").rglob("run.json"))


def test_a_job_that_crashes_costs_itself_only(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    worker = Worker(tmp_path / "log")
    try:
        worker.give({"do": "no such job", "folder": str(tmp_path / "a")})
        assert wait(worker) == 1
        assert "KeyError: 'no such job'" in (tmp_path / "a" / "output.txt").read_text()
        write_settings(tmp_path / "b" / "settings.toml", {"data-set": "x"})
        worker.give({"do": "run", "folder": str(tmp_path / "b"), "kind": "federated", "model": None})
        assert wait(worker) == 2
        assert "error: " in (tmp_path / "b" / "output.txt").read_text()
        worker._process.stdin.close()  # as whatever ends the master does
        assert worker._process.wait(60) == 0
        with pytest.raises(WorkerDied, match="status 0"):
            wait(worker)
    finally:
        worker.end()


def wait(worker):
    deadline = time.monotonic() + 60
    while (status := worker.poll(0.2)) is None:
        assert time.monotonic() < deadline
    return status


# ---- interrupts and locks --------------------------------------------------------------------------------------------


def start(folder, file, *options):
    command = [sys.executable, "-m", "fastpfrec_flwr", "experiment", "run", str(file), "--output-dir", str(folder)]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_an_interrupt_costs_the_runs_in_flight_and_says_how_to_go_on(tmp_path):
    endless = MINE.replace('name = "10 % false"', 'name = "10 % false"\noverrides = { num-rounds = 1000000 }')
    study = tmp_path / "study"
    process = start(study, write(tmp_path, endless), "--seeds", "1", "--workers", "2")
    try:
        deadline = time.monotonic() + 300
        while not any_status(study, "none", "done") or not list(study.glob("runs/*/10-false-*/seed-1/metrics.jsonl")):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = start(study, write(tmp_path, endless), "--seeds", "1")
        told, _ = second.communicate(timeout=120)
        assert second.returncode == 2
        assert f"is being run by process {process.pid} on" in told
        assert any_status(study, "10 % false", "running")
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130, told
    assert "Go on with the same command" in told
    assert "Traceback" not in told
    assert any_status(study, "none", "done")
    folder = next(study.glob("runs/*/10-false-*/seed-1"))
    assert (record_of(folder)["status"], record_of(folder)["error"]) == ("failed", "interrupted")
    assert not (folder / "state").exists()
    # Nobody works on it any more: the figures of the run in flight do not move, and the lock is free.
    before = (folder / "log.txt").read_bytes()
    time.sleep(0.5)
    assert (folder / "log.txt").read_bytes() == before
    done = subprocess.run(
        [sys.executable, "-m", "fastpfrec_flwr", "experiment", "run", str(write(tmp_path, endless)), "--output-dir",
         str(study), "--seeds", "1", "--variants", "none,ItemKNN"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "done    synthetic, none" not in done.stderr  # kept from before
    assert "n" in done.stdout


def any_status(study, variant, status):
    records = [record_of(path.parent) for path in study.glob("runs/*/*/seed-*/run.json")]
    return any((record["variant"], record["status"]) == (variant, status) for record in records)


# ---- what it shows ---------------------------------------------------------------------------------------------------


def test_the_time_left_comes_from_finished_runs(tmp_path):
    cells = cells_of(load_suite(str(write(tmp_path))), Choice())
    state = State(6, 2, workers=2, waiting=cells[3:6], running={cells[1]: 100.0})
    assert state.seconds_left(104.0) is None
    state.count_in(cells[0], 10.0)
    assert state.seconds_left(104.0) == pytest.approx((10 + 10 + 10 + 6) / 2)  # of a reference nothing is known yet
    state.count_in(cells[2], 1.0)
    # Waiting: two federated runs of 10 s and a reference of 1 s; running: 10 - 4. Two workers.
    assert state.seconds_left(104.0) == pytest.approx((10 + 10 + 1 + 6) / 2)


def test_the_current_round_is_read_from_the_log(tmp_path):
    assert current_round(tmp_path) == ""
    log = tmp_path / "log.txt"
    log.write_text(
        "2026-01-01 10:00:00 synthetic: 600 users, 400 items\n2026-01-01 10:00:01      6/12 0.4306  0.1891\n"
    )
    assert current_round(tmp_path) == "6/12"
    log.write_text(log.read_text() + "2026-01-01 10:00:02 refit on train + validation: round 4/6\n")
    assert current_round(tmp_path) == "refit 4/6"


def test_settings_come_back_as_they_were(tmp_path):
    import tomllib

    values = {"a": True, "b": 3, "c": 1e-5, "d": 'say "ü" \\ \n\x7f', "e": ""}
    write_settings(tmp_path / "s.toml", values)
    assert tomllib.loads((tmp_path / "s.toml").read_text()) == values
