"""FastPFRec as a Flower strategy: clients -> trusted nodes -> server -> blended table (paper, Algorithm 1).

The strategy orchestrates; `trusted_node` and the pure modules of this room compute. One round:
configure (one message per SuperNode) -> uploads, decoded as they arrive -> trusted tier -> check across nodes -> average ->
server step and blend.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT
from fastpfrec_flwr.privacy.sampled_rows import rows_in_upload
from fastpfrec_flwr.server.aggregators import NodeAverage, ServerAggregator
from fastpfrec_flwr.server.average import healthy_nodes
from fastpfrec_flwr.server.receiving import Received
from fastpfrec_flwr.server.rounds import RoundOutcome, why_unmoved
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import FixedRows, ServerState, ServerStep
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.roster import AllThere, Roster
from fastpfrec_flwr.trusted_node.tier import NodeReport, Tier


class FastPFRec(UploadStrategy):
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
        super().__init__(config, folder, threads)
        self._tier = tier
        self._step = step
        self._aggregator = aggregator
        self._roster = roster

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

    # ---- one round ---------------------------------------------------------------------------------------------------

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
            # Each row has the changes of that share of its clients which the drawn rows are of all.
            rows = len(self.state.item_table)
            change /= np.float32(rows_in_upload(config.upload, config.sampled_share, rows) / rows)
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

    def summary(self) -> None:
        """Print what this strategy is made of."""
        print(f"FastPFRec: {self._tier}, {self._step}, {len(self._nodes.ids)} SuperNodes")


def _pulled(state: ServerState) -> frozenset[int]:
    """Rows that the last step found pulled one way."""
    return frozenset() if state.pull is None else frozenset(state.pull.found)
