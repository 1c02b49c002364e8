"""What a study shows while it runs, on stderr: a line for each run that ends; in a terminal bars, rounds and ETA."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fastpfrec_flwr.experiments.cells import Cell
from fastpfrec_flwr.experiments.runner import State, current_round
from fastpfrec_flwr.experiments.study import RunRecord, Study
from fastpfrec_flwr.server.progress import duration


class LiveShow:
    """Shows a study's progress; a context manager that leaves the terminal as it was."""

    def __init__(self, study: Study, total: int) -> None:
        self._study = study
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._runs = self._bar.add_task("runs", total=total, told="")
        self._lines: dict[Cell, TaskID] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def step(self, text: str) -> None:
        """Say what is being done before the runs."""
        self._bar.update(self._runs, told=text)
        if not self._console.is_terminal:
            self._console.print(escape(text))

    def progress(self, state: State) -> None:
        """Show where the study stands."""
        now = time.monotonic()
        left = state.seconds_left(now)
        told = f"{state.done} of {state.total} done" + f", {state.failed} failed" * bool(state.failed)
        told += f", ETA {duration(left)}" if left is not None else ", ETA -"
        self._bar.update(self._runs, completed=state.done + state.failed, told=told)
        for cell in [cell for cell in self._lines if cell not in state.running]:
            self._bar.remove_task(self._lines.pop(cell))
        for cell, since in state.running.items():
            if cell not in self._lines:
                self._lines[cell] = self._bar.add_task(escape(f"  {_name(cell)}"), total=None, told="")
            told = " ".join(filter(None, [current_round(self._study.folder(cell)), duration(now - since)]))
            self._bar.update(self._lines[cell], told=told)

    def ended(self, cell: Cell, record: RunRecord, folder: Path) -> None:
        """Tell how a run ended."""
        if record.status == "done":
            test = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["test"]
            figure = f"NDCG@20 {test['ndcg@20']:.4f}" if test.get("ndcg@20") is not None else "no test figures"
            told = f"done    {_name(cell)}: {figure}, {duration(record.seconds)}"
        else:
            told = f"failed  {_name(cell)}: {record.error}"
        self._console.print(escape(told), highlight=False, soft_wrap=True)


def _name(cell: Cell) -> str:
    return f"{cell.data_set}, {cell.variant}, seed {cell.seed}"
