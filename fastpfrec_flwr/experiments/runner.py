"""Running a study: prepare once, hand the runs that are missing to worker processes, keep every one that ends well."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fastpfrec_flwr.experiments.cells import Cell
from fastpfrec_flwr.experiments.pool import Worker, WorkerDied
from fastpfrec_flwr.experiments.study import RunRecord, Study, read_record
from fastpfrec_flwr.experiments.suite import SuiteError
from fastpfrec_flwr.experiments.worker import FORESEEN, OUTPUT, SETTINGS, STATE, write_settings
from fastpfrec_flwr.parallel import available_threads

_LOOK_SECONDS = 0.2
_SPLIT_KEYS = (
    "data-set", "split", "validation-fraction", "test-fraction", "seed", "min-weight", "data-dir", "catalogue",
)  # fmt: skip
_REASON_LINES = 4


class Show(Protocol):
    """What the runner tells while it runs."""

    def step(self, text: str) -> None: ...  # noqa: D102

    def progress(self, state: State) -> None: ...  # noqa: D102

    def ended(self, cell: Cell, record: RunRecord, folder: Path) -> None: ...  # noqa: D102


@dataclass
class State:
    """Where a study stands.

    Attributes
    ----------
    total, done, failed : runs of this call; done counts those of earlier calls. running : cells and since when.
    seconds : of finished runs by data set.
    """

    total: int
    done: int
    failed: int = 0
    workers: int = 1
    running: dict[Cell, float] = field(default_factory=dict)
    waiting: list[Cell] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def expected_seconds(self, cell: Cell) -> float | None:
        """What a run like this took in the median, or any run if none like it has finished; None before the first."""
        of_kind = [value for key, values in self.seconds.items() if key.startswith(cell.kind) for value in values]
        everything = [value for values in self.seconds.values() for value in values]
        alike = self.seconds.get(f"{cell.kind} {cell.data_set}") or of_kind or everything
        return statistics.median(alike) if alike else None

    def seconds_left(self, now: float) -> float | None:
        """Until all runs are done, from those that are; None before any has finished."""
        waiting = [self.expected_seconds(cell) for cell in self.waiting]
        running = [(self.expected_seconds(cell), now - since) for cell, since in self.running.items()]
        if None in waiting or any(each is None for each, _ in running):
            return None
        left = sum(each for each in waiting if each) + sum(max((each or 0.0) - since, 0.0) for each, since in running)
        return left / min(self.workers, max(len(waiting) + len(running), 1))

    def count_in(self, cell: Cell, seconds: float) -> None:
        """Remember how long a run took."""
        self.seconds.setdefault(f"{cell.kind} {cell.data_set}", []).append(seconds)


def default_workers(timed: bool) -> int:
    """One a core, or one where seconds matter."""
    return 1 if timed else available_threads()


def run_cells(study: Study, cells: Sequence[Cell], workers: int, show: Show) -> State:
    """Run what is not done yet. The caller holds the study's lock.

    Returns
    -------
    The final state; `failed` runs have their reason in `run.json` and are tried again by the next call.

    Raises
    ------
    SuiteError if the data cannot be prepared. KeyboardInterrupt as it came; what ran is then marked as interrupted.
    """
    waiting = [cell for cell in cells if not study.is_done(cell)]
    workers = max(1, min(workers, len(waiting)))
    state = State(len(cells), len(cells) - len(waiting), workers=workers, waiting=waiting)
    for cell in cells:
        if study.is_done(cell) and (record := study.record(cell)) is not None:
            state.count_in(cell, record.seconds)
    if not waiting:
        return state
    for cell in waiting:
        _lay_out(study, cell)
    with ExitStack() as stack:
        pool = _Pool(study.path / "workers.txt")
        stack.enter_context(_interrupted_runs(study, state))
        stack.callback(pool.end)
        _get_ready(pool, study, waiting, show)
        while state.waiting or state.running:
            pool.fill(workers if state.waiting else 0)
            for worker in pool.idle():
                if state.waiting:
                    cell = state.waiting.pop(0)
                    study.write_record(cell, "running")
                    job = {"do": "run", "folder": str(study.folder(cell)), "kind": cell.kind, "model": cell.model}
                    worker.give({**job, "chosen": dict(cell.chosen)})
                    pool.cells[worker] = cell
                    state.running[cell] = worker.began
            for worker, status, trouble in pool.look(_LOOK_SECONDS):
                cell = pool.cells.pop(worker)
                record = _close(study, cell, status, trouble, time.monotonic() - worker.began)
                del state.running[cell]
                state.done += record.status == "done"
                state.failed += record.status == "failed"
                if record.status == "done":
                    state.count_in(cell, record.seconds)
                show.ended(cell, record, study.folder(cell))
            show.progress(state)
    return state


class _Pool:
    """The workers, started when there is work for them, and what each works on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._workers: list[Worker] = []
        self.cells: dict[Worker, Cell] = {}

    def fill(self, number: int) -> None:
        while len(self._workers) < number:
            self._workers.append(Worker(self._log))

    def idle(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.busy]

    def look(self, seconds: float) -> Iterator[tuple[Worker, int, str]]:
        """The workers that are done, with exit status and what befell the worker itself; waits up to `seconds`."""
        busy = [worker for worker in self._workers if worker.busy]
        for worker in busy:
            try:
                status = worker.poll(seconds / len(busy))
            except WorkerDied as error:
                self._workers.remove(worker)
                worker.end()
                yield worker, 1, str(error)
            else:
                if status is not None:
                    yield worker, status, ""

    def end(self) -> None:
        for worker in self._workers:
            worker.end()


