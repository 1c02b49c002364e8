"""What became of an attack, measured from outside: the parts of the honest strategy, each wrapped in one that takes notes.

The server and the trusted nodes learn nothing from this: they are given what they would be given without it. Only the notes know
who lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.attackers import active, compromised_nodes, liars_of_round
from fastpfrec_flwr.attacks.nodes import CompromisedTier
from fastpfrec_flwr.attacks.notes import MeasuredFolder, Notes, RoundNotes
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.aggregators import NodeAverage, ServerAggregator
from fastpfrec_flwr.server.build import Around, build_server_step, build_strategy
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import ServerState, ServerStep
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.trusted_node.aggregation import NodeMean, node_mean
from fastpfrec_flwr.trusted_node.aggregators import Aggregator
from fastpfrec_flwr.trusted_node.roster import Roster
from fastpfrec_flwr.trusted_node.tier import NodeReport, Tier
from fastpfrec_flwr.trusted_node.uploads import Uploads


def build_measured_strategy(config: RunConfig, folder: RunFolder | None, threads: int) -> UploadStrategy:
    """The strategy that the configuration asks for, its lying nodes included, with notes taken of every round."""
    if config.strategy != "fastpfrec":  # another strategy has no parts to look into
        return build_strategy(config, folder, threads)
    notes = Notes(config)
    # What is done to pushed rows afterwards is part of what came of the attack.
    plain = build_server_step(config.model_copy(update={"row_steadiness_threshold": 0.0}), threads)
    watch = Watch(config, notes, plain)
    measured = None if folder is None else MeasuredFolder(folder, notes)
    around = Around(watch.node_aggregator, watch.tier, watch.server_aggregator, watch.step, watch.roster)
    strategy = build_strategy(config, measured, threads, around)
    watch.strategy = strategy
    return strategy


class Watch:
    """Makes the note-taking parts and holds what they tell each other within a round.

    Parameters
    ----------
    plain : the server step by which the honest clients alone would have moved the table.
    """

    def __init__(self, config: RunConfig, notes: Notes, plain: ServerStep) -> None:
        self.config = config
        self.notes = notes
        self.plain = plain
        self.strategy: UploadStrategy | None = None
        self.kept: list[NDArray[np.uint64]] = []
        self.reports: list[NodeReport] = []
        self.nodes: list[NDArray[np.int64]] = []
        self.honest_means: list[NodeMean] = []
        self.round: RoundNotes | None = None
        self.honest_change: NDArray[np.floating[Any]] | None = None

    def node_aggregator(self, inner: Aggregator) -> Aggregator:
        """Notes which clients a node's check left."""
        return _Aggregator(inner, self)

    def tier(self, inner: Tier) -> Tier:
        """Lets compromised nodes lie, and notes who sent and what the nodes decided."""
        lying: Tier = inner
        if self.config.node_attack != "none":
            lying = CompromisedTier(inner, self.config, self._table)
        return _Tier(lying, self)

    def server_aggregator(self, inner: ServerAggregator) -> ServerAggregator:
        """Notes which nodes the server left, and what the honest clients alone would have come to."""
        return _ServerAggregator(inner, self)

    def step(self, inner: ServerStep) -> ServerStep:
        """Notes how far the new table lies from the one that the honest clients alone would have made."""
        return _Step(inner, self)

    def roster(self, inner: Roster) -> Roster:
        """Notes which node each upload went to."""
        return cast(Roster, _Roster(inner, self))

    def _table(self) -> NDArray[np.float32]:
        assert self.strategy is not None
        return self.strategy.state.item_table


