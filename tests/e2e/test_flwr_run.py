"""The project under the real `flwr run`: same figures as in process, edits take effect, failures are told."""

import re

import pytest

from tests.e2e.flower import copy_project, flwr_run, local_superlink
from tests.whole_runs import TINY, Finished

SETTINGS = {**TINY, "num-rounds": 4, "evaluate-every": 2, "refit": True, "checkpoint-every": 2}


def pairs(**changes):
    values = {**SETTINGS, **{key.replace("_", "-"): value for key, value in changes.items()}}
    text = {key: str(value).lower() if isinstance(value, bool) else repr(value) for key, value in values.items()}
    return " ".join(f"{key}={value}" for key, value in text.items())


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """A clone of the project, and the environment of a SuperLink that has run nothing yet."""
    folder = tmp_path_factory.mktemp("flower")
    with local_superlink(folder / "home") as env:
        yield copy_project(folder / "project"), env


def test_the_same_figures_as_in_process(flower, tmp_path, finished):
    project, env = flower
    run = flwr_run(project, env, "-c", pairs(output_dir=str(tmp_path / "out")))
    assert run.status == "finished:completed", run.log
    out = Finished(tmp_path / "out")
    files = {path.relative_to(out.folder).as_posix() for path in out.folder.rglob("*") if path.is_file()}
    assert files == {
        "config.json", "metrics.jsonl", "summary.json", "item_table.npz", "log.txt", "learning_curve.png", "checkpoints/latest.npz",
    }  # fmt: skip
    assert f"run folder: {tmp_path / 'out'}" in run.log
    assert "NDCG@20" in run.log
    assert out.json("config.json")["super_nodes"] == 2
    changes = {key.replace("-", "_"): value for key, value in SETTINGS.items()}
    out.assert_same(finished(2, **changes))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [
        {"secure_sum": True, "check": "none", "quarantine_rounds": 0, "num_trusted_nodes": 2, "clients_per_round": 12},
        {"model": "perfedrec++", "pretrain_rounds": 1},
        {"model": "fedncf"},
        {"upload_precision": "int8", "download_precision": "int8"},
        {"attack": "sign-flip"},
    ],
    ids=lambda changes: next(iter(changes)) + "=" + str(next(iter(changes.values()))),
)
def test_so_are_those_of_variants(flower, tmp_path, finished, changes):
    project, env = flower
    few = {"refit": False, "checkpoint_every": 0, "num_rounds": 2, **changes}
    run = flwr_run(project, env, "-c", pairs(output_dir=str(tmp_path / "out"), **few))
    assert run.status == "finished:completed", run.log
    settings = {key.replace("-", "_"): value for key, value in SETTINGS.items()}
    Finished(tmp_path / "out").assert_same(finished(2, **{**settings, **few}))


def test_a_strategy_of_ones_own_in_the_apps_folder(flower, tmp_path, finished):
    """Flower's FedAdam under another name: `flwr run` finds it in the project, with the figures of the in-process run."""
    project, env = flower
    (project / "my_strategy.py").write_text(
        "from flwr.serverapp.strategy import FedAdam\n\n\nclass Mine(FedAdam):\n    pass\n"
    )
    changes = {"strategy_options": "eta=0.05", "refit": False, "checkpoint_every": 0}
    run = flwr_run(project, env, "-c", pairs(strategy="my_strategy:Mine", output_dir=str(tmp_path / "out"), **changes))
    assert run.status == "finished:completed", run.log
    assert "my_strategy:Mine on the server, past the trusted nodes" in run.log
    same = {**{key.replace("-", "_"): value for key, value in SETTINGS.items()}, **changes, "strategy": "flwr:FedAdam"}
    Finished(tmp_path / "out").assert_same(finished(2, **same))


def test_an_edit_takes_effect_in_server_and_clients(flower, tmp_path):
    project, env = flower
    edit(project / "fastpfrec_flwr" / "server" / "progress.py", "best round", "EDITED SERVER, best round")
    # What a client says travels to the server's log as the reason of a refusal.
    edit(
        project / "fastpfrec_flwr" / "client" / "app.py",
        "        order = messages.decode_query(message.content)\n",
        "        order = messages.decode_query(message.content)\n"
        "        if order.server_round == 1:\n"
        "            raise RefusedError('EDITED CLIENT')\n",
    )
    run = flwr_run(project, env, "-c", pairs(output_dir=str(tmp_path / "out"), refit=False, num_rounds=2))
    assert run.status == "finished:completed", run.log
    assert "EDITED SERVER" in run.log
    assert "round 1: 2 refused: EDITED CLIENT" in run.log
    assert Finished(tmp_path / "out").summary["clients"]["trained"] == 100  # round 2


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_failure_is_told_in_plain_words(flower):
    project, env = flower
    run = flwr_run(project, env, "-c", pairs(data_set="/nowhere.csv"))
    assert run.status == "finished:failed", run.log
    assert "/nowhere.csv" in run.details
    assert re.search(r"^error: .*/nowhere\.csv", run.log, re.MULTILINE), run.log
    assert 'File "' not in run.log, "no traceback for what the user can put right"
