"""Other strategies than ours on our clients: Flower's own, or anybody's subclass of `flwr.serverapp.strategy.Strategy`.

The clients, their privacy, the decoding that refuses bad uploads, evaluation, checkpoints and the run folder stay what they are.
Only what becomes of the uploads is another's: each client's upload is unfolded to the whole table that a strategy expects (the
current table plus the client's change, cover noise drawn), one reply per client, and the table that it returns is the next one.
There are no trusted nodes then.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.randomness import stream_key
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.receiving import Received
from fastpfrec_flwr.server.rounds import RoundOutcome, why_unmoved
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.uploads import Uploads

TABLE = "item-table"
# A strategy that asks for its nodes more often than this in one round is waiting for more clients than there are.
_MOST_LOOKS = 6


class ForeignStrategy(UploadStrategy):
    """Our rounds with another strategy's aggregation.

    Parameters
    ----------
    make : makes a fresh strategy; called once for each phase. name : what to call it in messages.
    """

    def __init__(
        self,
        config: RunConfig,
        make: Callable[[], Strategy],
        name: str,
        folder: RunFolder | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(config, folder, threads)
        self._make = make
        self._name = name
        self._strategy = make()
        self._calls: list[Message] = []

    @property
    def route(self) -> str:
        """Where uploads go."""
        return f"{self._name} on the server, past the trusted nodes"

    def notes(self) -> list[str]:
        """What the log should say of it."""
        return [
            f"strategy {self._name}: no trusted nodes and no checks; tier, check, node-aggregator, server-aggregator, server-step "
            "and what belongs to them are not used; all clients count alike (num-examples = 1)"
        ]

    def fix_rows(self, fixed: NDArray[np.bool_]) -> None:
        """Refused, as the configuration already is: another strategy moves all rows.

        Raises
        ------
        RunError always.
        """
        raise RunError(f"strategy {self._name} moves all rows: train-items must be 'all'")

    def begin(self, phase: str, state: ServerState) -> None:
        """Begin a phase with a fresh strategy.

        Raises
        ------
        RunError if one table for each client of a round takes more memory than `strategy-memory` allows.
        """
        super().begin(phase, state)
        table = state.item_table
        clients = min(self._config.clients_per_round, max(self._nodes.num_users, 1))
        budget = self._config.strategy_memory * 1e9
        if clients * table.nbytes > budget:
            raise RunError(
                f"strategy {self._name} needs the whole table of every client: {clients} x {table.nbytes / 1e6:.1f} MB = "
                f"{clients * table.nbytes / 1e9:.2f} GB, and some take three times that; strategy-memory allows "
                f"{self._config.strategy_memory:g} GB. Set clients-per-round to at most {int(budget // table.nbytes)}, or raise "
                "strategy-memory"
            )
        self._strategy = self._make()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy say how many of this round's clients it wants, then ask our SuperNodes for that many."""
        wanted = min(self._config.clients_per_round, self._nodes.num_users)
        with _quiet():
            self._calls = list(
                self._strategy.configure_train(
                    server_round, ArrayRecord(dict(arrays)), ConfigRecord(), _ClientsGrid(wanted, self._name)
                )
            )
        return super().configure_train(server_round, arrays, config, grid) if self._calls else []

    @property
    def _clients_wanted(self) -> int:
        return len(self._calls)

    def _aggregate(self, server_round: int, received: Received) -> RoundOutcome:
        began = time.perf_counter()
        usable = received.num_clients
        arrays = None
        if usable >= self._config.min_clients:
            with _quiet(), _cheap_collections():
                arrays, _ = self._strategy.aggregate_train(server_round, self._replies(received.parts, server_round))
        if arrays is not None:
            state = self.state
            self._state = replace(state, item_table=self._checked(arrays, server_round), steps=state.steps + 1)
        return RoundOutcome(
            trained=usable,
            refused=received.refused,
            isolated=0,
            isolated_nodes=0,
            skipped=received.skipped,
            loss=received.loss,
            uploaded_rows=received.num_rows,
            moved=arrays is not None,
            tier_seconds=(received.seconds, 0.0, time.perf_counter() - began),
            why_unmoved=why_unmoved(usable, self._config.min_clients),
            skips=received.skips,
        )

    def _replies(self, parts: list[Uploads], server_round: int) -> list[Message]:
        """One reply for each client, in the order of nonces: neither arrival nor SuperNodes decide anything."""
        if not parts:
            return []
        table = self.state.item_table
        everybody = [np.arange(part.num_clients) for part in parts]
        key = stream_key(self._config.seed, "cover-rows", server_round)
        points = UploadPoints.gather(parts, everybody, len(table), key)
        return [
            Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord({TABLE: messages.encode_array(table + points.table(client))}),
                        "metrics": MetricRecord({"num-examples": 1}),
                    }
                ),
                reply_to=self._calls[client % len(self._calls)],
            )
            for client in range(points.count)
        ]

    def _checked(self, arrays: ArrayRecord, server_round: int) -> NDArray[np.float32]:
        """The table that the strategy returned.

        Raises
        ------
        RunError if it is none of ours.
        """
        shape = self.state.item_table.shape
        where = f"strategy {self._name}, round {server_round}"
        if set(arrays) != {TABLE}:
            raise RunError(f"{where}: must return the array {TABLE!r} and no other, got {sorted(arrays)}")
        table = np.asarray(arrays[TABLE].numpy())
        if table.shape != shape:
            raise RunError(f"{where}: must return a table of shape {shape}, got {table.shape}")
        if not np.isfinite(table).all():
            raise RunError(f"{where}: returned a table that is not finite; a smaller step size may be the remedy")
        return np.ascontiguousarray(table, np.float32)

    def summary(self) -> None:
        """Print what this strategy is made of."""
        print(f"{self._name} on {len(self._nodes.ids)} SuperNodes")
        self._strategy.summary()


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's strategies log several lines a round; warnings still come through."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """Flower's Bulyan lets the garbage collector run once per client, half a second each over all that this process has loaded:
    what is there already is left out of it meanwhile."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _ClientsGrid(Grid):
    """What a strategy sees of the clients of a round: their number. Nothing is sent through it."""

    def __init__(self, clients: int, name: str) -> None:
        self._ids = list(range(1, clients + 1))
        self._name = name
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """One number for each client.

        Raises
        ------
        RunError if asked again and again: Flower's strategies wait for as many nodes as they think they need.
        """
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise RunError(
                f"strategy {self._name} waits for more clients than a round has ({len(self._ids)}): lower its min_available_nodes "
                "and min_train_nodes by strategy-options, or raise clients-per-round"
            )
        return list(self._ids)

    def set_run(self, run: Run) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Run:
        """No run of its own."""
        return Run.create_empty(run_id=0)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message (deprecated in Flower, abstract in `Grid`)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refused."""
        raise RunError(f"strategy {self._name} sends messages of its own in configure_train: that reaches no client")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refused."""
        raise RunError(
            f"strategy {self._name} waits for messages of its own in configure_train: that reaches no client"
        )

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Refused."""
        raise RunError(f"strategy {self._name} sends messages of its own in configure_train: that reaches no client")
