"""The run folder: what a run leaves behind, in files that people can open, each written whole."""

from __future__ import annotations

import io
import itertools
import json
import math
import platform
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.files import APP, source_fingerprint, write_atomically

# A file of this name in a run's folder, put there by anybody, ends the run after the round that runs.
STOP = "stop"
# What a run may leave here beside its log and `config.json`, whoever writes it. First the summary, by which readers know a whole
# run. Checkpoints are none of it: a run may go on from one.
LEFT_BY_RUNS = (
    "summary.json", "metrics.jsonl", "item_table.npz", "user_metrics.npz", "learning_curve.png", "catalogue.json", "attack.json",
    "attack_rounds.csv",
)  # fmt: skip


class RunFolder:
    """A run's own folder.

    Parameters
    ----------
    path : absolute; made, must be writable. log_format : of its log, `text` or `json` (one object a line).

    Raises
    ------
    ConfigError if it cannot be written.
    """

    def __init__(self, path: Path, log_format: str = "text") -> None:
        self.path = path
        self.log_format = log_format
        self._metrics: list[dict[str, Any]] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "log.txt", b"")
            (path / STOP).unlink(missing_ok=True)
            self._earlier = [(each, each.stat()) for name in LEFT_BY_RUNS if (each := path / name).is_file()]
        except OSError as error:
            raise ConfigError(
                f"output-dir must be a folder that can be written, got {str(path)!r} ({error.strerror or error})"
            ) from error

    @property
    def checkpoint(self) -> Path:
        """Where the newest checkpoint lies."""
        return self.path / "checkpoints" / "latest.npz"

    def take_stop(self) -> bool:
        """Whether somebody has put a stop file here since it was last asked; it is taken away."""
        if not (self.path / STOP).exists():
            return False
        (self.path / STOP).unlink(missing_ok=True)
        return True

    def log(self, line: str, event: str = "message", **figures: Any) -> None:
        """Print a line and keep it in `log.txt`.

        Parameters
        ----------
        event, figures : what happened and its numbers, which the JSON format has beside the words.
        """
        kept = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}"
        if self.log_format == "json":
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = kept = json.dumps(_plain({"time": now, "event": event, "message": line, **figures}))
        print(line, flush=True)
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(kept + "\n")

    def write_config(self, config: RunConfig, facts: dict[str, Any]) -> None:
        """Write `config.json`: the resolved configuration, versions, and what the data is.

        Only here does the run take the folder's place: one that is refused before leaves an earlier run's files as they were.
        """
        self._remove_earlier(config)
        self._write_json(
            "config.json",
            {"config": config.to_flat_dict(), "versions": versions(), "source": source_fingerprint(), **facts},
        )

    def _remove_earlier(self, config: RunConfig) -> None:
        """Remove what lay here when the folder was opened: beside this run's files it would be taken for this run's."""
        # What the run begins from may lie here as well, and is read later.
        kept = {Path(each).expanduser().resolve() for each in (config.catalogue, config.initial_model) if each}
        here = self.path.resolve()
        if kept & {here, here / "item_table.npz"}:
            kept |= {here / "item_table.npz", here / "catalogue.json"}
        for file, before in self._earlier:
            if here / file.name in kept:
                continue
            with suppress(FileNotFoundError):
                now = file.stat()
                if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
                    file.unlink()
        self._earlier = []

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Add one evaluated round to `metrics.jsonl`."""
        self.start_metrics([*self._metrics, line])

    def start_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Let `metrics.jsonl` hold these evaluated rounds, as when a run is resumed."""
        self._metrics = list(lines)
        text = "".join(json.dumps(_plain(each)) + "\n" for each in self._metrics)
        write_atomically(self.path / "metrics.jsonl", text.encode())

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluated rounds so far."""
        return list(self._metrics)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        self._write_json("summary.json", summary)

    def write_item_table(
        self,
        table: NDArray[np.float32],
        item_ids: list[str],
        item_counts: NDArray[np.float64] | None = None,
        more: NDArray[np.float32] | None = None,
    ) -> None:
        """Write `item_table.npz`: `item_table` (items, k) float32 and `item_ids` (items,) in row order.

        With popularity in the score also `item_counts` (items,) float32: the table alone would rank otherwise.

        Parameters
        ----------
        more : (rows, k) what the model shares beside the items' rows, the array `shared_rows`; none for None or no rows.
        """
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"item_table": table, "item_ids": np.array(item_ids)}
        if item_counts is not None:
            arrays["item_counts"] = item_counts.astype(np.float32)
        if more is not None and len(more):
            arrays["shared_rows"] = more
        np.savez_compressed(buffer, **arrays)
        write_atomically(self.path / "item_table.npz", buffer.getvalue())

    def plot_learning_curve(self) -> None:
        """Draw `learning_curve.png`: validation NDCG@10 and @20 and the train loss over the rounds."""
        lines = [line for line in self._metrics if line.get("phase") == "train"]
        if not lines:
            return
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        left = figure.add_subplot()
        rounds = [line["round"] for line in lines]
        for k, colour in ((10, "#0072B2"), (20, "#D55E00")):  # colour-blind safe (Okabe and Ito)
            values = [line["validation"].get(f"ndcg@{k}") for line in lines]
            left.plot(rounds, values, marker="o", markersize=3, color=colour, label=f"validation NDCG@{k}")
        left.set_xlabel("round")
        left.set_ylabel("NDCG")
        left.grid(alpha=0.3)
        losses = [(line["round"], line["loss"]) for line in lines if line.get("loss") is not None]
        if losses:
            right = left.twinx()
            right.plot(*zip(*losses, strict=True), color="#009E73", linestyle="--", label="train loss")
            right.set_ylabel("loss per positive")
            right.legend(loc="upper right")
        left.legend(loc="lower right")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        write_atomically(self.path / "learning_curve.png", buffer.getvalue())

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(_plain(value), indent=2) + "\n").encode())


def _plain(value: Any) -> Any:
    """Values that strict JSON can hold: NaN becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    names = ("fastpfrec-flwr", "flwr", "torch", "numpy", "numba", "scipy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def choose_run_folder(config: RunConfig, name: str) -> RunFolder:
    """Open the folder that `output-dir` names, or a new one under the user's data folder.

    Raises
    ------
    ConfigError if `output-dir` is relative: an app does not run where it was started.
    """
    if config.output_dir:
        path = Path(config.output_dir).expanduser()
        if not path.is_absolute():
            raise ConfigError(
                f"output-dir must be an absolute path, got {config.output_dir!r}: Flower runs apps in a folder of its own"
            )
        return RunFolder(path, config.log_format)
    import platformdirs

    runs = Path(platformdirs.user_data_path(APP, appauthor=False)) / "runs"
    path = runs / name
    with suppress(OSError):  # told below
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):  # two runs may begin in the same second
            try:
                path.mkdir()
                break
            except FileExistsError:
                path = runs / f"{name}-{number}"
    return RunFolder(path, config.log_format)
