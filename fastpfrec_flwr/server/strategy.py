"""FastPFRec as a Flower strategy: clients -> trusted nodes -> server -> blended table (paper, Algorithm 1).

The strategy orchestrates; `trusted_node` and the pure modules of this room compute. One round:
configure (one message per SuperNode) -> uploads, decoded as they arrive -> trusted tier -> check across nodes -> average ->
server step and blend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT
from fastpfrec_flwr.server.aggregators import NodeAverage, ServerAggregator
from fastpfrec_flwr.server.assignment import assignment_key
from fastpfrec_flwr.server.average import healthy_nodes
from fastpfrec_flwr.server.beginning import begin_run
from fastpfrec_flwr.server.device_strategy import DeviceStrategy
from fastpfrec_flwr.server.logbook import Logbook
from fastpfrec_flwr.server.receiving import Expected, Received, Receiver
from fastpfrec_flwr.server.rounds import RoundOutcome, why_unmoved
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import FixedRows, ServerState, ServerStep
from fastpfrec_flwr.server.training import Training
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.roster import AllThere, Roster
from fastpfrec_flwr.trusted_node.tier import NodeReport, Tier


class FastPFRec(DeviceStrategy):
    """The hierarchical strategy.

    Parameters
    ----------
    config : the run's. tier : what stands between clients and server. step : what becomes of the average.
    folder : where the run leaves its files; None leaves none. threads : of the server's own arithmetic.
    aggregator : what the server makes of the nodes' means. roster : the tier's, if it has one: who of the nodes is there.
    """

    def __init__(
        self,
        config: RunConfig,
        tier: Tier,
        step: ServerStep,
        folder: RunFolder | None = None,
        threads: int = 1,
        aggregator: ServerAggregator = NodeAverage(),  # noqa: B008 - frozen and without state
        roster: Roster = AllThere(),  # noqa: B008 - frozen and without state
    ) -> None:
        super().__init__(config)
        self._tier = tier
        self._step = step
        self._aggregator = aggregator
        self._roster = roster
        self._threads = threads
        self.folder = folder
        self.stop = Event()  # set it to stop after the round that runs
        self._receiver = Receiver(config, threads)
        self.outcome: RoundOutcome | None = None

    @property
    def route(self) -> str:
        """Where uploads go."""
        if self._config.tier == "direct":
            return "the server, without trusted nodes"
        return f"{self._config.num_trusted_nodes} trusted nodes"

    def fix_rows(self, fixed: NDArray[np.bool_]) -> None:
        """Let rows of the table ((items,) True) stay as they are, whatever the rounds bring."""
        self._step = FixedRows(self._step, fixed)

    def begin(self, phase: str, state: ServerState) -> None:
        """Begin a phase (`train`, `refit`) from a state."""
        super().begin(phase, state)
        self._roster.restore(dict(state.quarantine))
        self._receiver.forget()

    # ---- one round ---------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per SuperNode; the table in `arrays` is encoded once and shared by them.

        `config` may hold `report-loss`, `snapshot` (bool) and `restore` (int), see `messages.Order`.
        """
        flags = {
            "report_loss": bool(config.get("report-loss", False)),
            "snapshot": bool(config.get("snapshot", False)),
            "restore": int(config.get("restore", 0)),  # type: ignore[arg-type]
        }
        return [
            Message(messages.encode_train(arrays, self.order(server_round, clients, **flags)), node, "train")  # type: ignore[arg-type]
            for node, clients in zip(self._nodes.ids, self._nodes.shares(self._clients_wanted), strict=True)
        ]

    @property
    def _clients_wanted(self) -> int:
        """Clients that this round asks for."""
        return self._config.clients_per_round

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, average and step. Replies are decoded as the iterable yields them; a bad one costs its clients only.

        Returns
        -------
        The new table, or None where nothing healthy arrived (the model then stays); counts of the round. `self.outcome` has
        the details.
        """
        deployed = self._nodes.deployed
        expected = Expected(
            server_round,
            self.order(server_round).table_version,
            len(self.state.item_table),
            self._nodes.most_uploads(self._clients_wanted),
            deployed,
            assignment_key(self._config, deployed, self._phase, server_round),
        )
        self.outcome = self._aggregate(server_round, self._receiver.receive(replies, expected))
        counts = MetricRecord(
            {
                "clients": self.outcome.trained,
                "refused": len(self.outcome.refused),
                "isolated": self.outcome.isolated,
                "isolated-nodes": self.outcome.isolated_nodes,
            }
        )
        return (self.encode_model() if self.outcome.moved else None), counts

    def _aggregate(self, server_round: int, received: Received) -> RoundOutcome:
        """Let the tier collect what was received, check across its nodes, and move the model if enough of it is usable."""
        config, num_rows = self._config, len(self.state.item_table)
        began = time.perf_counter()
        nodes = self._tier.collect(received.parts, num_rows, server_round)
        collected = time.perf_counter()
        healthy = healthy_nodes(
            nodes, num_rows, config.effective_noise_scale, config.node_z_threshold, config.seed, server_round
        )
        kept = [node for node, well in zip(nodes, healthy, strict=True) if well]
        usable = sum(node.clients - node.isolated_clients for node in kept)
        means = [node.mean for node in kept if node.mean is not None] if usable >= config.min_clients else []
        events = self._move(means, server_round) if means else []
        self._quarantine(nodes, healthy, server_round)
        attendance = self._roster.attendance
        return RoundOutcome(
            trained=received.num_clients,
            refused=received.refused,
            isolated=sum(
                node.isolated_clients if well else node.clients for node, well in zip(nodes, healthy, strict=True)
            ),
            isolated_nodes=len(nodes) - len(kept),
            skipped=received.skipped,
            loss=received.loss,
            uploaded_rows=received.num_rows,
            moved=bool(means),
            tier_seconds=(received.seconds, collected - began, time.perf_counter() - collected),
            why_unmoved=why_unmoved(usable, config.min_clients, attendance.nobody),
            skips=received.skips,
            attendance=attendance,
            events=[*self._roster.sentences(), *events],
            shortened=len(_pulled(self.state)) if means else 0,
        )

    def _move(self, means: list[NodeMean], server_round: int) -> list[str]:
        """Average the nodes' means, step and blend; returns what the log should say of rows."""
        config, pulled = self._config, _pulled(self.state)
        change = self._aggregator.combine(
            means, len(self.state.item_table), config.upload_width, config.seed, server_round, self._threads
        )
        if config.upload == "sampled":
            change /= np.float32(config.sampled_share)  # each row has the changes of that share of its clients
        if config.counted:
            self._count(change[:, -1], sum(mean.clients for mean in means))
            change = np.ascontiguousarray(change[:, :-1])
        self._state = self._step.apply(self.state, change, server_round)
        new = sorted(_pulled(self.state) - pulled)
        return [f"item rows pulled one way, kept short from now on: {', '.join(map(str, new))}"] if new else []

    def _quarantine(self, nodes: list[NodeReport], healthy: list[bool], server_round: int) -> None:
        """Tell the roster which means stood out, and keep what it makes of that.

        A node that left itself out because of its clients is no suspect: in the next round it has others.
        """
        suspects = [node.node for node, well in zip(nodes, healthy, strict=True) if node.mean is not None and not well]
        self._roster.isolated(suspects, server_round)
        quarantine = tuple(sorted(self._roster.quarantine.items()))
        if quarantine != self.state.quarantine:
            self._state = replace(self.state, quarantine=quarantine)

    def _count(self, mean: NDArray[np.floating[Any]], clients: int) -> None:
        """Add what this round's clients say of how many users each item has."""
        assert self.state.item_counts is not None
        self._state = replace(self.state, item_counts=self.state.item_counts + mean * clients / COUNT_UNIT)

    def run_round(self, grid: Grid, server_round: int, **flags: bool | int) -> RoundOutcome:
        """Run one whole round, see `DeviceStrategy`."""
        config = ConfigRecord({key.replace("_", "-"): value for key, value in flags.items()})
        outgoing = self.configure_train(server_round, self.encode_model(), config, grid)
        self.aggregate_train(server_round, self._exchange(grid, outgoing, self._config.round_timeout))
        assert self.outcome is not None
        return self.outcome

    # ---- the whole run -----------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Print what this strategy is made of."""
        print(f"FastPFRec: {self._tier}, {self._step}, {len(self._nodes.ids)} SuperNodes")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the whole training: `begin_run`, and the rounds of `Training`.

        Parameters
        ----------
        initial_arrays : `item-table` to begin with; None draws it from the seed.
        evaluate_fn : called after each evaluated round with round and arrays, for metrics of one's own.

        The number of rounds, time-outs and what is evaluated come from the run configuration; anything else here is refused.

        Raises
        ------
        ValueError if `num_rounds`, `timeout`, `train_config` or `evaluate_config` is given.
        """
        if num_rounds or timeout or train_config or evaluate_config:
            raise ValueError(
                "num_rounds, timeout, train_config and evaluate_config come from the run configuration: "
                "set num-rounds, round-timeout and evaluate-every there"
            )
        log = Logbook(self._config, self.folder)
        beginning = begin_run(self, grid, self._config, log, initial_arrays)
        return Training(self, grid, beginning, log, self.stop, evaluate_fn).run()


def _pulled(state: ServerState) -> frozenset[int]:
    """Rows that the last step found pulled one way."""
    return frozenset() if state.pull is None else frozenset(state.pull.found)
