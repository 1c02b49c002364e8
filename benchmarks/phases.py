"""Where the time of a round goes: the functions of a round, timed from outside while it runs."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import fastpfrec_flwr.client.node as client_node
import fastpfrec_flwr.client.opening as client_opening
import fastpfrec_flwr.messages as messages
import fastpfrec_flwr.server.aggregators as server_aggregators
import fastpfrec_flwr.server.strategy as strategy
import fastpfrec_flwr.trusted_node.aggregators as node_aggregators
import fastpfrec_flwr.trusted_node.tier as tier
from benchmarks.output import Line, spread
from benchmarks.setup import WARM_UP, configuration, training
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.mechanism import LaplaceMechanism
from fastpfrec_flwr.server.steps import RowAdamStep

# Phase, where its function is looked up, its name there. Phases do not overlap, so their times add up to the round's.
PHASES: list[tuple[str, Any, str]] = [
    ("open the shard", client_opening, "node_of"),
    ("sample the users", client_node, "round_users"),
    ("build the stars", client_node, "build_local_graphs"),
    ("local training", client_node, "train_cohort"),
    ("clip and noise", LaplaceMechanism, "privatize"),
    ("device state", ClientState, "vectors"),
    ("device state", ClientState, "save"),
    ("encode", messages, "encode_uploads"),
    ("encode", messages, "encode_model"),
    ("decode", messages, "decode_train"),
    ("decode", messages, "decode_uploads"),
    ("check", tier, "upload_distances"),
    ("check", tier.TrustedNodes, "_judge"),
    ("node mean", node_aggregators, "node_mean"),
    ("check across nodes", strategy, "healthy_nodes"),
    ("average", server_aggregators, "average_nodes"),
    ("server step", RowAdamStep, "apply"),
]


class Stopwatch:
    """Seconds spent in each phase, over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.perf_counter() - began
                with self._lock:
                    self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

        return timed


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the phases of every round that runs meanwhile."""
    watch = Stopwatch()
    patches = [patch.object(place, name, watch.wrap(phase, getattr(place, name))) for phase, place, name in PHASES]
    for each in patches:
        each.start()
    try:
        yield watch
    finally:
        for each in reversed(patches):
            each.stop()


def measured(
    data_sets: list[str], data_dir: str, clients: list[int], rounds: int, super_nodes: int, threads: int
) -> list[Line]:
    """Milliseconds of each phase, of what none of them names and of the whole round, with each one's share."""
    figures = []
    for data_set in data_sets:
        for count in clients:
            config = configuration(data_set, data_dir, clients_per_round=count, threads=threads)
            times = _times_of_phases(config, rounds, super_nodes)
            whole = float(np.median(times["round"]))
            for phase, spent in times.items():
                share = float(np.median(spent)) / whole
                figures.append(
                    {"data_set": data_set, "clients": count, "phase": phase, **spread(spent), "share": share}
                )
    return figures


def _times_of_phases(config: RunConfig, rounds: int, super_nodes: int) -> dict[str, list[float]]:
    """Seconds of each phase in each round after the warm-up."""
    times: dict[str, list[float]] = {}
    with training(config, super_nodes) as (strategy, grid):
        for server_round in range(1, rounds + WARM_UP + 1):
            with stopwatch() as watch:
                began = time.perf_counter()
                strategy.run_round(grid, server_round)
                total = time.perf_counter() - began
            if server_round > WARM_UP:
                rest = total - sum(watch.seconds.values())
                for phase, seconds in {**watch.seconds, "everything else": rest, "round": total}.items():
                    times.setdefault(phase, []).append(seconds)
    return times
