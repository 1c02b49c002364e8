"""Run folders as they are found: whole, unfinished, failed or broken. What cannot be read is said, not guessed."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.evaluation.statistics import estimate, join_users
from fastpfrec_flwr.report import shapes

State = Literal["done", "failed", "unfinished"]

# A run that is none of these has no file by which it can be known.
RUN_FILES = ("summary.json", "config.json", "metrics.jsonl", "run.json")
# Single precision of the figures per user; anything coarser is another evaluation.
_AGREEMENT = 1e-5


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes
    ----------
    path : the folder. data_set, variant, seed : what was run; the variant is "" for a run outside a study.
    state, error : what became of it. config : run-config values. facts : the rest of `config.json`. lines : evaluated rounds.
    summary : `summary.json`, empty unless done. users : `user_metrics.npz`, or None.
    """

    path: Path
    data_set: str
    variant: str
    seed: int
    state: State
    error: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Mapping[str, Any], ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    users: Mapping[str, NDArray[Any]] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def test(self) -> Mapping[str, float]:
        """Metrics on the test part that are numbers."""
        return numbers(self.summary.get("test"))

    @property
    def last_round(self) -> int:
        """The last evaluated round."""
        return int(self.lines[-1]["round"]) if self.lines else 0


def same_people(one: Run, other: Run) -> bool:
    """Whether a user's number means the same person in both, as far as two runs of one seed can tell.

    Runs of other data, or of what another `min-weight` left of it, count other people. Another cut of the same data has another
    fingerprint too, but the same people with as many test items.
    """
    if one.summary.get("data_fingerprint") == other.summary.get("data_fingerprint"):
        return True
    ours, theirs = one.users or {}, other.users or {}
    return all(
        np.array_equal(ours[name], theirs[name]) for name in ("users", "truth") if name in ours and name in theirs
    )


def source_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a run's data apart whatever its seed cut of it: the files' hashes, and how many users and items they have.

    Parameters
    ----------
    facts : of `config.json`. Real devices say nothing of their files, and may come and go.
    """
    if facts.get("deployed"):
        return {}
    data = facts.get("data")
    data = data if isinstance(data, Mapping) else {}
    report = data.get("report")
    report = report if isinstance(report, Mapping) else {}
    found = {key: report[key] for key in ("users_in_source", "items_in_source") if key in report}
    if "users" in data:
        found["users"] = data["users"]
    files = report.get("files")
    for file in files if isinstance(files, list) else []:
        if isinstance(file, Mapping) and file.get("sha256"):
            found[f"{file.get('role')} file"] = file["sha256"]
    return found


def same_source(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs' `source_of` agree in all that both say."""
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def numbers(values: Any) -> dict[str, float]:
    """Of a JSON object the entries that are finite numbers."""
    if not isinstance(values, Mapping):
        return {}
    return {key: float(each) for key, each in values.items() if _is_number(each)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_run(path: Path) -> bool:
    """Whether a folder holds a run, however far it came."""
    return any((path / name).is_file() for name in RUN_FILES)


def read_run(path: Path, notices: list[str]) -> Run | None:
    """Read a run folder; what is broken is added to `notices` with the file's name.

    Returns
    -------
    None where nothing says what was run.
    """
    before = len(notices)
    record = _read_fitting(path / "run.json", shapes.RECORD, notices, wanted=False)
    begun = record.get("status") not in ("failed", "running")
    whole = _read_fitting(path / "config.json", shapes.CONFIG, notices, wanted=begun)
    summary = _read_fitting(path / "summary.json", shapes.SUMMARY, notices, wanted=False)
    config = whole.get("config", {})
    data_set = record.get("data_set") or summary.get("data_set") or config.get("data-set")
    seed = record.get("seed", summary.get("seed", config.get("seed")))
    if not isinstance(data_set, str) or not isinstance(seed, int):
        if len(notices) == before:
            notices.append(f"{path}: neither run.json, summary.json nor config.json names data set and seed: left out")
        return None
    state, error = _state(path, record, summary)
    done = state == "done"
    run = Run(
        path,
        data_set,
        str(record.get("variant", "")),
        seed,
        state,
        error,
        config,
        {key: value for key, value in whole.items() if key != "config"},
        _read_lines(path / "metrics.jsonl", notices),
        summary if done else {},
        None,
        record,
    )
    if done and not run.test:
        notices.append(f"{path / 'summary.json'}: holds no test figures; the run is listed as unfinished")
        return Run(**{**vars(run), "state": "unfinished", "error": "no test figures", "summary": {}})
    return Run(**{**vars(run), "users": _read_users(path / "user_metrics.npz", run, notices)}) if done else run


def _state(path: Path, record: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[State, str]:
    status = record.get("status", "done")
    if status == "failed":
        return "failed", str(record.get("error") or "no reason was recorded")
    if status == "running":
        return "unfinished", "still running, or its process ended without a word"
    if not summary:
        missing = "cannot be read" if (path / "summary.json").is_file() else "is missing"
        return "unfinished", f"summary.json {missing}"
    return "done", ""


def read_object(path: Path, notices: list[str], wanted: bool = True) -> dict[str, Any]:
    """Read a JSON object; {} and a notice where that cannot be done."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if wanted:
            notices.append(f"{path}: is missing")
        return {}
    except (OSError, ValueError) as error:
        notices.append(f"{path}: cannot be read as JSON ({error})")
        return {}
    if not isinstance(value, dict):
        notices.append(f"{path}: must hold a JSON object, got {type(value).__name__}")
        return {}
    return value


def _read_fitting(path: Path, shape: Mapping[str, Any], notices: list[str], wanted: bool) -> dict[str, Any]:
    return shapes.fitting(read_object(path, notices, wanted), shape, str(path), notices)


def _read_lines(path: Path, notices: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The evaluated rounds; a line that is no round is left out, with a notice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        notices.append(f"{path}: cannot be read ({error}); no learning curve of this run")
        return ()
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            notices.append(f"{path}, line {number}: is not JSON ({error}); the line is left out")
            continue
        if isinstance(value, dict) and _is_number(value.get("round")):
            lines.append(shapes.fitting(value, shapes.LINE, f"{path}, line {number}", notices))
        else:
            notices.append(f"{path}, line {number}: has no round; the line is left out")
    return tuple(lines)


def _read_users(path: Path, run: Run, notices: list[str]) -> Mapping[str, NDArray[Any]] | None:
    """Figures per user, if there are any and they are those of the summary."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            users = {name: arrays[name] for name in arrays.files}
        joined = join_users([users])
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        notices.append(f"{path}: cannot be used ({error}); no intervals over users for this run")
        return None
    for name in joined.metrics(run.test):
        if abs(estimate(joined, name) - run.test[name]) > _AGREEMENT:
            notices.append(
                f"{path}: gives {name} = {estimate(joined, name):.4f}, summary.json {run.test[name]:.4f}: figures of another "
                "evaluation, not used"
            )
            return None
    return users
