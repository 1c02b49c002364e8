"""Figures as a table and as JSON, and two files of figures side by side."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fastpfrec_flwr.console import plain_console
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.server.run_folder import versions

Line = dict[str, Any]


def spread(times: Sequence[float]) -> Line:
    """Median and quartiles in milliseconds, of times in seconds."""
    low, middle, high = np.quantile(np.array(times) * 1e3, [0.25, 0.5, 0.75])
    return {"median_ms": float(middle), "quartile_1_ms": float(low), "quartile_3_ms": float(high)}


def machine() -> Line:
    """What the figures were measured on."""
    facts = Path("/proc/cpuinfo")
    names = [line for line in facts.read_text().splitlines() if "model name" in line] if facts.is_file() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return {"machine": name, "system": platform.platform(), "threads": available_threads(), "versions": versions()}


def report(name: str, figures: list[Line], output: str) -> None:
    """Print a table; with `output` also write JSON with machine, versions and threads."""
    show(name, figures)
    if output:
        content = {"name": name, **machine(), "figures": figures}
        write_atomically(Path(output), json.dumps(content, indent=2).encode())


def show(name: str, figures: list[Line]) -> None:
    """Print a table."""
    table = Table(title=name)
    for column in figures[0]:
        table.add_column(column, justify="right")
    for line in figures:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in line.values()))
    plain_console().print(table)


def ratios(old: list[Line], new: list[Line]) -> list[Line]:
    """Lines of the same subject side by side: new over old for every figure that both have.

    A line's subject is all of it that is not a float.

    Raises
    ------
    ValueError if they have no subject in common.
    """

    def subject(line: Line) -> tuple[tuple[str, Any], ...]:
        return tuple((key, value) for key, value in line.items() if not isinstance(value, float))

    before = {subject(line): line for line in old}
    found = []
    for line in new:
        other = before.get(subject(line))
        if other is not None:
            own = {key: value for key, value in line.items() if isinstance(value, float) and other.get(key)}
            found.append({**dict(subject(line)), **{f"{key} ratio": value / other[key] for key, value in own.items()}})
    if not found:
        raise ValueError("the two files have no line about the same subject: they are of different benchmarks")
    return found
