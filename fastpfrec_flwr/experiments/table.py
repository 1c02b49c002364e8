"""The compact table at the end of a study: one for each data set, a row for each variant. Statistics are the report's."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fastpfrec_flwr.experiments.runner import study_of_folder
from fastpfrec_flwr.experiments.study import RunRecord, Study
from fastpfrec_flwr.experiments.suite import SuiteError
from fastpfrec_flwr.report.reading import read_object, same_source, source_of


def study_tables(path: Path) -> list[Table]:
    """Tables of a study folder: metrics as mean +- sd over seeds, the paper's values, the differences, and the time.

    Raises
    ------
    SuiteError if it is none.
    """
    study = Study(path).read()
    runs = study_of_folder(path)
    tables = []
    for data_set in study["data_sets"]:
        paper = {
            (each["variant"], each["metric"]): each["value"] for each in study["paper"] if each["data_set"] == data_set
        }
        printed = [name for name in study["metrics"] if any(metric == name.split("@")[0] for _, metric in paper)]
        printed = list({name.split("@")[0]: name for name in reversed(printed)}.values())[::-1]
        table = Table(title=f"{study['title']}: {data_set}", title_justify="left")
        table.add_column("variant")
        columns = [_short(name) for name in study["metrics"]]
        columns += [
            part for name in printed for part in (f"paper {_short(name).split('@')[0]}", f"diff {_short(name)}")
        ]
        columns += ["s/round", *(_words(name) for name in study.get("figures", [])), "n"]
        for column in columns:
            table.add_column(column, justify="right")
        for variant in study["variants"]:
            mine = [
                (entry, record)
                for entry, record in runs
                if (entry["variant"], entry["data_set"]) == (variant["name"], data_set)
            ]
            summaries = [
                _summary(path / str(entry["folder"]))
                for entry, record in mine
                if record is not None and record.status == "done"
            ]
            cells = [_spread([summary["test"].get(name) for summary in summaries]) for name in study["metrics"]]
            for name in printed:
                value = paper.get((variant["name"], name.split("@")[0]))
                ours = _mean([summary["test"].get(name) for summary in summaries])
                cells += (
                    ["-", "-"] if value is None else [f"{value:.4f}", "-" if ours is None else f"{ours - value:+.4f}"]
                )
            cells.append(_number(_mean([summary["seconds"]["round_median"] or None for summary in summaries])))
            cells += [_number(_mean([_inside(each, name) for each in summaries])) for name in study.get("figures", [])]
            if mine:
                table.add_row(variant["name"], *cells, _count(mine))
        tables.append(table)
    return tables


def status_table(path: Path) -> tuple[Table, list[str]]:
    """How many runs of each variant and data set are done; a line for each that failed, and for what the runs do not share."""
    study = Study(path).read()
    runs = study_of_folder(path)
    table = Table("data set", "variant", "done", "failed", "running", "missing")
    for data_set in study["data_sets"]:
        for variant in study["variants"]:
            mine = [
                record.status if record else "missing"
                for entry, record in runs
                if (entry["variant"], entry["data_set"]) == (variant["name"], data_set)
            ]
            counts = [str(mine.count(status)) for status in ("done", "failed", "running", "missing")]
            if mine:
                table.add_row(data_set, variant["name"], *counts)
    failures = [
        f"failed: {record.data_set}, {record.variant}, seed {record.seed}: {record.error}\n  {path / str(entry['folder'])}"
        for entry, record in runs
        if record is not None and record.status == "failed"
    ]
    running = sum(record is not None and record.status == "running" for _, record in runs)
    if running and not Study(path).is_being_run():
        failures.append(
            f"note: nobody runs this study now; {running} runs were cut off and begin again with the next call"
        )
    sources = {record.source for _, record in runs if record is not None and record.status == "done"}
    if len(sources) > 1:
        failures.append(
            f"note: these runs were made by {len(sources)} versions of the code: {', '.join(sorted(sources))}"
        )
    done: dict[tuple[Any, Any], list[Path]] = {}
    for entry, record in runs:
        if record is not None and record.status == "done":
            done.setdefault((entry["data_set"], entry["variant"]), []).append(path / str(entry["folder"]))
    for (data_set, variant), folders in done.items():
        failures += _other_data(f"{variant} on {data_set}", folders)
    return table, failures


def _other_data(what: str, folders: Sequence[Path]) -> list[str]:
    """A line that names the runs of a variant whose data is not that of its first one."""
    sources = [source_of(read_object(folder / "config.json", [])) for folder in folders]
    others = [folder for folder, source in zip(folders, sources, strict=True) if not same_source(sources[0], source)]
    if not others:
        return []
    named = "".join(f"\n  {folder}" for folder in others)
    return [
        f"note: {what}: its seeds are not of one data set; these are of other data than {folders[0]}; remove what is of the old "
        f"data and run the study again:{named}"
    ]


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, "test": found["test"], "seconds": {"round_median": None, **found["seconds"]}}
    except OSError as error:
        raise SuiteError(
            f"{path}: cannot be read ({error.strerror}); remove {folder} and run the study again"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path}: is no summary ({error}); remove {folder} and run the study again") from None


def _short(metric: str) -> str:
    return metric.replace("hit_ratio_micro", "HR").replace("ndcg", "NDCG")


def _words(figure: str) -> str:
    return figure.replace(".", " ").replace("_", " ")


def _inside(summary: dict[str, Any], name: str) -> float | None:
    """A figure deeper in a summary, by its dotted name."""
    found: Any = summary
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    return statistics.fmean(known) if (known := _known(values)) else None


def _spread(values: Sequence[float | None]) -> str:
    """Mean and sample standard deviation; of a single value there is none."""
    known = _known(values)
    if not known:
        return "-"
    return f"{statistics.fmean(known):.4f}" + (f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _count(mine: Sequence[tuple[Any, RunRecord | None]]) -> str:
    done = sum(record is not None and record.status == "done" for _, record in mine)
    return str(done) if done == len(mine) else f"{done} of {len(mine)}"
