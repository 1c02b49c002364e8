"""The trusted tier of one round: every upload to a node drawn at random, a check per node, one report per node.

The server gets `NodeReport`s and never a single client's upload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.parallel import in_parallel, one_thread_products
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.aggregators import Aggregator, Mean
from fastpfrec_flwr.trusted_node.detection import Check, Distances, upload_distances
from fastpfrec_flwr.trusted_node.roster import AllThere, Roster
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass(frozen=True)
class NodeReport:
    """What a trusted node hands the server.

    Attributes
    ----------
    node : its number. clients : uploads it received. isolated_clients : of them, left out of the mean.
    node_isolated : whether the whole node is out. mean : of the others, None if nobody is left.
    """

    node: int
    clients: int
    isolated_clients: int
    node_isolated: bool
    mean: NodeMean | None


class Tier(Protocol):
    """What stands between clients and server."""

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """Assign, check and average all uploads of a round.

        Parameters
        ----------
        parts : uploads as they arrived (their order decides nothing). num_items : rows of the table.
        """


@dataclass(frozen=True)
class TrustedNodes:
    """The paper's tier: T nodes, each checks its own clients and averages the rest.

    Attributes
    ----------
    num_nodes : T. check : the rule of each node. noise_scale : lambda that honest uploads carry. seed : of the simulation.
    columns : columns of an upload that are a change of the table (k); None is all. aggregator : what each node makes of the rest.
    roster : who of the nodes is there, and which of them an upload goes to.
    """

    num_nodes: int
    check: Check
    noise_scale: float
    seed: int
    threads: int = 1
    columns: int | None = None
    aggregator: Aggregator = Mean()  # noqa: RUF009 - frozen and without state
    roster: Roster = AllThere()  # noqa: RUF009 - frozen and without state

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`. Nodes to which no upload was drawn hand in nothing, and neither do those that are not there."""
        key = stream_key(self.seed, "cover-norm", server_round)
        distances = [
            upload_distances(
                part.values, part.pointer, self.noise_scale, part.cover_scale, num_items,
                user_stream_keys(key, part.nonces.view(np.int64)), self.threads, self.columns, part.squares,
            )
            for part in parts
        ]  # fmt: skip
        nodes = self.roster.assign([part.nonces for part in parts], self.num_nodes, server_round)
        reports: list[NodeReport | None] = [None] * self.num_nodes
        cover_key = stream_key(self.seed, "cover-rows", server_round)

        def run(node: int) -> None:
            members = [np.flatnonzero(of_part == node) for of_part in nodes]
            if any(len(chosen) for chosen in members):
                reports[node] = self._report(node, parts, members, distances, num_items, cover_key)

        with one_thread_products():  # some aggregators call a BLAS
            in_parallel(run, range(self.num_nodes), self.threads)
        return [report for report in reports if report is not None]

    def _report(
        self,
        node: int,
        parts: list[Uploads],
        members: list[NDArray[np.int64]],
        distances: list[Distances],
        num_items: int,
        cover_key: int,
    ) -> NodeReport:
        own = [distance.of(chosen) for distance, chosen in zip(distances, members, strict=True)]
        together = Distances(
            np.concatenate([part.squared for part in own]),
            np.concatenate([part.noise_mean for part in own]),
            np.concatenate([part.noise_sd for part in own]),
        )
        verdict = self.check.examine(together)
        bounds = np.cumsum([0, *(len(chosen) for chosen in members)])
        kept = [chosen[~verdict.outliers[bounds[i] : bounds[i + 1]]] for i, chosen in enumerate(members)]
        left = sum(len(chosen) for chosen in kept)
        return NodeReport(
            node,
            int(bounds[-1]),
            int(bounds[-1]) - left,
            verdict.node_isolated,
            self.aggregator.aggregate(parts, kept, num_items, cover_key) if left else None,
        )


@dataclass(frozen=True)
class DirectTier:
    """No trusted nodes (ablation): one aggregate over all clients, nobody checked."""

    seed: int = 0
    aggregator: Aggregator = Mean()  # noqa: RUF009 - frozen and without state

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`."""
        members = [np.arange(part.num_clients) for part in parts]
        clients = sum(len(chosen) for chosen in members)
        if not clients:
            return []
        with one_thread_products():
            mean = self.aggregator.aggregate(
                parts, members, num_items, stream_key(self.seed, "cover-rows", server_round)
            )
        return [NodeReport(0, clients, 0, False, mean)]