@dataclass(frozen=True)
class _Aggregator:
    inner: Aggregator
    watch: Watch

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`. Nodes work side by side; appending to a list is whole."""
        self.watch.kept.append(
            np.concatenate([part.nonces[chosen] for part, chosen in zip(parts, members, strict=True)])
        )
        return self.inner.aggregate(parts, members, num_items, cover_key)


class _Roster:
    """A roster that tells the notes where it sent uploads; all else is the inner one's."""

    def __init__(self, inner: Roster, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def assign(self, nonces: list[NDArray[np.uint64]], num_nodes: int, server_round: int) -> list[NDArray[np.int64]]:
        """See `Roster`."""
        self._watch.nodes = self._inner.assign(nonces, num_nodes, server_round)
        return self._watch.nodes


@dataclass(frozen=True)
class _Tier:
    inner: Tier
    watch: Watch

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`."""
        watch, config = self.watch, self.watch.config
        watch.kept.clear()
        reports = self.inner.collect(parts, num_items, server_round)
        watch.reports = reports
        if not parts:
            return reports
        nonces = np.concatenate([part.nonces for part in parts])
        lying = np.isin(nonces, liars_of_round(config, watch.notes.liars(server_round), server_round))
        nodes = np.concatenate(watch.nodes) if config.tier != "direct" else np.zeros(len(nonces), np.int64)
        kept = np.isin(nonces, _last_of_each_node(watch.kept, nonces, nodes))
        compromised = compromised_nodes(config) if active(config, server_round) else np.empty(0, np.int64)
        # A compromised node keeps everybody, whatever its check would have said.
        kept |= np.isin(nodes, compromised)
        empty = [report.node for report in reports if report.mean is None]
        kept &= ~np.isin(nodes, empty)
        watch.round = RoundNotes(server_round, nodes, lying, kept, compromised)
        watch.notes.add(watch.round)
        watch.honest_means = self._honest_means(parts, lying, nodes, num_items)
        watch.honest_change = None
        return reports

    def _honest_means(
        self, parts: list[Uploads], lying: NDArray[np.bool_], nodes: NDArray[np.int64], num_items: int
    ) -> list[NodeMean]:
        """Means of the honest clients of each node, no check, no lie."""
        bounds = np.cumsum([0, *(part.num_clients for part in parts)])
        found = []
        for node in np.unique(nodes):
            mine = (nodes == node) & ~lying
            members = [np.flatnonzero(mine[bounds[i] : bounds[i + 1]]) for i in range(len(parts))]
            if mine.any():
                found.append(node_mean(parts, members, num_items))
        return found


def _last_of_each_node(
    calls: list[NDArray[np.uint64]], nonces: NDArray[np.uint64], nodes: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Nonces of the clients that went into each node's last mean: a node makes a second one where its checks find more."""
    order = np.argsort(nonces)
    last = {int(nodes[order[np.searchsorted(nonces, call[0], sorter=order)]]): call for call in calls if len(call)}
    return np.concatenate([*last.values(), np.empty(0, np.uint64)])


@dataclass(frozen=True)
class _ServerAggregator:
    inner: ServerAggregator
    watch: Watch

    def combine(
        self, means: list[NodeMean], num_items: int, columns: int, seed: int, server_round: int, threads: int = 1
    ) -> NDArray[np.floating[Any]]:
        """See `ServerAggregator`."""
        watch = self.watch
        assert watch.round is not None
        accepted = {id(mean) for mean in means}
        watch.round.accepted = np.array([each.node for each in watch.reports if id(each.mean) in accepted], np.int64)
        if watch.honest_means:
            watch.honest_change = NodeAverage().combine(
                watch.honest_means, num_items, columns, seed, server_round, threads
            )
        return self.inner.combine(means, num_items, columns, seed, server_round, threads)


@dataclass(frozen=True)
class _Step:
    inner: ServerStep
    watch: Watch

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        new = self.inner.apply(state, change, server_round)
        watch = self.watch
        assert watch.round is not None
        if watch.honest_change is not None:
            columns = state.item_table.shape[1]
            honest = watch.plain.apply(state, np.ascontiguousarray(watch.honest_change[:, :columns]), server_round)
            watch.round.damage = relative_distance(new.item_table, honest.item_table, state.item_table)
            watch.round.change_damage = relative_distance(
                change[:, :columns], watch.honest_change[:, :columns], np.zeros_like(change[:, :columns])
            )
        return new


def relative_distance(
    new: NDArray[np.floating[Any]], honest: NDArray[np.floating[Any]], before: NDArray[np.floating[Any]]
) -> float:
    """||new - honest|| / ||honest - before||: 0 is no damage, 1 as bad as not to move at all."""
    update = float(np.linalg.norm(honest - before))
    return float(np.linalg.norm(new - honest)) / update if update > 0 else 0.0
