"""How the cost of a round grows: one thing at a time is made larger, each point in a process of its own.

Time is processor time of the whole round in-process (messages, state, check, average, server step), which does not depend on what
else the machine does; memory is the peak beyond what the process had before the data set was opened.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import Line
from benchmarks.setup import ROOT

BASE = {"users": 20_000, "items": 20_000, "clients": 256, "interactions": 50, "dimensions": 64}
STEPS = {
    "users": (5_000, 20_000, 80_000, 320_000),
    "items": (5_000, 20_000, 80_000, 320_000),
    "clients": (64, 256, 1_024, 4_096),
    "interactions": (12, 25, 50, 100),
    "dimensions": (16, 32, 64, 128),
}
MEASURES = {"cpu_ms": "processor ms a round", "memory_mb": "memory, MB", "up_mb": "MB up a round, as deployed"}


def points(quick: bool = False) -> list[dict[str, int]]:
    """Every size to measure, the base once; `quick`: two small ones of each, which says nothing and shows that it runs."""
    if quick:
        return [
            {**BASE, "users": 300, "items": 400, "clients": 20, "interactions": 10, "dimensions": k} for k in (8, 16)
        ]
    found = [dict(BASE)]
    for name, steps in STEPS.items():
        found += [{**BASE, name: value} for value in steps if value != BASE[name]]
    return found


def measured(point: dict[str, int], rounds: int) -> Line:
    """The line of one point, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--point", json.dumps(point), "--rounds", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{point}: {done.stderr[-2000:]}")
    found: Line = json.loads(done.stdout.splitlines()[-1])
    return {**point, **found}


def exponents(lines: list[Line]) -> list[Line]:
    """For each thing that was varied, the p of the cost ~ size^p that fits best (least squares of logarithms) and its largest miss.

    Parameters
    ----------
    lines : of `measured`; the ones in which only that thing differs from the base count.
    """
    found = []
    for name in STEPS:
        mine = [line for line in lines if all(line[other] == BASE[other] for other in STEPS if other != name)]
        if len({line[name] for line in mine}) < 3:
            continue
        sizes = np.log([line[name] for line in mine])
        fits: Line = {"cost against": name}
        for measure in MEASURES:
            costs = np.log([max(line[measure], 1e-3) for line in mine])
            slope, offset = np.polyfit(sizes, costs, 1)
            fits[measure] = float(slope)
            fits[f"{measure} off by"] = float(np.exp(np.abs(costs - slope * sizes - offset).max()) - 1)
        found.append(fits)
    return found


def plot(lines: list[Line], path: Path) -> None:
    """One panel for each thing varied, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(STEPS), 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(STEPS)), STEPS, strict=True):
        mine = sorted(
            (line for line in lines if all(line[other] == BASE[other] for other in STEPS if other != name)),
            key=lambda line, name=name: line[name],  # type: ignore[misc]
        )
        for measure, label in MEASURES.items():
            axes.loglog([line[name] for line in mine], [max(line[measure], 0.1) for line in mine], "o-", label=label)
        axes.set_xticks([line[name] for line in mine], [f"{line[name]:,}" for line in mine])
        axes.xaxis.minorticks_off()
        axes.tick_params(axis="x", labelrotation=30)
        axes.set_xlabel({"interactions": "interactions per user", "clients": "clients per round"}.get(name, name))
        axes.grid(visible=True, which="both", alpha=0.2)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _one(point: dict[str, int], rounds: int) -> Line:
    from benchmarks.setup import configuration, training
    from fastpfrec_flwr.data import prepare
    from fastpfrec_flwr.data.preparation import split_settings
    from fastpfrec_flwr.messages import row_bytes
    from fastpfrec_flwr.server.summary import peak_rss_mb

    name = f"synthetic-{point['users']}x{point['items']}x{point['interactions']}"
    config = configuration(
        name, "", clients_per_round=point["clients"], embedding_dim=point["dimensions"], num_negatives=256, threads=1
    )
    _warm_up(point["dimensions"])
    directory = Path(prepare(name, None, split_settings(config)).directory)
    try:
        before, times = peak_rss_mb(), []
        with training(config, 2) as (strategy, grid):
            for server_round in range(1, rounds + 3):
                began = time.process_time()
                strategy.run_round(grid, server_round)
                times.append(time.process_time() - began)
        return {
            "cpu_ms": 1e3 * float(np.median(times[2:])),
            "memory_mb": max(peak_rss_mb() - before, 0.0),
            "up_mb": point["clients"] * point["items"] * row_bytes("float32", point["dimensions"]) / 1e6,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _warm_up(dimensions: int) -> None:
    """Load all compiled code, so that it does not count as the data set's memory."""
    from benchmarks.setup import configuration, training

    with training(configuration("synthetic", "", embedding_dim=dimensions, clients_per_round=40, threads=1), 2) as run:
        run[0].run_round(run[1], 1)


def main() -> None:
    """Measure one point; used by `measured`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = _one(json.loads(options.point), options.rounds)
    assert all(math.isfinite(value) for value in found.values())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
