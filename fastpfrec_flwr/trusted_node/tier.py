"""The trusted tier of one round: every upload to a node drawn at random, a check per node, one report per node.

The server gets `NodeReport`s and never a single client's upload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.parallel import in_parallel, one_thread_products
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.aggregation import NodeMean, node_mean
from fastpfrec_flwr.trusted_node.aggregators import Aggregator, Mean
from fastpfrec_flwr.trusted_node.alignment import Candidates, CrossCheck, NoCrossCheck
from fastpfrec_flwr.trusted_node.detection import Check, Distances, first_normals, upload_distances
from fastpfrec_flwr.trusted_node.roster import AllThere, Roster
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass(frozen=True)
class NodeReport:
    """What a trusted node hands the server.

    Attributes
    ----------
    node : its number. clients : uploads it received. isolated_clients : of them, left out of the mean.
    node_isolated : whether the whole node is out. mean : of the others, None if nobody is left. No statistic of single
    uploads is among them: what the server learns of a client it learns from a mean.
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
class _Judged:
    """What a node's check left: of each part the clients that are `kept`, and their distances."""

    node: int
    clients: int
    kept: list[NDArray[np.int64]]
    node_isolated: bool
    distances: Distances

    @property
    def left(self) -> int:
        return sum(len(chosen) for chosen in self.kept)


@dataclass(frozen=True)
class TrustedNodes:
    """The paper's tier: T nodes, each checks its own clients and averages the rest.

    Attributes
    ----------
    num_nodes : T. check : the rule of each node. noise_scale : lambda that honest uploads carry. seed : of the simulation.
    columns : columns of an upload that are a change of the table (k); None is all. aggregator : what each node makes of the rest.
    roster : who of the nodes is there, and which of them an upload goes to.
    cross_check : compares the clients that `check` left with each other. plain_means : whether the aggregator is the plain mean,
        which it needs; otherwise that is taken on the side.
    outlier_ratio : share of clients that both checks may leave out before the whole node is isolated.
    row_clip : L2 bound of a row of an honest upload that `check` is to know of; 0 is none.
    """

    num_nodes: int
    check: Check
    noise_scale: float
    seed: int
    threads: int = 1
    columns: int | None = None
    aggregator: Aggregator = Mean()  # noqa: RUF009 - frozen and without state
    roster: Roster = AllThere()  # noqa: RUF009 - frozen and without state
    cross_check: CrossCheck = NoCrossCheck()  # noqa: RUF009 - frozen and without state
    outlier_ratio: float = 1.0
    row_clip: float = 0.0
    plain_means: bool = True

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`. Nodes to which no upload was drawn hand in nothing, and neither do those that are not there."""
        key = stream_key(self.seed, "cover-norm", server_round)
        distances = [
            upload_distances(
                part.values, part.pointer, self.noise_scale, part.cover_scale, num_items,
                user_stream_keys(key, part.nonces.view(np.int64)), self.threads, self.columns, part.squares,
                self.row_clip,
            )
            for part in parts
        ]  # fmt: skip
        nodes = self.roster.assign([part.nonces for part in parts], self.num_nodes, server_round)
        # The checks are small and hold the interpreter's lock; the threads are for the means.
        received = [[np.flatnonzero(of_part == node) for of_part in nodes] for node in range(self.num_nodes)]
        judged = [
            self._judge(node, members, distances)
            for node, members in enumerate(received)
            if any(len(chosen) for chosen in members)
        ]
        cover_key = stream_key(self.seed, "cover-rows", server_round)
        cross_key = stream_key(self.seed, "cover-products", server_round)
        means: list[NodeMean | None] = [None] * len(judged)

        def run(place: int) -> None:
            if judged[place].left:
                means[place] = self.aggregator.aggregate(parts, judged[place].kept, num_items, cover_key)

        with one_thread_products():  # some aggregators call a BLAS
            in_parallel(run, range(len(judged)), self.threads)
            changed = self._compare(judged, parts, means, num_items, cross_key)
            for place in changed:
                means[place] = None
            in_parallel(run, changed, self.threads)
        return [
            NodeReport(each.node, each.clients, each.clients - each.left, each.node_isolated, mean)
            for each, mean in zip(judged, means, strict=True)
        ]

    def _judge(self, node: int, members: list[NDArray[np.int64]], distances: list[Distances]) -> _Judged:
        own = [distance.of(chosen) for distance, chosen in zip(distances, members, strict=True)]
        together = Distances.joined(own)
        verdict = self.check.examine(together)
        return _Judged(
            node,
            len(together.squared),
            _left(members, verdict.outliers),
            verdict.node_isolated,
            together.of(np.flatnonzero(~verdict.outliers)),
        )

    def _compare(
        self,
        judged: list[_Judged],
        parts: list[Uploads],
        means: list[NodeMean | None],
        num_items: int,
        cross_key: int,
    ) -> list[int]:
        """Compare all clients that are left with each other; places in `judged` of the nodes that keep fewer now."""
        there = [place for place, mean in enumerate(means) if mean is not None]
        if isinstance(self.cross_check, NoCrossCheck) or not there:
            return []
        nodes = []
        for place in there:
            each, mean = judged[place], means[place]
            assert mean is not None
            nonces = np.concatenate([part.nonces[chosen] for part, chosen in zip(parts, each.kept, strict=True)])
            normals = np.empty(len(nonces))
            first_normals(user_stream_keys(cross_key, nonces.view(np.int64)), normals)
            if not self.plain_means:
                mean = node_mean(parts, each.kept, num_items)
            nodes.append(Candidates(each.kept, mean, each.distances, normals))
        columns = parts[0].values.shape[1] if self.columns is None else self.columns
        changed = []
        for place, out in zip(
            there, self.cross_check.examine(parts, nodes, num_items, self.noise_scale, columns), strict=True
        ):
            if out.any():
                each = judged[place]
                gone = each.clients - each.left + int(out.sum())
                isolated = gone > self.outlier_ratio * each.clients
                judged[place] = replace(each, kept=_left(each.kept, out | isolated), node_isolated=isolated)
                changed.append(place)
        return changed


def _left(members: list[NDArray[np.int64]], out: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Of each part those members who are not out; `out` goes over all parts."""
    bounds = np.cumsum([0, *(len(chosen) for chosen in members)])
    return [chosen[~out[bounds[i] : bounds[i + 1]]] for i, chosen in enumerate(members)]


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
