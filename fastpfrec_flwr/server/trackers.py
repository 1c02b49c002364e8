"""Experiment trackers: TensorBoard, MLflow, Weights & Biases, told what `metrics.jsonl` and `summary.json` hold and no more.

None of them is loaded unless `trackers` names it. A run never depends on one: what fails is said once and dropped.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fastpfrec_flwr.config import ConfigError, RunConfig

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """What a run tells a tracker."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Take the resolved configuration, once, before the first round."""

    def round(self, server_round: int, numbers: Numbers) -> None:
        """Take an evaluated round's figures."""

    def end(self, numbers: Numbers) -> None:
        """Take the summary's figures and close."""


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Show the configuration as a table."""
        rows = "".join(f"\n| {key} | {value} |" for key, value in settings.items())
        self._writer.add_text("config", f"| key | value |\n|---|---|{rows}")

    def round(self, server_round: int, numbers: Numbers) -> None:
        """Add a point to each curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()

    def end(self, numbers: Numbers) -> None:
        """Add the summary's figures at step 0 and close the files."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"summary/{name}", value, 0)
        self._writer.close()


class MLflow:
    """A run of the experiment `fastpfrec`, wherever MLflow's own settings say (`MLFLOW_TRACKING_URI`)."""

    def __init__(self, folder: Path) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._name = folder.name

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a run with the configuration as its parameters."""
        self._mlflow.set_experiment("fastpfrec")
        self._mlflow.start_run(run_name=self._name)
        self._mlflow.log_params(dict(settings))

    def round(self, server_round: int, numbers: Numbers) -> None:
        """Log an evaluated round. MLflow takes no `@` in a name: `ndcg@20` becomes `ndcg_at_20`."""
        self._mlflow.log_metrics(_plain_names(numbers), step=server_round)

    def end(self, numbers: Numbers) -> None:
        """Log the summary's figures and end the run."""
        self._mlflow.log_metrics({f"summary/{name}": value for name, value in _plain_names(numbers).items()})
        self._mlflow.end_run()


class WandB:
    """A run of the project `fastpfrec`; its files lie in `wandb/` of the run folder. Sends to W&B's servers unless offline."""

    def __init__(self, folder: Path) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._folder = folder
        self._run: Any = None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a run with the configuration."""
        self._run = self._wandb.init(
            project="fastpfrec", name=self._folder.name, dir=str(self._folder), config=dict(settings)
        )

    def round(self, server_round: int, numbers: Numbers) -> None:
        """Log an evaluated round."""
        self._run.log(dict(numbers), step=server_round)

    def end(self, numbers: Numbers) -> None:
        """Put the summary's figures onto the run and finish it."""
        self._run.summary.update({f"summary/{name}": value for name, value in numbers.items()})
        self._run.finish()


def _plain_names(numbers: Numbers) -> dict[str, float]:
    return {name.replace("@", "_at_"): value for name, value in numbers.items()}


KINDS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Trackers:
    """All trackers of a run. One that fails is reported by `say`, once, and told nothing more.

    Parameters
    ----------
    config : names them in `trackers`. folder : the run folder. say : takes a line for the log.

    Raises
    ------
    ConfigError naming the package to install, if one is missing.
    """

    def __init__(self, config: RunConfig, folder: Path | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._open: dict[str, Tracker] = {}
        for name in config.tracker_names if folder is not None else ():
            self._open_one(name, folder or Path())

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Hand on the resolved configuration."""
        self._tell(lambda tracker: tracker.begin(settings))

    def round(self, line: Mapping[str, Any]) -> None:
        """Hand on an evaluated round, as `metrics.jsonl` has it."""
        numbers = dict(_numbers({key: value for key, value in line.items() if key not in ("phase", "round")}))
        self._tell(lambda tracker: tracker.round(int(line["round"]), numbers))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Hand on the summary and close."""
        numbers = dict(_numbers(summary))
        self._tell(lambda tracker: tracker.end(numbers))

    def _open_one(self, name: str, folder: Path) -> None:
        try:
            self._open[name] = KINDS[name](folder)
        except ImportError as error:
            raise ConfigError(
                f"trackers = {name!r} needs the package {name}: pip install {name} ({error}), or leave it out of trackers"
            ) from None
        except Exception as error:  # whatever a tracker does, the run does not depend on it
            self._drop(name, error)

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                what(tracker)
            except Exception as error:  # as above
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        self._say(f"tracker {name} failed and is left out from here on: {type(error).__name__}: {error}")


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Finite numbers of nested values under their path, `validation/ndcg@20`; everything else is left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{above}{key}", float(value)
