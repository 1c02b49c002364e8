"""For all tests: homes of their own, and whole runs in this process that take half a second."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Runs, stores and device state land in a folder of this session. The cache stays the user's: it holds the compiled kernels, which
# are named by their content and take most of a minute to make anew.
_HOMES = ("XDG_DATA_HOME", "XDG_STATE_HOME")

# The generated data set, whose communities of taste are known: 600 users, 400 items.
TINY = {
    "data-set": "synthetic",
    "embedding-dim": 16,
    "num-rounds": 12,
    "clients-per-round": 100,
    "num-negatives": 32,
    "num-trusted-nodes": 4,
    "evaluate-every": 6,
    "threads": 2,
}


def pytest_configure(config):
    config.own_home = tempfile.mkdtemp(prefix="fastpfrec-tests-")
    config.homes_before = {name: os.environ.get(name) for name in _HOMES}
    for name in _HOMES:
        os.environ[name] = str(Path(config.own_home) / name.split("_")[1].lower())


def pytest_unconfigure(config):
    for name, value in config.homes_before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    shutil.rmtree(config.own_home, ignore_errors=True)


def settings_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Every run-config key of a tiny run; `changes` with `_` for `-`."""
    from fastpfrec_flwr.config import default_values

    return {**default_values(), **TINY, **{key.replace("_", "-"): value for key, value in changes.items()}}


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    folder: Path

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    @property
    def summary(self) -> dict[str, Any]:
        return self.json("summary.json")

    @property
    def table(self) -> np.ndarray:
        with np.load(self.folder / "item_table.npz") as arrays:
            return arrays["item_table"]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def figures(self) -> dict[str, Any]:
        """Everything of the summary that must not depend on the machine or on how the users are spread."""
        clients = {key: value for key, value in self.summary["clients"].items() if key != "reasons"}
        keys = ("validation", "test", "rounds", "best_round", "data_fingerprint", "rounds_without_update", "bytes")
        return {**{key: self.summary[key] for key in keys}, "clients": clients}

    def assert_same(self, other: "Finished") -> None:
        """Equal to the last bit."""
        assert self.figures() == other.figures()
        assert self.table.tobytes() == other.table.tobytes()
        of_rounds = [
            [{key: line[key] for key in ("round", "loss", "validation", "clients", "isolated")} for line in run.metrics]
            for run in (self, other)
        ]
        assert of_rounds[0] == of_rounds[1]


@pytest.fixture
def finished(tmp_path):
    """`finished(num_supernodes=2, client_app=None, **settings)`: a whole run in this process."""
    count = 0

    def run(num_supernodes=2, client_app=None, **changes):
        from fastpfrec_flwr.simulation.run import simulate

        nonlocal count
        count += 1
        values = settings_of({"output_dir": str(tmp_path / f"run-{count}"), **changes})
        simulate(values, num_supernodes, **({} if client_app is None else {"client_app": client_app}))
        return Finished(Path(values["output-dir"]))

    return run
