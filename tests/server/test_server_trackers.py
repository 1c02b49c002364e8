"""Trackers: told what the run's own files hold, never in a run's way. TensorBoard for real, the others by stand-ins."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fastpfrec_flwr.config import TRACKERS, ConfigError, parse_run_config
from fastpfrec_flwr.server.trackers import KINDS, Trackers
from tests.whole_runs import settings_of

LINE = {
    "phase": "train",
    "round": 6,
    "loss": None,
    "validation": {"ndcg@20": 0.25, "recall@20": float("nan")},
    "clients": 100,
    "seconds": 1.5,
}
SUMMARY = {"data_set": "synthetic", "refit": False, "best_round": 6, "test": {"ndcg@20": 0.125}, "bytes": {"up": 12}}


def config_of(trackers):
    return parse_run_config(settings_of({"trackers": trackers}))


# ---- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "names"),
    [("", ()), ("  ", ()), ("mlflow", ("mlflow",)), ("tensorboard, wandb", ("tensorboard", "wandb"))],
)
def test_names(value, names):
    assert config_of(value).tracker_names == names


@pytest.mark.parametrize("value", ["tensorbord", "mlflow,", "mlflow,mlflow", "mlflow wandb"])
def test_names_that_are_none(value):
    with pytest.raises(
        ConfigError, match=rf"trackers must be a comma list of tensorboard, mlflow, wandb.*got '{value}'"
    ):
        config_of(value)


def test_every_name_has_its_tracker():
    assert set(KINDS) == set(TRACKERS)


def test_nothing_is_loaded_unless_asked_for(tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # an import would fail
    lines = []
    trackers = Trackers(config_of(""), tmp_path, lines.append)
    trackers.begin({})
    trackers.round(LINE)
    trackers.end(SUMMARY)
    assert lines == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_the_first_round(finished, monkeypatch, name):
    for module in (name, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"trackers = '{name}' needs the package {name}: pip install {name}"):
        finished(trackers=name)


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def test_tensorboard_holds_the_run(finished):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = finished(trackers="tensorboard")
    read = accumulators.EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()
    points = [(each.step, each.value) for each in read.Scalars("validation/ndcg@20")]
    assert [step for step, _ in points] == [6, 12]
    assert [value for _, value in points] == pytest.approx([line["validation"]["ndcg@20"] for line in run.metrics])
    losses = [each.value for each in read.Scalars("loss")]
    assert losses == pytest.approx([line["loss"] for line in run.metrics])
    (test,) = read.Scalars("summary/test/ndcg@20")
    assert test.value == pytest.approx(run.summary["test"]["ndcg@20"])
    shown = read.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| data-set | synthetic |" in shown
    assert "| num-rounds | 12 |" in shown


# ---- MLflow and W&B, by what they are called with --------------------------------------------------------------------


def stand_in(name, calls, monkeypatch, fails_at=""):
    """A module `name` that writes down every call; the call `fails_at` raises."""

    def recorder(function):
        def call(*arguments, **named):
            calls.append((function, arguments, named))
            if function == fails_at:
                raise ConnectionError("no route to the tracker")
            return SimpleNamespace(log=recorder("log"), finish=recorder("finish"), summary=summary)

        return call

    summary: dict[str, float] = {}
    module = ModuleType(name)
    for function in ("set_experiment", "start_run", "log_params", "log_metrics", "end_run", "init"):
        setattr(module, function, recorder(function))
    monkeypatch.setitem(sys.modules, name, module)
    return summary


def test_mlflow_is_told(tmp_path, monkeypatch):
    calls = []
    stand_in("mlflow", calls, monkeypatch)
    trackers = Trackers(config_of("mlflow"), tmp_path / "run-7", print)
    trackers.begin({"seed": 1})
    trackers.round(LINE)
    trackers.end(SUMMARY)
    assert calls == [
        ("set_experiment", ("fastpfrec",), {}),
        ("start_run", (), {"run_name": "run-7"}),
        ("log_params", ({"seed": 1},), {}),
        ("log_metrics", ({"validation/ndcg_at_20": 0.25, "clients": 100.0, "seconds": 1.5},), {"step": 6}),
        ("log_metrics", ({"summary/best_round": 6.0, "summary/test/ndcg_at_20": 0.125, "summary/bytes/up": 12.0},), {}),
        ("end_run", (), {}),
    ]


def test_wandb_is_told(tmp_path, monkeypatch):
    calls = []
    summary = stand_in("wandb", calls, monkeypatch)
    trackers = Trackers(config_of("wandb"), tmp_path / "run-7", print)
    trackers.begin({"seed": 1})
    trackers.round(LINE)
    trackers.end(SUMMARY)
    there = {"project": "fastpfrec", "name": "run-7", "dir": str(tmp_path / "run-7"), "config": {"seed": 1}}
    assert calls == [
        ("init", (), there),
        ("log", ({"validation/ndcg@20": 0.25, "clients": 100.0, "seconds": 1.5},), {"step": 6}),
        ("finish", (), {}),
    ]
    assert summary == {"summary/best_round": 6.0, "summary/test/ndcg@20": 0.125, "summary/bytes/up": 12.0}


# ---- in nobody's way -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", ["set_experiment", "log_metrics", "end_run"])
def test_a_tracker_that_fails_is_said_once_and_costs_nothing(finished, monkeypatch, fails_at):
    calls = []
    stand_in("mlflow", calls, monkeypatch, fails_at)
    with_tracker, without = finished(trackers="mlflow"), finished()
    with_tracker.assert_same(without)
    said = [line for line in with_tracker.log.splitlines() if "tracker mlflow failed" in line]
    assert len(said) == 1
    assert said[0].endswith("is left out from here on: ConnectionError: no route to the tracker")
    assert [function for function, _, _ in calls].count(fails_at) == 1
    assert calls[-1][0] == fails_at, "nothing is told to a tracker that has failed"


def test_one_that_fails_leaves_the_other(tmp_path, monkeypatch):
    calls, others, lines = [], [], []
    stand_in("mlflow", calls, monkeypatch, "log_params")
    stand_in("wandb", others, monkeypatch)
    trackers = Trackers(config_of("mlflow,wandb"), tmp_path, lines.append)
    trackers.begin({})
    trackers.round(LINE)
    assert [function for function, _, _ in others] == ["init", "log"]
    assert len(lines) == 1


def test_a_resume_may_name_other_trackers(finished, monkeypatch):
    stand_in("mlflow", [], monkeypatch)
    first = finished(checkpoint_every=6, num_rounds=12)
    again = finished(
        resume_from=str(first.folder / "checkpoints" / "latest.npz"), checkpoint_every=6, trackers="mlflow"
    )
    assert again.summary["test"] == first.summary["test"]
