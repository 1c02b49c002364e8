"""A study on disk: `study.json` says what belongs to it, each run's `run.json` what became of it, a lock who works on it.

`study.json`: name, title, question, protocol, metrics, figures, reference, variants, data_sets, seeds, quick, paper, and
`runs`, one entry for each run that belongs to the suite as it is now (a run of an earlier version of a variant stays on disk,
but is not listed).
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.experiments.cells import Cell, cell_of
from fastpfrec_flwr.experiments.suite import Suite, SuiteError
from fastpfrec_flwr.files import APP, source_fingerprint, write_atomically


@dataclass(frozen=True)
class RunRecord:
    """What became of a run, as `run.json` holds it; `status` is `done`, `failed` or `running`."""

    variant: str
    data_set: str
    seed: int
    key: str
    status: str
    error: str | None
    seconds: float
    finished_at: str | None
    source: str


def default_study(name: str, quick: bool) -> Path:
    """Where a suite's study goes if nobody says: a per-user folder by its name; the quick version has its own."""
    import platformdirs

    return Path(platformdirs.user_data_path(APP, appauthor=False)) / "studies" / (name + "-quick" * quick)


class Study:
    """A study folder.

    Parameters
    ----------
    path : absolute; need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.path / cell.folder

    def record(self, cell: Cell) -> RunRecord | None:
        """What became of a cell, or None if it was never begun, or as something else."""
        found = read_record(self.folder(cell))
        return found if found is not None and found.key == cell.key else None

    def is_done(self, cell: Cell) -> bool:
        """Whether a cell's run is there and whole."""
        found = self.record(cell)
        return found is not None and found.status == "done" and (self.folder(cell) / "summary.json").is_file()

    def write_record(self, cell: Cell, status: str, seconds: float = 0.0, error: str | None = None) -> RunRecord:
        """Write a cell's `run.json`."""
        finished = None if status == "running" else time.strftime("%Y-%m-%dT%H:%M:%S%z")
        source = source_fingerprint()
        record = RunRecord(cell.variant, cell.data_set, cell.seed, cell.key, status, error, seconds, finished, source)
        _write_json(self.folder(cell) / "run.json", asdict(record))
        return record

    def write(self, suite: Suite, cells: Sequence[Cell], quick: bool) -> None:
        """Write `study.json` for these cells and all earlier runs that still are what the suite says.

        Raises
        ------
        SuiteError if the folder holds another study.
        """
        before = self.read() if (self.path / "study.json").is_file() else {}
        if before and (before["name"], before["quick"]) != (suite.name, quick):
            kind = "quick " if before["quick"] else ""
            raise SuiteError(
                f"{self.path} holds the {kind}study {before['name']!r}; give another folder with --output-dir"
            )
        everything = {cell.folder: cell for cell in (*self._earlier(suite, quick), *cells)}
        order = {variant.name: i for i, variant in enumerate(suite.variants)}
        sets = [*suite.data_sets, *suite.other_data_sets]
        place = {name: i for i, name in enumerate(sets)}
        planned = sorted(
            everything.values(),
            key=lambda cell: (place.get(cell.data_set, len(sets)), cell.data_set, order[cell.variant], cell.seed),
        )
        wanted = {cell.variant for cell in planned}
        _write_json(
            self.path / "study.json",
            {
                "name": suite.name,
                "title": suite.title,
                "question": suite.question,
                "protocol": suite.protocol,
                "metrics": list(suite.metrics),
                "figures": list(suite.figures),
                "reference": suite.reference if suite.reference in wanted else None,
                "variants": [
                    {"name": each.name, "kind": each.kind, "overrides": each.overrides, "about": each.about}
                    for each in suite.variants
                    if each.name in wanted
                ],
                "data_sets": list(dict.fromkeys(cell.data_set for cell in planned)),
                "seeds": sorted({cell.seed for cell in planned}),
                "quick": quick,
                "paper": [figure for table in suite.paper for figure in table.figures() if figure["variant"] in wanted],
                "runs": [
                    {
                        "variant": cell.variant,
                        "data_set": cell.data_set,
                        "seed": cell.seed,
                        "key": cell.key,
                        "folder": cell.folder,
                    }
                    for cell in planned
                ],
            },
        )

    def _earlier(self, suite: Suite, quick: bool) -> list[Cell]:
        """Runs on disk whose configuration is what the suite gives now."""
        variants = {variant.name: variant for variant in suite.variants}
        found = []
        for file in sorted(self.path.glob("runs/*/*/seed-*/run.json")):
            record = read_record(file.parent)
            if record is None or record.variant not in variants:
                continue
            try:
                cell = cell_of(suite, variants[record.variant], record.data_set, record.seed, quick, "")
            except ConfigError:
                continue
            if cell.key == record.key:
                found.append(cell)
        return found

    def read(self) -> dict[str, Any]:
        """What `study.json` holds.

        Raises
        ------
        SuiteError naming the file.
        """
        path = self.path / "study.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not {"name", "quick", "runs", "variants", "metrics"} <= found.keys():
                raise ValueError("keys are missing")
        except OSError as error:
            raise SuiteError(f"{path}: cannot be read ({error.strerror}); is {self.path} a study folder?") from None
        except ValueError as error:
            raise SuiteError(f"{path}: is no study ({error}); move it away and run the study again") from None
        return found

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from running this study; the system lets go of the lock of a process that dies.

        Raises
        ------
        SuiteError if somebody has it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise SuiteError(f"--output-dir {self.path}: cannot be written ({error.strerror})") from None
        with file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # no such locks on this system: nobody else is kept out
                pass
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise SuiteError(
                    f"{self.path}: this study is being run by {holder}; wait for it, stop it, or use another --output-dir"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n")
            file.flush()
            yield

    def is_being_run(self) -> bool:
        """Whether somebody holds the lock."""
        try:
            with self.lock():
                return False
        except SuiteError:
            return True


def read_record(folder: Path) -> RunRecord | None:
    """What a run folder's `run.json` holds; None where there is none that can be read."""
    try:
        return RunRecord(**json.loads((folder / "run.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
