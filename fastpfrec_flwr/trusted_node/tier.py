"""The trusted tier of one round: every upload to a node drawn at random, a check per node, one report per node.

The server gets `NodeReport`s and never a single client's upload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.parallel import in_parallel, one_thread_products, results_in_parallel
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.aggregation import NodeMean, node_mean
from fastpfrec_flwr.trusted_node.aggregators import Aggregator, Mean
from fastpfrec_flwr.trusted_node.alignment import Candidates, CrossCheck, NoCrossCheck
from fastpfrec_flwr.trusted_node.detection import Check
from fastpfrec_flwr.trusted_node.distances import Distances, first_normals, upload_distances
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
    """A node after its check: of each part the `members` it received, and who of them is out ((clients,) over all parts).

    `brings` is what it has to compare its clients with those of the others.
    """

    node: int
    members: list[NDArray[np.int64]]
    distances: Distances
    out: NDArray[np.bool_]
    isolated: bool
    mean: NodeMean | None = None
    brings: Candidates | None = None

    @cached_property
    def kept(self) -> list[NDArray[np.int64]]:
        """Of each part those members who are not out."""
        bounds = np.cumsum([0, *(len(chosen) for chosen in self.members)])
        return [chosen[~self.out[bounds[i] : bounds[i + 1]]] for i, chosen in enumerate(self.members)]

    def report(self) -> NodeReport:
        """What the server learns."""
        return NodeReport(self.node, len(self.out), int(self.out.sum()), self.isolated, self.mean)


@dataclass(frozen=True)
class TrustedNodes:
    """The paper's tier: T nodes, each checks its own clients and averages the rest.

    Attributes
    ----------
    num_nodes : T. check : the rule of each node. noise_scale : of honest uploads' noise. seed : of the simulation.
    columns : columns of an upload that are a change of the table (k); None is all. aggregator : what each node makes of the rest.
    roster : who of the nodes is there, and which of them an upload goes to.
    cross_check : compares the clients that `check` left with each other. plain_means : whether the aggregator is the plain mean,
        which it needs; otherwise that is taken on the side.
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
    row_clip: float = 0.0
    plain_means: bool = True

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`. Nodes to which no upload was drawn hand in nothing, and neither do those that are not there."""
        key = stream_key(self.seed, "cover-norm", server_round)
        distances = [
            upload_distances(
                part.values, part.pointer, self.noise_scale, part.cover_scale, num_items,
                user_stream_keys(key, part.nonces.view(np.int64)), self.threads, self.columns, part.norms,
                part.noise_kind,
                self.row_clip,
            )
            for part in parts
        ]  # fmt: skip
        nodes = self.roster.assign([part.nonces for part in parts], self.num_nodes, server_round)
        received = [[np.flatnonzero(of_part == node) for of_part in nodes] for node in range(self.num_nodes)]
        there = [node for node, members in enumerate(received) if any(len(chosen) for chosen in members)]
        mean_key = stream_key(self.seed, "cover-rows", server_round)
        cross_key = stream_key(self.seed, "cover-products", server_round)

        # A check is small and holds the interpreter's lock: beside another node's mean, which does not, it costs no time.
        def judge(number: int) -> _Judged:
            node = self._judge(number, received[number], distances)
            return self._averaged(node, parts, num_items, mean_key, cross_key)

        def average_again(place: int) -> None:
            judged[place] = self._averaged(judged[place], parts, num_items, mean_key, None)

        with one_thread_products():  # some aggregators call a BLAS
            judged = results_in_parallel(judge, there, self.threads)
            in_parallel(average_again, self._compare(judged, parts, num_items), self.threads)
        return [each.report() for each in judged]

    def _judge(self, node: int, members: list[NDArray[np.int64]], distances: list[Distances]) -> _Judged:
        together = Distances.joined([part.of(chosen) for part, chosen in zip(distances, members, strict=True)])
        verdict = self.check.examine(together)
        return _Judged(node, members, together, verdict.outliers, verdict.node_isolated)

    def _averaged(
        self, node: _Judged, parts: list[Uploads], num_items: int, mean_key: int, cross_key: int | None
    ) -> _Judged:
        """The node with the mean of those that it keeps and, with a `cross_key`, what it brings to the comparison."""
        if node.out.all():
            return node
        mean = self.aggregator.aggregate(parts, node.kept, num_items, mean_key)
        if cross_key is None or isinstance(self.cross_check, NoCrossCheck):
            return replace(node, mean=mean)
        return replace(node, mean=mean, brings=self._candidates(node, mean, parts, num_items, cross_key))

    def _compare(self, judged: list[_Judged], parts: list[Uploads], num_items: int) -> list[int]:
        """Compare all clients that are left with each other; places in `judged` of the nodes that keep fewer now, without means."""
        brought = [(place, node.brings) for place, node in enumerate(judged) if node.brings is not None]
        if not brought:
            return []
        columns = parts[0].values.shape[1] if self.columns is None else self.columns
        found = self.cross_check.examine(parts, [each for _, each in brought], num_items, self.noise_scale, columns)
        changed = []
        for (place, _), pulling in zip(brought, found, strict=True):
            if pulling.any():
                out = judged[place].out.copy()
                out[~out] = pulling
                # Judged by the scale of all nodes, so the others of the node are as good as before.
                judged[place] = replace(judged[place], out=out, isolated=bool(out.all()), mean=None)
                changed.append(place)
        return changed

    def _candidates(
        self, node: _Judged, mean: NodeMean, parts: list[Uploads], num_items: int, cross_key: int
    ) -> Candidates:
        kept = node.kept
        nonces = np.concatenate([part.nonces[chosen] for part, chosen in zip(parts, kept, strict=True)])
        normals = np.empty(len(nonces))
        first_normals(user_stream_keys(cross_key, nonces.view(np.int64)), normals)
        plain = mean if self.plain_means else node_mean(parts, kept, num_items)
        return Candidates(kept, plain, node.distances.of(np.flatnonzero(~node.out)), normals)


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
