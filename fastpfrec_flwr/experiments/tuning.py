"""Tuning a model: a declared space and budget (`tuning.toml`), chosen on validation, every draw seeded, resumable.

Trial t is drawn by Optuna's TPE with seed `budget.seed` + t from the trials before it, and the first trial is the defaults, or what
the file says for a data set. The earliest of the best by four digits is chosen. So the same command finds the same values, also
if it was stopped in between; of a trial that was cut off nothing counts.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings, told
from fastpfrec_flwr.config import BASELINES, ConfigError, default_values
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.experiments.trials import central_trial, federated_trial
from fastpfrec_flwr.experiments.worker import toml_value
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.errors import RunError

if TYPE_CHECKING:
    from optuna import Study as Search
    from optuna import Trial

SPACES = Path(__file__).with_name("tuning.toml")
# Random trials before TPE has something to go by; the defaults are one of them.
_STARTUP = 5
# Of a metric, that count: a mean over tens of thousands of users has a standard error of .001.
_DIGITS = 4
# Before the name of a central model, which may have a federated namesake.
CENTRAL = "central-"
# Values of a trial and the folder for its files -> validation metric.
Run: TypeAlias = Callable[[Mapping[str, Any], Path], float]


@dataclass(frozen=True)
class Space:
    """What is searched for a model.

    Attributes
    ----------
    model : of `models()`. run : what all trials share: run-config keys, of a central model `data-set` alone.
    fixed : of a central model, settings that all trials share. dimensions : key -> low, high and log, or choices.
    first : their values in the first trial. trials, seed, metric : the budget.
    """

    model: str
    run: Mapping[str, Any]
    dimensions: Mapping[str, Mapping[str, Any]]
    first: Mapping[str, Any]
    trials: int
    seed: int
    metric: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def central(self) -> bool:
        """Whether the model sees all interactions in one place."""
        return self.model.startswith(CENTRAL)

    @property
    def name(self) -> str:
        """Of the model, as its recipe has it."""
        return self.model.removeprefix(CENTRAL)

    def about(self) -> str:
        """What a trial trains on, and how long."""
        if self.central:
            return f"{self.run['data-set']}, seed {self.seed}"
        rounds, clients = self.run["num-rounds"], self.run["clients-per-round"]
        return f"{self.run['data-set']}, seed {self.seed}, {rounds} rounds of {clients} clients"


def models() -> list[str]:
    """All models that have a space."""
    return ["fastpfrec", *BASELINES, *(CENTRAL + kind for kind in KINDS)]


def load_space(model: str, data_set: str = "", path: Path = SPACES) -> Space:
    """Read a model's space on a data set; empty: on the file's first.

    Raises
    ------
    ConfigError for a model or a data set that is not in the file.
    """
    declared = tomllib.loads(path.read_text(encoding="utf-8"))
    if model not in models():
        raise ConfigError(f"--model must be one of {', '.join(models())}, got {model!r}")
    data_sets = declared["data-sets"]
    chosen = data_set or next(iter(data_sets))
    if chosen not in data_sets:
        raise ConfigError(f"--data-sets must be some of {', '.join(data_sets)}, got {chosen!r}")
    budget = declared["budget"]
    name = model.removeprefix(CENTRAL)
    part = declared["central" if name != model else "federated"]
    here = {each: part.get(each, {}).get(chosen, {}) for each in ("fixed", "spaces", "first")}
    fixed = here["fixed"].get(name, {})
    if name != model:
        run = {"data-set": chosen}
        defaults = next(told(graph_settings(kind, fixed)) for kind in KINDS if kind == name)
    else:
        run = {**declared["run"], **data_sets[chosen], "data-set": chosen}
        defaults = default_values()
    whole = {**part["space"], **part["models"][name]}
    dimensions = {key: here["spaces"].get(key, how) for key, how in whole.items() if key not in fixed}
    first = {**{key: defaults[key] for key in dimensions}, **here["first"].get(name, {})}
    return Space(model, run, dimensions, first, budget["trials"], budget["seed"], budget["metric"], fixed)


def tune(space: Space, folder: Path, run: Run, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the trials that are missing and write `best.toml`.

    Parameters
    ----------
    folder : of this model's tuning. run : makes a trial, see `experiments.trials`. say : is told a line per trial.

    Returns
    -------
    The chosen value of every key of the space.

    Raises
    ------
    ConfigError if Optuna is not installed, the space does not fit the model, or no trial came to an end.
    """
    search = _open(space, folder)
    for trial in search.get_trials(deepcopy=False):
        if trial.state == _state("RUNNING"):
            search.tell(trial.number, state=_state("FAIL"))
    if _counted(search) == 0 and not search.get_trials(deepcopy=False, states=[_state("WAITING")]):
        search.enqueue_trial(dict(space.first))  # anew, if it was cut off
    while (number := _counted(search)) < space.trials:
        import optuna

        search.sampler = optuna.samplers.TPESampler(seed=space.seed + number, n_startup_trials=_STARTUP)
        trial_now = search.ask()
        values = {key: _suggest(trial_now, key, how) for key, how in space.dimensions.items()}
        try:
            found = run(values, folder / "trials" / f"{trial_now.number:03d}")
        except (RunError, DataError) as error:
            trial_now.set_user_attr("error", str(error))
            search.tell(trial_now, state=_state("FAIL"))
            say(f"{space.model} {number + 1}/{space.trials}: failed: {error}")
            continue
        search.tell(trial_now, found)
        told_values = " ".join(f"{key}={value}" for key, value in values.items())
        figures = f"validation {space.metric} {found:.4f}, best {search.best_value:.4f}"
        say(f"{space.model} {number + 1}/{space.trials}: {figures}; {told_values}")
    done = [trial for trial in search.get_trials(deepcopy=False) if trial.state == _state("COMPLETE")]
    if not done:
        raise ConfigError(f"{folder}: no trial of {space.model} came to an end; its trials/*/output.txt say why")
    # The earliest of those with the same figure, as it is printed: beyond its digits is chance, and the first is the defaults.
    best = max(done, key=lambda trial: (round(trial.value or 0.0, _DIGITS), -trial.number))
    chosen = {key: _rounded(best.params[key]) for key in space.dimensions}
    _write_best(space, best.value or 0.0, chosen, folder / "best.toml")
    return chosen


