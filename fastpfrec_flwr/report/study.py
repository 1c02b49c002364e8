"""What a report is about: a study as its runner left it, or runs that somebody put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from fastpfrec_flwr.report.errors import ReportError
from fastpfrec_flwr.report.numbers import setting
from fastpfrec_flwr.report.reading import Run, is_run, read_object, read_run

# Where and how fast, not what: two runs that differ in these only are runs of one variant.
NOT_COMPARED = frozenset(
    {"data-set", "data-dir", "seed", "threads", "output-dir", "state-dir", "resume-from", "checkpoint-every", "device",
     "round-timeout", "user-metrics", "trackers", "metrics-file", "log-format"}
)  # fmt: skip
_MANY = 3  # differing settings that still make a name


@dataclass(frozen=True)
class Variant:
    """One way to run, as it is named in every table."""

    name: str
    about: str = ""
    kind: str = "federated"


@dataclass(frozen=True)
class PaperFigure:
    """A figure that the paper prints, and where."""

    value: float
    where: str


@dataclass(frozen=True)
class Study:
    """Runs to be reported together.

    Attributes
    ----------
    reference : the variant that others are compared with, or None. runs : of every state. missing : (data set, variant, seed)
        that should be there. paper : by (variant, data set, metric without cutoff). notices : what could not be used, and why.
    """

    key: str
    title: str
    question: str
    protocol: str
    reference: str | None
    variants: tuple[Variant, ...]
    data_sets: tuple[str, ...]
    runs: tuple[Run, ...]
    missing: tuple[tuple[str, str, int], ...] = ()
    paper: Mapping[tuple[str, str, str], PaperFigure] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    quick: bool = False
    loose: bool = False

    def of(self, data_set: str, variant: str) -> list[Run]:
        """Finished runs of a variant on a data set, by seed."""
        found = [run for run in self.runs if (run.data_set, run.variant, run.state) == (data_set, variant, "done")]
        return sorted(found, key=lambda run: run.seed)

    def done(self) -> list[Run]:
        """All finished runs, in the order of data sets, variants and seeds."""
        return [run for data in self.data_sets for each in self.variants for run in self.of(data, each.name)]


def read_all(paths: Sequence[Path]) -> list[Study]:
    """Read what the paths name; runs that stand alone are reported together.

    Raises
    ------
    ReportError naming each path of which nothing can be reported, if nothing is left.
    """
    studies: list[Study] = []
    alone: list[Path] = []
    refused: list[str] = []
    for path in dict.fromkeys(path.expanduser().resolve() for path in paths):
        if not path.is_dir():
            refused.append(f"{path}: is no folder; give a run folder or a study folder")
        elif (path / "study.json").is_file():
            try:
                studies.append(read_study(path))
            except ReportError as error:
                refused.append(str(error))
        elif is_run(path):
            alone.append(path)
        else:
            refused.append(
                f"{path}: is neither a run folder (it has no summary.json, config.json, metrics.jsonl or run.json) nor a study "
                "folder (no study.json)"
            )
    notices: list[str] = []
    runs = [run for path in alone if (run := read_run(path, notices)) is not None]
    if runs:
        studies.insert(0, study_of_runs(runs, notices))
    else:
        refused += notices
    if not studies:
        raise ReportError("\n".join(refused))
    if refused:
        first = studies[0]
        studies[0] = Study(**{**vars(first), "notices": (*refused, *first.notices)})
    return studies


def read_study(path: Path) -> Study:
    """Read a study folder.

    Raises
    ------
    ReportError if `study.json` cannot be read or says too little.
    """
    notices: list[str] = []
    whole = read_object(path / "study.json", notices)
    if notices:
        raise ReportError(notices[0])
    try:
        variants = tuple(
            Variant(each["name"], each.get("about", ""), each.get("kind", "federated")) for each in whole["variants"]
        )
        data_sets, seeds = tuple(whole["data_sets"]), [int(seed) for seed in whole["seeds"]]
        paper = {
            (each["variant"], each["data_set"], each["metric"]): PaperFigure(
                float(each["value"]), each.get("where", "")
            )
            for each in whole.get("paper", [])
        }
        entries = whole.get("runs", [])
        planned = [(each["data_set"], each["variant"], int(each["seed"])) for each in entries]
        listed = {_inside(path, each["folder"]): each.get("key") for each in entries if each.get("folder")}
        name = str(whole["name"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(
            f"{path / 'study.json'}: is no study ({type(error).__name__}: {error}); it needs name, variants, data_sets and "
            "seeds, see docs/reports.md"
        ) from None
    planned = planned or [(data, each.name, seed) for data in data_sets for each in variants for seed in seeds]
    runs = _newest(_runs_of(path, listed, notices), notices)
    known = {each.name for each in variants}
    for run in runs:
        if run.variant not in known or run.data_set not in data_sets:
            notices.append(
                f"{run.path}: is of {run.variant!r} on {run.data_set}, which study.json does not name: left out"
            )
    runs = [run for run in runs if run.variant in known and run.data_set in data_sets]
    there = {(run.data_set, run.variant, run.seed) for run in runs}
    reference = whole.get("reference")
    return Study(
        name,
        str(whole.get("title") or name),
        str(whole.get("question", "")),
        str(whole.get("protocol", "")),
        reference if isinstance(reference, str) and reference in known else None,
        variants,
        data_sets,
        tuple(runs),
        tuple(each for each in planned if each not in there),
        paper,
        tuple(notices),
        bool(whole.get("quick")),
    )


def _runs_of(path: Path, listed: Mapping[Path, Any], notices: list[str]) -> list[Run]:
    """The runs that `study.json` lists; of a study that lists no folders, all that lie there.

    Parameters
    ----------
    listed : folder -> the key that its `run.json` must agree with, or nothing.
    """
    there = sorted(path.glob("runs/*/*/seed-*"))
    if not listed:
        return [run for each in there if (run := read_run(each, notices))]
    runs = []
    for folder, key in listed.items():
        if not is_run(folder):  # told as missing
            continue
        run = read_run(folder, notices)
        if run is None:
            continue
        if key and run.record.get("key", key) != key:
            notices.append(
                f"{folder}: is a run of another configuration than study.json lists there (key {run.record['key']!r} in run.json, "
                f"{key!r} listed): left out; run the study again"
            )
            continue
        runs.append(run)
    if others := [each for each in there if each not in listed and is_run(each)]:
        notices.append(
            f"{path / 'study.json'}: does not list {len(others)} of the run folders beside it, as {others[0].relative_to(path)}: "
            "left out; they are of earlier versions of a variant, or were copied here. `fastpfrec experiment run` lists those that "
            "belong to the suite"
        )
    return runs


def _inside(path: Path, folder: str) -> Path:
    """A listed folder in the study folder as it lies now: an absolute path is where it once lay."""
    place = PurePosixPath(folder)
    return path.joinpath(*place.parts[-4:]) if place.is_absolute() else path / place


def _newest(runs: Sequence[Run], notices: list[str]) -> list[Run]:
    """One run for each data set, variant and seed: a finished one before others, the latest of those."""
    best: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        place = (run.data_set, run.variant, run.seed)
        if place not in best:
            best[place] = run
            continue
        older, newer = sorted((best[place], run), key=lambda each: (each.state == "done", _finished_at(each)))
        best[place] = newer
        notices.append(f"{older.path}: an earlier run of {run.variant!r}, seed {run.seed}, than {newer.path}: left out")
    return list(best.values())


def _finished_at(run: Run) -> str:
    return str(run.record.get("finished_at") or "")


def study_of_runs(runs: Sequence[Run], notices: Sequence[str]) -> Study:
    """Put runs together that stand alone: those with one configuration are the seeds of one variant.

    The first run's variant is what the others are compared with.
    """
    identities = list(dict.fromkeys(_identity(run) for run in runs))
    names = _names([next(run for run in runs if _identity(run) == each) for each in identities])
    named = [Run(**{**vars(run), "variant": names[identities.index(_identity(run))]}) for run in runs]
    kept = _newest(named, repeated := list(notices))
    protocols = list(dict.fromkeys(str(run.summary["protocol"]) for run in kept if run.summary.get("protocol")))
    title = f"Run {runs[0].path.name}" if len(runs) == 1 else f"{len(runs)} runs"
    return Study(
        "runs",
        title,
        "",
        f"Full ranking over all items that a user has not seen; {'; '.join(protocols)}." if protocols else "",
        names[0] if len(names) > 1 else None,
        tuple(Variant(name) for name in names),
        tuple(dict.fromkeys(run.data_set for run in kept)),
        tuple(kept),
        notices=tuple(repeated),
        loose=True,
    )


def _identity(run: Run) -> str:
    """What makes a run's variant."""
    compared = {key: value for key, value in run.config.items() if key not in NOT_COMPARED}
    return json.dumps([run.variant, run.facts.get("model"), compared], sort_keys=True)


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each variant: of its study, else what sets it apart, else its folder."""
    if len(runs) == 1:
        return [runs[0].variant or str(runs[0].facts.get("model") or "this configuration")]
    keys = differing_keys([run.config for run in runs])
    names = []
    for run in runs:
        settings = ", ".join(f"{key} = {setting(run.config.get(key, 'unset'))}" for key in keys)
        names.append(run.variant or (settings if 0 < len(keys) <= _MANY else run.path.name))
    if len(set(names)) < len(names):
        names = [f"{i}: {name} ({run.path.name})" for i, (name, run) in enumerate(zip(names, runs, strict=True), 1)]
    return names


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of which not all configurations have the same value."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in NOT_COMPARED)
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]
