"""The server step: what becomes of the average, and the beta blend. State in, state out; nothing is changed in place."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model.layout import ItemsOnly, Layout
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.wire import sendable

BETA_1, BETA_2, EPSILON = 0.9, 0.99, 1e-4
_ROWS_PER_TASK = 4096


@dataclass(frozen=True)
class Pull:
    """Which way each row has been pulled of late (`server.steady`).

    Attributes
    ----------
    mean : (rows, k) float32, running mean of the rows' changes. square : (rows,) float32, running mean of their squared norms.
    steps : rounds behind them. found : rows that are pulled one way.
    """

    mean: NDArray[np.float32]
    square: NDArray[np.float32]
    steps: int
    found: tuple[int, ...] = ()


@dataclass(frozen=True)
class ServerState:
    """Everything the server remembers between rounds.

    Attributes
    ----------
    item_table : (rows, k) float32, E; where the model shares more than the items' rows, that follows them.
    first_moment : (rows, k) float32, m. second_moment : (rows,) float32, v.
    steps : server steps taken (rounds that had something healthy to average).
    item_counts : (items,) noised users per item so far, where clients send them.
    quarantine : node -> last round that it is left out of, as pairs in the order of nodes.
    pull : which way rows are pulled, where that is followed.
    """

    item_table: NDArray[np.float32]
    first_moment: NDArray[np.float32]
    second_moment: NDArray[np.float32]
    steps: int
    item_counts: NDArray[np.float64] | None = None
    quarantine: tuple[tuple[int, int], ...] = ()
    pull: Pull | None = None

    @staticmethod
    def start(item_table: NDArray[np.float32]) -> ServerState:
        """State before the first round."""
        return ServerState(item_table, np.zeros_like(item_table), np.zeros(len(item_table), np.float32), 0)


class ServerStep(Protocol):
    """Turns the averaged change into the next state."""

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """Take one step with `change` = W_s - E ((items, k)) in `server_round` (from 1)."""


@dataclass(frozen=True)
class AverageStep:
    """E <- (1 - beta) E + beta W_s (paper, eq. of the redistribution)."""

    blend_weight: float
    unit_rows: bool

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        table = (state.item_table + self.blend_weight * change).astype(np.float32)
        return replace(state, item_table=_to_unit(table) if self.unit_rows else table, steps=state.steps + 1)


@dataclass(frozen=True)
class MomentumStep:
    """Heavy ball (Polyak 1964; FedAvgM of Hsu et al. 2019): m <- mu m + G, W_s = E + s_t m, then the blend.

    A change that comes back every round grows to 1 / (1 - mu) times itself: choose s accordingly.
    """

    learning_rate: float
    momentum: float
    blend_weight: float
    unit_rows: bool
    schedule: str
    num_rounds: int

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        moment = (self.momentum * state.first_moment + change).astype(np.float32)
        size = self.blend_weight * scheduled(self.learning_rate, self.schedule, server_round, self.num_rounds)
        table = (state.item_table + size * moment.astype(np.float64)).astype(np.float32)
        return replace(
            state,
            item_table=_to_unit(table) if self.unit_rows else table,
            first_moment=moment,
            steps=state.steps + 1,
        )


@dataclass(frozen=True)
class RowAdamStep:
    """Adam with one second moment per row: tail items get as large a step as popular ones.

    m <- 0.9 m + 0.1 G; v <- 0.99 v + 0.01 mean over the row of G^2; W_s = E + s_t m^ / (sqrt(v^) + 1e-4), then the blend.
    """

    learning_rate: float
    blend_weight: float
    unit_rows: bool
    schedule: str
    num_rounds: int
    threads: int = 1

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        steps = state.steps + 1
        # The new table is the next round's message; the others stay here.
        table = sendable(state.item_table.shape, "float32")
        first, second = np.empty_like(state.first_moment), np.empty_like(state.second_moment)
        before = state.item_table, state.first_moment, state.second_moment
        size = self.blend_weight * scheduled(self.learning_rate, self.schedule, server_round, self.num_rounds)

        def run(start: int) -> None:
            stop = min(start + _ROWS_PER_TASK, len(table))
            correct = 1 - BETA_1**steps, 1 - BETA_2**steps
            _row_adam(*before, change, size, *correct, start, stop, table, first, second)

        in_parallel(run, range(0, len(table), _ROWS_PER_TASK), self.threads)
        return ServerState(_to_unit(table) if self.unit_rows else table, first, second, steps, state.item_counts)


@dataclass(frozen=True)
class FixedRows:
    """Another step that leaves some rows alone: new items are trained into a finished table without moving the old ones.

    Attributes
    ----------
    fixed : (items,) True where a row stays.
    """

    step: ServerStep
    fixed: NDArray[np.bool_]

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        after = self.step.apply(state, change, server_round)
        after.item_table[self.fixed] = state.item_table[self.fixed]
        return after


@compiled
def _row_adam(
    table: Any,
    first: Any,
    second: Any,
    change: Any,
    size: float,
    correct_first: float,
    correct_second: float,
    start: int,
    stop: int,
    new_table: Any,
    new_first: Any,
    new_second: Any,
) -> None:
    k = table.shape[1]
    for t in range(start, stop):
        square = 0.0
        for c in range(k):
            square += change[t, c] * change[t, c]
        moment = np.float32(BETA_2 * second[t] + (1 - BETA_2) * square / k)
        new_second[t] = moment
        factor = size / correct_first / (math.sqrt(moment / correct_second) + EPSILON)
        for c in range(k):
            direction = np.float32(BETA_1 * first[t, c] + (1 - BETA_1) * change[t, c])
            new_first[t, c] = direction
            new_table[t, c] = table[t, c] + np.float32(factor * direction)


def scheduled(learning_rate: float, schedule: str, server_round: int, num_rounds: int) -> float:
    """Server learning rate s_t; cosine: s (0.1 + 0.9 (1 + cos(pi (t - 1) / (R - 1))) / 2)."""
    if schedule == "constant" or num_rounds == 1:
        return learning_rate
    phase = math.pi * (server_round - 1) / (num_rounds - 1)
    return learning_rate * (0.1 + 0.9 * (1 + math.cos(phase)) / 2)


def _to_unit(table: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.sqrt(np.einsum("ij,ij->i", table, table))
    unit: NDArray[np.float32] = table / np.maximum(norms, np.float32(1e-12))[:, None]
    return unit


def initial_table(num_items: int, embedding_dim: int, config: RunConfig) -> NDArray[np.float32]:
    """E of round 0: N(0, init-scale^2), at unit length where rows are kept so."""
    generator = derive_generator(config.seed, "item-table")
    table = generator.normal(0.0, config.init_scale, (num_items, embedding_dim)).astype(np.float32)
    return _to_unit(table) if config.unit_rows else table


@dataclass(frozen=True)
class ThenLayout:
    """Another step, and then what the model's layout has the server do to the new table."""

    step: ServerStep
    layout: Layout

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        after = self.step.apply(state, change, server_round)
        self.layout.after_step(after.item_table)
        return after


def build_step(config: RunConfig, threads: int = 1) -> ServerStep:
    """The server step that the configuration asks for."""
    step = _plain_step(config, threads)
    layout = build_layout(config)
    return step if isinstance(layout, ItemsOnly) else ThenLayout(step, layout)


def _plain_step(config: RunConfig, threads: int) -> ServerStep:
    if config.server_step == "average":
        return AverageStep(config.blend_weight, config.unit_rows)
    if config.server_step == "momentum":
        return MomentumStep(
            config.server_learning_rate,
            config.server_momentum,
            config.blend_weight,
            config.unit_rows,
            config.server_schedule,
            config.num_rounds,
        )
    return RowAdamStep(
        config.server_learning_rate,
        config.blend_weight,
        config.unit_rows,
        config.server_schedule,
        config.num_rounds,
        threads,
    )
