"""Settings of a whole run that takes half a second, and what such a run left behind."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
