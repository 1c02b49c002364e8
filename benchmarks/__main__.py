"""What a round, an evaluation and a whole run cost: `python -m benchmarks round | evaluation | memory | flwr`."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fastpfrec_flwr.config import RunConfig, default_values, parse_run_config
from fastpfrec_flwr.memory import keep_freed_memory

ROOT = Path(__file__).resolve().parents[1]
app = typer.Typer(add_completion=False, help=__doc__)
DataDir = Annotated[str, typer.Option(help="Folder of the named data sets; empty: what was fetched before.")]
Output = Annotated[str, typer.Option(help="JSON file for the figures.")]


def configuration(data_set: str, data_dir: str, **changes: Any) -> RunConfig:
    """The shipped configuration of a data set with changes."""
    import tomllib

    conf = ROOT / "conf" / f"{data_set}.toml"
    shipped = tomllib.loads(conf.read_text(encoding="utf-8")) if conf.is_file() else {"data-set": data_set}
    own = {key.replace("_", "-"): value for key, value in changes.items()}
    return parse_run_config({**default_values(ROOT / "pyproject.toml"), **shipped, "data-dir": data_dir, **own})


@contextmanager
def training(config: RunConfig, super_nodes: int) -> Iterator[tuple[Any, Any]]:
    """A strategy and a grid in this process, ready for round 1."""
    from fastpfrec_flwr.client.app import app as client_app
    from fastpfrec_flwr.parallel import available_threads
    from fastpfrec_flwr.server.build import build_strategy
    from fastpfrec_flwr.server.nodes import discover
    from fastpfrec_flwr.server.steps import ServerState, initial_table
    from fastpfrec_flwr.simulation.grid import InProcessGrid

    keep_freed_memory()
    with tempfile.TemporaryDirectory() as state_dir:
        values = {**config.to_flat_dict(), "state-dir": state_dir}
        grid = InProcessGrid(client_app, super_nodes, values, threads=available_threads(config.threads))
        strategy = build_strategy(config, None, available_threads(config.threads))
        nodes = discover(grid, strategy.order(0), 0.0, 600.0)
        strategy.attach(nodes, f"bench{time.monotonic_ns()}")
        table = initial_table(nodes.descriptions[0].num_items, config.embedding_dim, config)
        strategy.begin("train", ServerState.start(table))
        yield strategy, grid


@app.command("round")
def round_cost(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: str = "256,1024",
    rounds: int = 15,
    super_nodes: int = 2,
    negatives: Annotated[int, typer.Option(help="Size of the shared negative set; 0: the data set's own.")] = 0,
    output: Output = "",
) -> None:
    """Milliseconds of one round in-process, everything included (messages, state, check, average, server step)."""
    import contextlib

    figures = []
    with contextlib.ExitStack() as stack:
        runs: list[Any] = []
        for data_set in data_sets.split(","):
            for count in (int(c) for c in clients.split(",")):
                changes = {"num_negatives": negatives} if negatives else {}
                config = configuration(data_set, data_dir, clients_per_round=count, **changes)
                runs.append((data_set, count, *stack.enter_context(training(config, super_nodes)), []))
        for server_round in range(1, rounds + 4):
            for _, _, strategy, grid, times in runs:  # interleaved: a slow moment of the machine hits all alike
                began = time.perf_counter()
                strategy.run_round(grid, server_round)
                times.append(time.perf_counter() - began)
        for data_set, count, _, _, times in runs:
            figures.append({"data_set": data_set, "clients": count, **spread(times[3:])})
    report("round", figures, output)


@app.command()
def evaluation(
    data_dir: DataDir = "", data_sets: str = "gowalla-100k,gowalla-1m", repeats: int = 5, output: Output = ""
) -> None:
    """Milliseconds of one federated evaluation of all users on the validation part, in-process."""
    figures = []
    for data_set in data_sets.split(","):
        with training(configuration(data_set, data_dir), 2) as (strategy, grid):
            times = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                strategy.evaluate(grid, 1, ["validation"])
                times.append(time.perf_counter() - began)
            figures.append({"data_set": data_set, **spread(times[1:])})
    report("evaluation", figures, output)


@app.command()
def memory(data_dir: DataDir = "", data_set: str = "gowalla-100k", rounds: int = 1000, output: Output = "") -> None:
    """Resident memory after each tenth of many rounds of 256 clients: it should be flat."""
    figures = []
    with training(configuration(data_set, data_dir, clients_per_round=256), 2) as (strategy, grid):
        for server_round in range(1, rounds + 1):
            strategy.run_round(grid, server_round)
            if server_round % max(rounds // 10, 1) == 0:
                figures.append({"round": server_round, "resident_mb": resident_mb()})
    report("memory", figures, output)


@app.command()
def flwr(data_set: str = "ml-100k", data_dir: DataDir = "", rounds: int = 40, output: Output = "") -> None:
    """Median milliseconds of a round under `flwr run` with 2 SuperNodes and in-process: the difference is Flower's and Ray's."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pairs = f'data-set="{data_set}" data-dir="{data_dir}" num-rounds={rounds} evaluate-every=0 report-loss=false'
        for kind in ("flwr run", "in-process"):
            out = Path(folder) / kind.replace(" ", "-")
            own = f'{pairs} output-dir="{out}"'
            fastpfrec = [sys.executable, "-m", "fastpfrec_flwr", "simulate", "-c", own]
            flower = [str(Path(sys.executable).with_name("flwr")), "run", str(ROOT), "--stream", "-c", own]
            subprocess.run(flower if kind == "flwr run" else fastpfrec, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds = json.loads((out / "summary.json").read_text())["seconds"]
            figures.append({"kind": kind, "median_ms": 1e3 * seconds["round_median"], "total_s": seconds["total"]})
    report("flwr", figures, output)


def spread(times: list[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds."""
    low, middle, high = np.quantile(np.array(times) * 1e3, [0.25, 0.5, 0.75])
    return {"median_ms": float(middle), "quartile_1_ms": float(low), "quartile_3_ms": float(high)}


def resident_mb() -> float:
    """Resident memory of this process now (Linux)."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else float("nan")


def report(name: str, figures: list[dict[str, Any]], output: str) -> None:
    """Print a table; write JSON with machine, versions and threads."""
    from fastpfrec_flwr.parallel import available_threads
    from fastpfrec_flwr.server.run_folder import versions

    table = Table(title=name)
    for column in figures[0]:
        table.add_column(column, justify="right")
    for line in figures:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in line.values()))
    Console().print(table)
    if output:
        facts = {"machine": platform.processor() or platform.machine(), "threads": available_threads()}
        Path(output).write_text(
            json.dumps({"name": name, **facts, "versions": versions(), "figures": figures}, indent=2)
        )


if __name__ == "__main__":
    app()
