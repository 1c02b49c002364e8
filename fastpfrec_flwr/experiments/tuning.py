"""Tuning a model: a declared space and budget (`tuning.toml`), chosen on validation, every draw seeded, resumable.

Trial t is drawn by Optuna's TPE with seed `budget.seed` + t from the trials before it, and the first trial is the defaults: so the
same command finds the same values, also if it was stopped in between. Of a trial that was cut off nothing counts.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpfrec_flwr.config import BASELINES, ConfigError, default_values, parse_run_config
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.experiments.study import Study
from fastpfrec_flwr.experiments.worker import write_settings
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.errors import RunError

if TYPE_CHECKING:
    from optuna import Study as Search
    from optuna import Trial

SPACES = Path(__file__).with_name("tuning.toml")
# Random trials before TPE has something to go by; the defaults are one of them.
_STARTUP = 5


@dataclass(frozen=True)
class Space:
    """What is searched for a model.

    Attributes
    ----------
    run : run-config keys of every trial. dimensions : key -> low, high and log, or choices. trials, seed, metric : the budget.
    """

    model: str
    run: Mapping[str, Any]
    dimensions: Mapping[str, Mapping[str, Any]]
    trials: int
    seed: int
    metric: str


def load_space(model: str, path: Path = SPACES) -> Space:
    """Read a model's space.

    Raises
    ------
    ConfigError for a model that is not in the file.
    """
    declared = tomllib.loads(path.read_text(encoding="utf-8"))
    if model not in declared["models"]:
        raise ConfigError(f"--model must be one of {', '.join(declared['models'])}, got {model!r}")
    budget = declared["budget"]
    dimensions = {**declared["space"], **declared["models"][model]}
    return Space(model, declared["run"], dimensions, budget["trials"], budget["seed"], budget["metric"])


def tune(
    space: Space,
    folder: Path,
    data_dir: str = "",
    say: Callable[[str], None] = print,
    simulate: Callable[[Mapping[str, Any]], Path] | None = None,
) -> dict[str, Any]:
    """Run the trials that are missing and write `best.toml`.

    Parameters
    ----------
    folder : of this model's tuning. data_dir : as the run-config key. say : is told a line per trial.
    simulate : runs a configuration and returns the run folder; None is the simulation in this process.

    Returns
    -------
    The chosen values: `model` and every key of the space.

    Raises
    ------
    ConfigError if Optuna is not installed, the space does not fit the model, or no trial came to an end.
    """
    search = _open(space, folder)
    run = simulate or _in_process
    for trial in search.get_trials(deepcopy=False):
        if trial.state == _state("RUNNING"):
            search.tell(trial.number, state=_state("FAIL"))
    while (number := _counted(search)) < space.trials:
        import optuna

        search.sampler = optuna.samplers.TPESampler(seed=space.seed + number, n_startup_trials=_STARTUP)
        trial_now = search.ask()
        values = {key: _suggest(trial_now, key, how) for key, how in space.dimensions.items()}
        place = folder / "trials" / f"{trial_now.number:03d}"
        try:
            found = _metric(run(_whole_config(space, values, place, data_dir)), space.metric)
        except (RunError, DataError) as error:
            trial_now.set_user_attr("error", str(error))
            search.tell(trial_now, state=_state("FAIL"))
            say(f"{space.model} {number + 1}/{space.trials}: failed: {error}")
            continue
        search.tell(trial_now, found)
        told = " ".join(f"{key}={value}" for key, value in values.items())
        figures = f"validation {space.metric} {found:.4f}, best {search.best_value:.4f}"
        say(f"{space.model} {number + 1}/{space.trials}: {figures}; {told}")
    if not any(trial.state == _state("COMPLETE") for trial in search.get_trials(deepcopy=False)):
        raise ConfigError(f"{folder}: no trial of {space.model} came to an end; its trials/*/output.txt say why")
    best = {key: _rounded(value) for key, value in search.best_params.items()}
    chosen = {"model": space.model, **{key: best[key] for key in space.dimensions}}
    _write_best(space, search, chosen, folder / "best.toml")
    return chosen


def tune_all(models: list[str], root: Path, data_dir: str, say: Callable[[str], None]) -> None:
    """Tune some models, each in a folder of its own below `root`; all of them for an empty list."""
    for model in models or ["fastpfrec", *BASELINES]:
        study = Study(root / model)
        with study.lock():
            tune(load_space(model), study.path, data_dir, say)
        say(f"{model}: {study.path / 'best.toml'}")


def _open(space: Space, folder: Path) -> Search:
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fastpfrec-flwr[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(folder / "trials.log")))
    search = optuna.create_study(storage=storage, study_name=space.model, direction="maximize", load_if_exists=True)
    declared = json.dumps([space.run, space.dimensions, space.seed, space.metric], sort_keys=True)
    before = search.user_attrs.setdefault("space", declared)
    if before != declared:
        raise ConfigError(f"{folder}: holds trials of another space; remove it or give another --output-dir")
    search.set_user_attr("space", declared)
    if not search.get_trials(deepcopy=False):
        defaults = default_values()
        search.enqueue_trial({key: defaults[key] for key in space.dimensions})
    return search


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _counted(search: Search) -> int:
    """Trials that came to an end, well or with an error of their own."""
    done = _state("COMPLETE")
    return sum(trial.state == done or "error" in trial.user_attrs for trial in search.get_trials(deepcopy=False))


def _suggest(trial: Trial, key: str, how: Mapping[str, Any]) -> Any:
    if "choices" in how:
        return trial.suggest_categorical(key, how["choices"])
    return _rounded(trial.suggest_float(key, how["low"], how["high"], log=how.get("log", False)))


def _rounded(value: Any) -> Any:
    """Three digits are all that a search of a dozen trials can tell."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _whole_config(space: Space, values: Mapping[str, Any], place: Path, data_dir: str) -> dict[str, Any]:
    whole = {
        **default_values(),
        **space.run,
        "model": space.model,
        **values,
        "seed": space.seed,
        "threads": 1,
        "data-dir": data_dir,
        "output-dir": str(place),
        "state-dir": str(place / "state"),
    }
    return parse_run_config(whole).to_flat_dict()


def _in_process(values: Mapping[str, Any]) -> Path:
    from fastpfrec_flwr.simulation.run import simulate

    place = Path(values["output-dir"])
    place.mkdir(parents=True, exist_ok=True)
    write_settings(place / "settings.toml", values)
    with open(place / "output.txt", "w", encoding="utf-8") as output, contextlib.redirect_stdout(output):
        return simulate(values, 1)


def _metric(folder: Path, name: str) -> float:
    value = json.loads((folder / "summary.json").read_text())["validation"].get(name)
    if value is None:
        raise RunError(f"{folder}: no finite validation {name}")
    return float(value)


def _write_best(space: Space, search: Search, chosen: Mapping[str, Any], path: Path) -> None:
    from fastpfrec_flwr.experiments.worker import toml_value

    defaults = default_values()
    lines = [
        f"# {space.model}, chosen by `fastpfrec experiment run tuning --model {space.model}`: the best of {space.trials} trials\n",
        f"# by validation {space.metric} ({search.best_value:.4f}) on {space.run['data-set']}, seed {space.seed}, "
        f"{space.run['num-rounds']} rounds of {space.run['clients-per-round']} clients. What does not stand here is the default.\n",
        f"data-set = {toml_value(space.run['data-set'])}\n",
        *(f"{key} = {toml_value(value)}\n" for key, value in chosen.items() if value != defaults[key]),
    ]
    write_atomically(path, "".join(lines).encode())
