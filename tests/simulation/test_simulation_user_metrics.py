"""Each user's test metrics: exactly those behind the summary, in a file of the run folder, and on no wire."""

import shutil

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from fastpfrec_flwr.client.app import app as honest
from fastpfrec_flwr.client.opening import user_metrics_folder
from fastpfrec_flwr.evaluation.metrics import CUTOFFS, per_user_metrics
from fastpfrec_flwr.evaluation.user_metrics import NAMES, UserMetrics
from fastpfrec_flwr.simulation.user_metrics import collect_user_metrics


def of(run):
    return UserMetrics.load(run.folder / "user_metrics.npz")


def assert_belong(run):
    found, test = of(run), run.summary["test"]
    assert found.users.dtype == np.int64
    assert (np.diff(found.users) > 0).all()
    assert all(found.values[name].dtype == np.float32 for name in NAMES)
    assert all(np.isfinite(found.values[name]).all() for name in NAMES)
    assert (found.values["truth"] > 0).all()
    for k in CUTOFFS:
        assert int(found.values[f"hits@{k}"].sum()) / int(found.values["truth"].sum()) == test[f"hit_ratio_micro@{k}"]
        for name in ("recall", "ndcg"):
            mean = found.values[f"{name}@{k}"].mean(dtype=np.float64)
            assert mean == pytest.approx(test[f"{name}@{k}"], rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"refit": True},
        {"num_rounds": 12, "evaluate_every": 4, "server_learning_rate": 0.5},  # the best round is not the last
    ],
    ids=["best round", "refit", "not the last"],
)
def test_they_belong_to_the_summary_however_users_are_spread(finished, tmp_path, changes):
    runs = [finished(n, user_metrics=True, state_dir=str(tmp_path / f"state-{n}"), **changes) for n in (1, 3)]
    for run in runs:
        assert_belong(run)
    assert (of(runs[0]).users == of(runs[1]).users).all()
    assert all((of(runs[0]).values[name] == of(runs[1]).values[name]).all() for name in NAMES)
    if "num_rounds" in changes:
        assert runs[0].summary["best_round"] < 12
    # Nothing is left on the devices.
    assert not list((tmp_path / "state-1").iterdir())


def test_without_the_key_nobody_keeps_any(finished, tmp_path):
    run = finished(state_dir=str(tmp_path / "state"))
    assert not (run.folder / "user_metrics.npz").exists()
    assert not list((tmp_path / "state").rglob("*.npz"))


def test_nothing_of_them_crosses_the_wire(finished):
    seen = {True: [], False: []}

    def listening(kept):
        app = ClientApp()

        @app.evaluate()
        def evaluate(message, context):
            reply = honest(message, context)
            seen[kept].append({name: dict(record) for name, record in reply.content.items()})
            return reply

        @app.train()
        def train(message, context):
            return honest(message, context)

        for action in (None, "catalogue", "release"):

            @app.query(*([action] if action else []))
            def query(message, context):
                return honest(message, context)

        return app

    for kept in (True, False):
        finished(client_app=listening(kept), user_metrics=kept)
    assert seen[True]
    # SuperNodes work side by side: which of them answers first is chance.
    first, second = (sorted(map(repr, seen[kept])) for kept in (True, False))
    assert first == second


def test_files_of_another_evaluation_are_not_taken(finished, tmp_path, capsys):
    run = finished(1, user_metrics=True, checkpoint_every=6, state_dir=str(tmp_path / "state"))
    folder = user_metrics_folder(tmp_path / "state", run.json("config.json")["state_id"])
    file = folder / "0-of-1.npz"  # kept, as the state is: the checkpoint may be gone on from
    other = UserMetrics.load(file)
    hits = other.values["hits@10"].copy()
    hits[0] += 1
    UserMetrics(other.users, {**other.values, "hits@10": hits}).save(file)
    assert collect_user_metrics(run.folder, tmp_path / "state", 1) is None
    assert "not of the summary's evaluation" in capsys.readouterr().err
    assert not (run.folder / "user_metrics.npz").exists()
    shutil.rmtree(folder)
    assert collect_user_metrics(run.folder, tmp_path / "state", 1) is None
    assert "0-of-1.npz" in capsys.readouterr().err


def test_a_resumed_run_has_them_too(finished, tmp_path):
    changes = {"user_metrics": True, "evaluate_every": 3, "checkpoint_every": 8, "state_dir": str(tmp_path / "state")}
    whole = finished(2, **changes)
    resumed = finished(2, **changes, resume_from=str(whole.folder / "checkpoints" / "latest.npz"))
    assert "going on after round 8" in resumed.log
    assert_belong(resumed)
    assert all((of(whole).values[name] == of(resumed).values[name]).all() for name in NAMES)


def test_a_real_device_keeps_none(finished, tmp_path, caplog):
    """One SuperNode that does not know of partitions is a real device."""
    from fastpfrec_flwr.simulation import grid

    class Deployed(grid.InProcessGrid):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            for context in self.contexts.values():
                context.node_config = {"state-dir": str(tmp_path / "device")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastpfrec_flwr.simulation.run.InProcessGrid", Deployed)
        run = finished(1, user_metrics=True, num_rounds=2, evaluate_every=1)
    assert "user-metrics is ignored" in run.log
    assert "this device keeps no metrics" in caplog.text
    assert not list((tmp_path / "device").rglob("user-metrics"))
    assert not (run.folder / "user_metrics.npz").exists()


def test_one_user_by_hand(tmp_path):
    """User 7 of [4, 7]: hits at ranks 1 and 3 of two truths; 4 has no truth."""
    top = np.full((2, 20), -1, np.int32)
    top[0, :3] = top[1, :3] = [5, 6, 9]
    per_user = per_user_metrics(top, _rows([[], [5, 9]]))
    found = UserMetrics.of(np.array([4, 7]), per_user)
    found.save(tmp_path / "x.npz")
    read = UserMetrics.load(tmp_path / "x.npz")
    assert read.users.tolist() == [7]
    assert read.values["truth"].tolist() == [2]
    assert read.values["hits@10"].tolist() == [2]
    assert read.values["recall@20"].tolist() == [1]
    # (1 + 1/2) / (1 + 1/log2(3))
    assert read.values["ndcg@10"][0] == pytest.approx(1.5 / 1.6309297535714573, rel=1e-6)
    with pytest.raises(ValueError, match="two parts"):
        UserMetrics.merged([read, read])
    (tmp_path / "y.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"y\.npz"):
        UserMetrics.load(tmp_path / "y.npz")


def _rows(lists):
    from fastpfrec_flwr.evaluation.rows import Rows

    ends = np.cumsum([len(row) for row in lists])
    return Rows(np.array([i for row in lists for i in row], np.int32), ends - [len(row) for row in lists], ends)
