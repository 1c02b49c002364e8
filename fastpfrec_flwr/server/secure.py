"""Rounds in which nobody sees single uploads: the relay's side of secure sums, one for each trusted node.

Clients are shared out evenly among the nodes, so that each sum is over as many as can be. A node whose members are too few in the
end loses its sum; the others go on. What checks remain: those across the nodes' means, and whatever the server makes of them.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Order, RefusedError, TrainReport, secure
from fastpfrec_flwr.messages.secure import Group, Parcels
from fastpfrec_flwr.privacy.masking import group_threshold, least_in_sum
from fastpfrec_flwr.privacy.secure_sum import Hello, SecureSumError, from_steps, unmask, usable
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.server.receiving import Received
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.strategy import FastPFRec
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.tier import NodeReport
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass
class _Sums:
    """What one round has come to so far.

    Attributes
    ----------
    home : SuperNode of each nonce. groups : one for each trusted node. refused : reasons, one for each reply that was of no use.
    """

    home: dict[int, int] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Opened:
    """A tier whose reports are there already."""

    reports: list[NodeReport]

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`."""
        return self.reports


class SecureFastPFRec(FastPFRec):
    """FastPFRec on secure sums; the same step, blend, evaluation and files."""

    @property
    def route(self) -> str:
        """Where uploads go."""
        return f"{self._config.num_trusted_nodes} trusted nodes, behind masks: each sees its sum only"

    def notes(self) -> list[str]:
        """What the log should say of it."""
        return [
            "secure-sum: no check of single clients is possible; what is left are checks across nodes "
            f"(node-z-threshold = {self._config.node_z_threshold:g}, server-aggregator = {self._config.server_aggregator}). "
            f"A sum is lost if more than {self._config.dropout_fraction:.0%} of its clients fail"
        ]

    def run_round(self, grid: Grid, server_round: int, **flags: bool | int) -> RoundOutcome:
        """Run one whole round, see `DeviceStrategy`: four exchanges instead of one."""
        began = time.perf_counter()
        sums = _Sums()
        most = self._nodes.most_uploads(self._clients_wanted, self._config.seed, server_round)
        orders = {
            node: self.order(server_round, clients, **flags)  # type: ignore[arg-type]
            for node, clients in self._shares(server_round).items()
        }
        hellos = self._hellos(grid, orders, sums, most)
        sums.groups = self._groups(hellos, server_round, sums)
        sealed = self._sealed(grid, orders, sums)
        masked, reports = self._masked(grid, orders, sums, sealed, most)
        revealed = self._revealed(grid, orders, sums, masked)
        opened = self._open(sums, sealed, masked, revealed, orders)
        arrived = np.array(sorted(masked), np.uint64)
        items = len(self.state.item_table)
        # Whole tables arrived: their rows are counted, not kept.
        rows = np.broadcast_to(np.int32(0), (len(arrived) * items,))
        counted = Uploads(
            arrived, np.arange(len(arrived) + 1, dtype=np.int64) * items, rows, np.empty((0, 1), np.float32), 0.0,
        )  # fmt: skip
        self._tier = _Opened(opened)
        received = Received([counted], reports, sums.refused, time.perf_counter() - began)
        self.outcome = self._aggregate(server_round, received)
        return self.outcome

    def _ask(
        self, grid: Grid, action: str, contents: dict[int, RecordDict], sums: _Sums
    ) -> Iterator[tuple[int, Message]]:
        """One exchange: (SuperNode, reply) as they arrive."""
        outgoing = [Message(content, node, f"train.{action}") for node, content in contents.items()]
        for reply in self._exchange(grid, outgoing, self._config.round_timeout):
            yield reply.metadata.src_node_id, reply

    def _hellos(self, grid: Grid, orders: dict[int, Order], sums: _Sums, most: dict[int, int]) -> dict[int, Hello]:
        found: dict[int, Hello] = {}
        contents = {node: messages.encode_query(order) for node, order in orders.items()}
        for node, reply in self._ask(grid, "hello", contents, sums):
            try:
                hellos = secure.decode_hellos(reply, most.get(node, 0))
                if set(hellos) & set(found):
                    raise RefusedError("hello: a nonce that another SuperNode has named already")
            except RefusedError as error:
                sums.refused.append(str(error))
                continue
            found |= hellos
            sums.home |= dict.fromkeys(hellos, node)
        # A bad key would have every honest device refuse the group that it is in; so would one that two clients have.
        often = Counter(key for hello in found.values() for key in {hello.encryption, hello.masks})
        for nonce, hello in list(found.items()):
            if not usable(hello) or max(often[hello.encryption], often[hello.masks]) > 1:
                sums.refused.append("secure sum: public keys that repeat, or that nobody can agree with")
                del found[nonce], sums.home[nonce]
        return found

    def _groups(self, hellos: dict[int, Hello], server_round: int, sums: _Sums) -> list[Group]:
        """The clients, shared out evenly at random; in a simulation by the seed."""
        nonces = np.array(sorted(hellos), np.uint64)
        if self._nodes.deployed:
            generator = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
        else:
            generator = derive_generator(self._config.seed, "secure-groups", self._phase, server_round)
        order = generator.permutation(len(nonces))
        config = self._config
        # What the ledger counts on, also where fewer say hello: then fewer may fail later.
        clients = min(self._clients_wanted, self._nodes.num_users)
        least = least_in_sum(clients, config.num_trusted_nodes, config.dropout_fraction)
        groups = []
        for part in np.array_split(order, self._config.num_trusted_nodes):
            members = np.sort(nonces[part])
            threshold = max(group_threshold(len(members), config.dropout_fraction), least)
            if len(members) < threshold:
                sums.refused += [
                    f"secure sum: {len(members)} clients of a group came, at least {threshold} are wanted (dropout-fraction says "
                    "how many may be missing)"
                ] * len(members)
                continue
            groups.append(Group(members, [hellos[nonce] for nonce in members.tolist()], threshold))
        return [group for group in groups if len(group.nonces) >= 3]

    def _sealed(self, grid: Grid, orders: dict[int, Order], sums: _Sums) -> Parcels:
        """Everybody's sealed shares; a client that did not seal one for each other member has not shared."""
        mine: dict[int, list[Group]] = {}
        for group in sums.groups:
            for node in {sums.home[nonce] for nonce in group.nonces.tolist()}:
                mine.setdefault(node, []).append(group)
        contents = {node: secure.encode_groups(orders[node], groups) for node, groups in mine.items()}
        largest = max((len(group.nonces) for group in sums.groups), default=0)
        found: list[Parcels] = []
        for node, reply in self._ask(grid, "share", contents, sums):
            try:
                parcels = secure.decode_parcels(reply, "sealed", secure.SEALED, len(sums.home) * largest)
                self._from_home(parcels, node, sums)
            except RefusedError as error:
                sums.refused.append(str(error))
                continue
            found.append(self._complete(parcels, sums.groups))
        every = _joined(found, secure.SEALED)
        # Whose own shares did not come must not mask: nobody could take its masks off.
        return every.selected(np.isin(every.receiver, every.sender))

    def _from_home(self, parcels: Parcels, node: int, sums: _Sums) -> None:
        if any(sums.home.get(sender) != node for sender in np.unique(parcels.sender).tolist()):
            raise RefusedError("secure sum: shares of a client of another SuperNode")

    def _complete(self, parcels: Parcels, groups: list[Group]) -> Parcels:
        """Those of clients that have one for each other member of their group, once."""
        sent: dict[int, list[int]] = {}
        for sender, receiver in zip(parcels.sender.tolist(), parcels.receiver.tolist(), strict=True):
            sent.setdefault(sender, []).append(receiver)
        whole = {
            nonce
            for group in groups
            for nonce in group.nonces.tolist()
            if sorted([*sent.get(nonce, ()), nonce]) == group.nonces.tolist()
        }
        return parcels.selected(np.array([sender in whole for sender in parcels.sender.tolist()], np.bool_))

    def _masked(
        self, grid: Grid, orders: dict[int, Order], sums: _Sums, sealed: Parcels, most: dict[int, int]
    ) -> tuple[dict[int, NDArray[np.uint64]], list[TrainReport]]:
        model = self.encode_model()
        to = np.array([sums.home[nonce] for nonce in sealed.receiver.tolist()], np.uint64)  # as large as node ids are
        asked = {node: sealed.selected(to == node) for node in orders}
        contents = {node: secure.encode_mask_request(model, orders[node], mine) for node, mine in asked.items()}
        masked: dict[int, NDArray[np.uint64]] = {}
        reports: list[TrainReport] = []
        items = len(self.state.item_table)
        shared = set(sealed.sender.tolist())
        for node, reply in self._ask(grid, "mask", contents, sums):
            try:
                found, report = secure.decode_masked(
                    reply, orders[node].server_round, most.get(node, 0), items, self._config.upload_width
                )
                if any(sums.home.get(nonce) != node or nonce not in shared for nonce in found):
                    raise RefusedError(
                        "secure sum: a table of a client of another SuperNode, or of one that did not share"
                    )
            except RefusedError as error:
                sums.refused.append(str(error))
                continue
            masked |= found
            reports.append(report)
        return masked, reports

    def _revealed(
        self, grid: Grid, orders: dict[int, Order], sums: _Sums, masked: dict[int, NDArray[np.uint64]]
    ) -> Parcels:
        arrived = np.array(sorted(masked), np.uint64)
        asked = {sums.home[nonce] for nonce in masked}
        contents = {node: secure.encode_reveal_request(orders[node], arrived) for node in orders if node in asked}
        largest = max((len(group.nonces) for group in sums.groups), default=0)
        found: list[Parcels] = []
        for node, reply in self._ask(grid, "reveal", contents, sums):
            try:
                parcels = secure.decode_parcels(reply, "opened", secure.SHARE, len(sums.home) * largest)
                self._from_home(parcels, node, sums)
            except RefusedError as error:
                sums.refused.append(str(error))
                continue
            found.append(parcels)
        return _joined(found, secure.SHARE)

    def _open(
        self,
        sums: _Sums,
        sealed: Parcels,
        masked: dict[int, NDArray[np.uint64]],
        revealed: Parcels,
        orders: dict[int, Order],
    ) -> list[NodeReport]:
        """Each group's sum, as the mean that its trusted node reports."""
        answers: dict[int, dict[int, bytes]] = {}
        for by, of, share in revealed.items():
            answers.setdefault(by, {})[of] = share
        shared = set(np.unique(sealed.sender).tolist())
        if not sums.groups:  # nobody is on line, or too few for a sum that hides anybody
            return []
        context = secure.context_of(next(iter(orders.values())))
        items, width = len(self.state.item_table), self._config.upload_width
        reports = []
        for node, group in enumerate(sums.groups):
            numbers = {nonce: place for place, nonce in enumerate(group.nonces.tolist(), 1)}
            mine = {numbers[nonce]: masked[nonce] for nonce in numbers if nonce in masked}
            opened = {
                numbers[by]: {numbers[of]: share for of, share in answer.items() if of in numbers}
                for by, answer in answers.items()
                if by in numbers
            }
            sharing = [number for nonce, number in numbers.items() if nonce in shared]
            try:
                total = unmask(mine, group.by_number, sharing, opened, group.threshold, context)
            except SecureSumError as error:
                sums.refused += [f"secure sum of node {node}: {error}"] * max(len(mine), 1)
                continue
            mean = (from_steps(total) / len(mine)).reshape(items, width)
            if not np.isfinite(mean).all() or np.abs(mean).max(initial=0.0) > messages.LARGEST_VALUE:
                sums.refused += [f"secure sum of node {node}: beyond +-{messages.LARGEST_VALUE:g}"] * len(mine)
                continue
            everywhere = np.full(items, len(mine), np.int64)
            made = NodeMean(
                len(mine), np.arange(items, dtype=np.int32), mean.astype(np.float32), everywhere, 0.0,
                self._config.noise_kind,
            )  # fmt: skip
            reports.append(NodeReport(node, len(mine), 0, False, made))
        return reports


def _joined(found: Iterable[Parcels], size: int) -> Parcels:
    parcels = list(found)
    return Parcels(
        np.concatenate([np.empty(0, np.uint64), *(each.sender for each in parcels)]),
        np.concatenate([np.empty(0, np.uint64), *(each.receiver for each in parcels)]),
        np.concatenate([np.empty((0, size), np.uint8), *(each.content for each in parcels)]),
    )
