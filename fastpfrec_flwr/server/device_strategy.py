"""A Flower strategy on our devices, short of its rounds of training: whom it asks, what its messages say, and the evaluation.

The training loop knows a strategy by this face.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.evaluation.metrics import MetricSums, metrics
from fastpfrec_flwr.files import source_fingerprint
from fastpfrec_flwr.messages import Order, RefusedError
from fastpfrec_flwr.server.nodes import Exchange, SuperNodes, query
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.steps import ServerState


class DeviceStrategy(Strategy):
    """What every strategy of ours shares; how a round trains is a subclass's.

    Attributes
    ----------
    evaluation_refused : reasons, until somebody has read them and clears the list.
    evaluated_users : part -> users with truth in its last evaluation.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._nodes = SuperNodes([], [], [])
        self._exchange = Exchange()
        self._state: ServerState | None = None
        self._state_id = "training"
        self._phase = "train"
        self._catalogue = ("", 0)
        self.evaluation_refused: list[str] = []
        self.evaluated_users: dict[str, int] = {}

    # ---- what differs ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def route(self) -> str:
        """Where uploads go."""

    def notes(self) -> list[str]:
        """What the log should say of it beside that."""
        return []

    @abstractmethod
    def fix_rows(self, fixed: NDArray[np.bool_]) -> None:
        """Let rows of the table ((items,) True) stay as they are, whatever the rounds bring."""

    @abstractmethod
    def run_round(self, grid: Grid, server_round: int, **flags: bool | int) -> RoundOutcome:
        """Run one whole round; `flags` are what `order` takes beside round and clients."""

    # ---- whom it asks, and what its messages say ---------------------------------------------------------------------

    def attach(self, nodes: SuperNodes, state_id: str) -> None:
        """Take the SuperNodes that take part, and the name of the state that their devices keep."""
        self._nodes = nodes
        self._exchange = Exchange(one_by_one=nodes.deployed)
        self._state_id = state_id

    def use_catalogue(self, hash_: str, version: int) -> None:
        """Tell the devices with every message which catalogue it is about; one that has another answers with an error."""
        self._catalogue = (hash_, version)

    def begin(self, phase: str, state: ServerState) -> None:
        """Begin a phase (`train`, `refit`) from a state."""
        self._phase = phase
        if self._config.counted and state.item_counts is None:
            state = replace(state, item_counts=np.zeros(len(state.item_table)))
        self._state = state

    @property
    def state(self) -> ServerState:
        """The server's state after the last round."""
        if self._state is None:
            raise RuntimeError("no phase has begun: call begin() first")
        return self._state

    def order(
        self,
        server_round: int,
        clients: int = 0,
        report_loss: bool = False,
        snapshot: bool = False,
        restore: int = 0,
    ) -> Order:
        """What this round's messages say."""
        return Order(
            source_fingerprint(), self._state_id, self._phase, server_round, clients, report_loss, snapshot, restore,
            *self._catalogue,
        )  # fmt: skip

    def encode_model(self) -> ArrayRecord:
        """The model as this round's messages carry it."""
        return messages.encode_model(self.state.item_table, self.state.item_counts, self._config.download_precision)

    def release(self, grid: Grid) -> None:
        """Tell the devices of a simulation that this phase's state is not needed any more."""
        for _ in self._exchange(grid, [query(node, "release", self.order(0)) for node in self._nodes.ids], 30.0):
            pass

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per SuperNode; `config["parts"]` names what to rank (validation, test)."""
        parts = [str(part) for part in config["parts"]]  # type: ignore[union-attr]
        order = self.order(server_round)
        return [Message(messages.encode_evaluate(arrays, order, parts), node, "evaluate") for node in self._nodes.ids]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Metrics over all users, keyed `<part>/<metric>`; None where nobody answered."""
        found = self._added_up(replies)
        values = {f"{part}/{name}": value for part, sums in found.items() for name, value in metrics(sums).items()}
        return MetricRecord(values) if values else None  # type: ignore[arg-type]

    def evaluate(self, grid: Grid, server_round: int, parts: list[str]) -> dict[str, dict[str, float]]:
        """Rank all users' unseen items on their devices; part -> metric -> value."""
        config = ConfigRecord({"parts": parts})
        outgoing = self.configure_evaluate(server_round, self.encode_model(), config, grid)
        found = self._added_up(self._exchange(grid, outgoing, self._config.round_timeout))
        self.evaluated_users |= {part: sums.users for part, sums in found.items()}
        return {part: metrics(found.get(part, MetricSums.zero())) for part in parts}

    def _added_up(self, replies: Iterable[Message]) -> dict[str, MetricSums]:
        total, refused = add_up_metric_sums(replies, self._nodes)
        self.evaluation_refused += refused
        return total


def add_up_metric_sums(replies: Iterable[Message], nodes: SuperNodes) -> tuple[dict[str, MetricSums], list[str]]:
    """Part -> sums over the users of all SuperNodes that answered, and why others' answers are not in them.

    A reply is refused whole, and so is one with figures of more users than its SuperNode has.
    """
    total: dict[str, MetricSums] = {}
    refused: list[str] = []
    for reply in replies:
        try:
            held = nodes.users_of(reply.metadata.src_node_id)
            decoded = messages.decode_metric_sums(reply)
            if any(sums.users > held for sums in decoded.values()):
                raise RefusedError(f"evaluate reply: figures of more users than the SuperNode has ({held})")
        except RefusedError as error:
            refused.append(str(error))
            continue
        for part, sums in decoded.items():
            total[part] = total.get(part, MetricSums.zero()) + sums
    return total, refused