def tune_all(names: list[str], data_sets: list[str], root: Path, data_dir: str, say: Callable[[str], None]) -> None:
    """Tune some models on some data sets, each in a folder of its own, `root/<data set>/<model>`.

    Empty lists are all models and the first data set.
    """
    from fastpfrec_flwr.experiments.study import Study

    spaces = [load_space(model, data_set) for data_set in data_sets or [""] for model in names or models()]
    for space in spaces:
        name = f"{space.run['data-set']}/{space.model}"
        study = Study(root / name)
        shared = {**space.run, "seed": space.seed, "data-dir": data_dir}
        if space.central:
            run = central_trial(space.name, shared, space.fixed)
        else:
            run = federated_trial({**shared, "model": space.model}, space.metric)
        with study.lock():
            tune(space, study.path, run, say)
        say(f"{name}: {study.path / 'best.toml'}")


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
    shared = {**space.run, **space.fixed}
    declared = json.dumps([shared, space.dimensions, space.first, space.seed, space.metric], sort_keys=True)
    before = search.user_attrs.setdefault("space", declared)
    if before != declared:
        raise ConfigError(f"{folder}: holds trials of another space; remove it or give another --output-dir")
    search.set_user_attr("space", declared)
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


def _write_best(space: Space, value: float, chosen: Mapping[str, Any], path: Path) -> None:
    command = f"fastpfrec experiment run tuning --model {space.model} --data-sets {space.run['data-set']}"
    lines = [
        f"# {space.name}, chosen by `{command}`:\n",
        f"# the best of {space.trials} trials by validation {space.metric} ({value:.4f}) on {space.about()}.\n",
        *(
            []
            if space.central
            else [f"data-set = {toml_value(space.run['data-set'])}\n", f"model = {toml_value(space.model)}\n"]
        ),
        *(f"{key} = {toml_value(each)}\n" for key, each in {**space.fixed, **chosen}.items()),
    ]
    write_atomically(path, "".join(lines).encode())
