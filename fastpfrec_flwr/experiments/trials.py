"""What a trial of a search is: one training with the values that are tried, and what it came to on validation."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings
from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.experiments.worker import OUTPUT, SETTINGS, write_settings
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.errors import RunError


def federated_trial(
    shared: Mapping[str, Any],
    metric: str,
    simulate: Callable[[Mapping[str, Any]], Path] | None = None,
) -> Callable[[Mapping[str, Any], Path], float]:
    """Trials of a federated model, each the simulation of a run in this process.

    Parameters
    ----------
    shared : run-config keys of every trial, over the defaults. metric : of the validation part.
    simulate : runs a configuration and returns the run folder; None is the simulation.

    Returns
    -------
    (values, folder) -> metric. It raises RunError where a training has none, KeyboardInterrupt where somebody ended it early.
    """
    run = simulate or _simulated

    def trial(values: Mapping[str, Any], place: Path) -> float:
        here = {"threads": 1, "output-dir": str(place), "state-dir": str(place / "state")}
        config = parse_run_config({**default_values(), **shared, **values, **here})
        return _metric(run(config.to_flat_dict()), metric)

    return trial


def central_trial(
    name: str, shared: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Callable[[Mapping[str, Any], Path], float]:
    """Trials of a central model (`central_settings.KINDS`): the best validation NDCG@20 of a training on the train part.

    Parameters
    ----------
    shared : run-config keys of data and seed, over the defaults. fixed : settings of every trial, over the model's defaults.
    """
    from fastpfrec_flwr.baselines.central_graph import best_on_validation
    from fastpfrec_flwr.data.preparation import prepare_run

    kind = next(each for each in KINDS if each == name)
    config = parse_run_config({**default_values(), **shared})
    split = prepare_run(config).load()

    def trial(values: Mapping[str, Any], place: Path) -> float:
        tried = {**fixed, **values}
        settings = graph_settings(kind, tried, config.seed)
        place.mkdir(parents=True, exist_ok=True)
        write_settings(place / SETTINGS, tried)
        began = time.monotonic()
        value, epochs, _ = best_on_validation(split, kind, settings)
        found = {"validation": {"ndcg@20": value}, "epochs": epochs, "seconds": time.monotonic() - began}
        write_atomically(place / "summary.json", json.dumps(found).encode())
        return value

    return trial


def _simulated(values: Mapping[str, Any]) -> Path:
    from fastpfrec_flwr.simulation.run import simulate

    place = Path(values["output-dir"])
    place.mkdir(parents=True, exist_ok=True)
    write_settings(place / SETTINGS, values)
    with open(place / OUTPUT, "w", encoding="utf-8") as output, contextlib.redirect_stdout(output):
        return simulate(values, 1)


def _metric(folder: Path, name: str) -> float:
    summary = json.loads((folder / "summary.json").read_text())
    if summary["stopped"]:  # a run makes of Ctrl-C an orderly end; a trial of fewer rounds than the others is none
        raise KeyboardInterrupt
    value = summary["validation"].get(name)
    if value is None:
        raise RunError(f"{folder}: no finite validation {name}")
    return float(value)
