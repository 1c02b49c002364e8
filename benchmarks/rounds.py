"""What rounds and evaluations cost in one process, messages, state and server step included."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from benchmarks.output import Line, spread
from benchmarks.processes import resident_mb
from benchmarks.setup import WARM_UP, configuration, training


def rounds_of(
    data_sets: list[str], data_dir: str, clients: list[int], rounds: int, super_nodes: int, **changes: Any
) -> list[Line]:
    """Milliseconds of a round, for each data set and number of clients.

    Parameters
    ----------
    changes : of the data sets' configurations.
    """
    with contextlib.ExitStack() as stack:
        runs: list[Any] = []
        for data_set in data_sets:
            for count in clients:
                config = configuration(data_set, data_dir, clients_per_round=count, **changes)
                runs.append((data_set, count, *stack.enter_context(training(config, super_nodes)), []))
        for server_round in range(1, rounds + WARM_UP + 1):
            for _, _, strategy, grid, times in runs:  # interleaved: a slow moment of the machine hits all alike
                began = time.perf_counter()
                strategy.run_round(grid, server_round)
                times.append(time.perf_counter() - began)
        return [
            {"data_set": data_set, "clients": count, **spread(times[WARM_UP:])} for data_set, count, _, _, times in runs
        ]


def evaluations(data_sets: list[str], data_dir: str, repeats: int) -> list[Line]:
    """Milliseconds of an evaluation of all users on the validation part."""
    figures = []
    for data_set in data_sets:
        with training(configuration(data_set, data_dir), 2) as (strategy, grid):
            times = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                strategy.evaluate(grid, 1, ["validation"])
                times.append(time.perf_counter() - began)
            figures.append({"data_set": data_set, **spread(times[1:])})
    return figures


def resident_after(data_set: str, data_dir: str, rounds: int) -> list[Line]:
    """Resident memory after each tenth of many rounds of 256 clients."""
    figures: list[Line] = []
    with training(configuration(data_set, data_dir, clients_per_round=256), 2) as (strategy, grid):
        for server_round in range(1, rounds + 1):
            strategy.run_round(grid, server_round)
            if server_round % max(rounds // 10, 1) == 0:
                figures.append({"round": server_round, "resident_mb": resident_mb()})
    return figures
