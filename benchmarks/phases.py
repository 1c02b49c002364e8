"""Where the time of a round goes: the functions of a round, timed from outside while it runs."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import fastpfrec_flwr.client.node as client_node
import fastpfrec_flwr.client.opening as client_opening
import fastpfrec_flwr.messages as messages
import fastpfrec_flwr.server.aggregators as server_aggregators
import fastpfrec_flwr.server.strategy as strategy
import fastpfrec_flwr.trusted_node.aggregators as node_aggregators
import fastpfrec_flwr.trusted_node.tier as tier
from fastpfrec_flwr.client.state import ClientState
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