def _lay_out(study: Study, cell: Cell) -> None:
    """An empty run folder with the settings of its run."""
    folder = study.folder(cell)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        places = {"output-dir": str(folder), "state-dir": str(folder / STATE)}
        write_settings(folder / SETTINGS, {**cell.values, **places})
    except OSError as error:
        raise SuiteError(f"{folder}: cannot be written ({error.strerror or error})") from None


def _get_ready(pool: _Pool, study: Study, cells: Sequence[Cell], show: Show) -> None:
    """Prepare each data set and compile what the runs need, before the workers would all do it at once.

    Raises
    ------
    SuiteError with the reason if a data set cannot be prepared.
    """
    pool.fill(1)
    (worker,) = pool.idle()
    splits = _first_of_each(cells, _SPLIT_KEYS)
    kernels = first_of_each_kernel(cells)
    with tempfile.TemporaryDirectory(prefix="fastpfrec-") as folder:
        for do, text, chosen in (
            ("prepare", f"preparing {len(splits)} splits", splits),
            ("warm", "compiling", kernels),
        ):
            output = Path(folder) / f"{do}.txt"
            show.step(text)
            settings = [str(study.folder(cell) / SETTINGS) for cell in chosen]
            worker.give({"do": do, "settings": settings, "output": str(output)})
            try:
                while (status := worker.poll(_LOOK_SECONDS)) is None:
                    pass
            except WorkerDied as error:
                raise SuiteError(f"{error}; {study.path / 'workers.txt'} says why") from None
            if do == "prepare" and status != 0:
                raise SuiteError(_reason(output, status))


def first_of_each_kernel(cells: Sequence[Cell]) -> list[Cell]:
    """A federated cell for each code that the cells need."""
    federated = [cell for cell in cells if cell.kind == "federated"]
    # Words and switches choose code; numbers, mostly, do not.
    switches = {key for cell in federated for key, value in cell.values.items() if type(value) in (str, bool)}
    return _first_of_each(federated, sorted(switches - {"data-set", "data-dir", "catalogue"}))


def _first_of_each(cells: Sequence[Cell], keys: Sequence[str]) -> list[Cell]:
    return list({tuple(cell.values[key] for key in keys): cell for cell in reversed(cells)}.values())


def _close(study: Study, cell: Cell, status: int, trouble: str, seconds: float) -> RunRecord:
    """Write what became of a run."""
    folder = study.folder(cell)
    shutil.rmtree(folder / STATE, ignore_errors=True)
    if status == 0 and not (folder / "summary.json").is_file():
        status, trouble = 1, "it left no summary.json"
    if status == 0:
        return study.write_record(cell, "done", seconds)
    reason = "; ".join(filter(None, [trouble, _reason(folder / OUTPUT, status)]))
    return study.write_record(cell, "failed", seconds, reason)


def _reason(output: Path, status: int) -> str:
    """Why a run failed: the signal, the message of a foreseen error, or the last lines that it printed."""
    try:
        lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    if status == FORESEEN:
        told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if told:
            return told[-1]
    last = "\n".join(lines[-_REASON_LINES:])
    if status < 0:
        killed = f"ended by signal {-status}" + (" (out of memory?)" if status == -9 else "")
        return f"{killed}\n{last}".strip()
    return last or f"ended with status {status} and printed nothing"


@contextmanager
def _interrupted_runs(study: Study, state: State) -> Iterator[None]:
    """Whatever ends the runner, runs in flight do not stay marked as running."""
    try:
        yield
    finally:
        for cell, since in state.running.items():
            study.write_record(cell, "failed", time.monotonic() - since, "interrupted")
            shutil.rmtree(study.folder(cell) / STATE, ignore_errors=True)


def current_round(folder: Path) -> str:
    """How far a run is, from its log: `40/100`, `refit 20/60`, or nothing yet."""
    try:
        lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        words = line.split()
        if "refit on train + validation: round" in line:
            return f"refit {words[-1]}"
        if len(words) > 3 and words[2].count("/") == 1 and words[2].replace("/", "").isdigit():
            return words[2]
    return ""


def study_of_folder(path: Path) -> list[tuple[dict[str, str | int], RunRecord | None]]:
    """Every run that `study.json` lists, with what became of it."""
    study = Study(path)
    return [
        (entry, record if (record := read_record(path / entry["folder"])) and record.key == entry["key"] else None)
        for entry in study.read()["runs"]
    ]
