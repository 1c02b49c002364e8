"""A SuperNode's side of a secure sum: four handlers, and what it keeps between them.

Everything secret of a sum is drawn from the operating system, in a simulation too: masks cancel, so figures do not depend on them.
Between two messages a SuperNode may be another process, so what it keeps stands in Flower's context, on the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.messages import Order, RefusedError, TrainReport
from fastpfrec_flwr.messages.secure import SEALED, SHARE, Group, Parcels, context_of
from fastpfrec_flwr.privacy.masking import MaskedUploads, group_threshold, mask_uploads
from fastpfrec_flwr.privacy.secure_sum import Hello, Member, SecureSumError


class SecureRound:
    """One SuperNode's clients in one round.

    Attributes
    ----------
    positions : places in the shard, by nonce. members : theirs in their groups; made by `hello`. nonces : of each member's group.
    sealed : shares that its clients were sent, by receiver and then sender.
    """

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        self.members: dict[int, Member] = {}
        self.nonces: dict[int, list[int]] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}

    @staticmethod
    def of(node: Node, order: Order) -> SecureRound:
        """Draw the round's clients and their keys."""
        begun = SecureRound()
        positions, nonces = node.drawn(order)
        begun.positions = dict(zip(nonces.tolist(), positions.tolist(), strict=True))
        begun.members = {nonce: Member(context_of(order), 0) for nonce in begun.positions}
        return begun

    def hellos(self) -> dict[int, Hello]:
        """Step 1: the clients' public keys."""
        return {nonce: member.hello() for nonce, member in self.members.items()}

    def share(self, groups: list[Group], dropout_fraction: float, least: int = 0) -> Parcels:
        """Step 2: what each client seals for the others of its group.

        Parameters
        ----------
        dropout_fraction, least : the device's own idea of how many may fail, and of the fewest that a sum may be opened for, on
            which its noise and what its ledger says rest; a relay that asks for a lower threshold is refused.
        """
        found = []
        for group in groups:
            lowest = max(group_threshold(len(group.nonces), dropout_fraction), least)
            if group.threshold < lowest or len(group.nonces) < max(lowest, 3):
                raise RefusedError(
                    f"secure sum: a group of {len(group.nonces)} with threshold {group.threshold} opens too easily: this device "
                    f"counts on {lowest} clients (clients-per-round, num-trusted-nodes, dropout-fraction)"
                )
            by_number = group.by_number
            for nonce in group.nonces.tolist():
                member = self.members.get(nonce)
                if member is None:
                    continue
                if member.group:
                    raise RefusedError("secure sum: this client has shared already")
                member.number = group.number_of(nonce)
                self.nonces[nonce] = group.nonces.tolist()
                for number, box in _guarded(member.share, by_number, group.threshold).items():
                    found.append((nonce, int(group.nonces[number - 1]), box))
        return Parcels.of(found, SEALED)

    def mask(
        self, node: Node, table: NDArray[np.float32], order: Order, sealed: Parcels
    ) -> tuple[MaskedUploads, TrainReport]:
        """Step 3: train, make private, and mask."""
        for sender, receiver, box in sealed.items():
            if receiver in self.members and sender in self.nonces.get(receiver, ()):
                self.sealed.setdefault(receiver, {})[sender] = box
        sharing = {nonce: self._numbers(nonce, [*self.sealed.get(nonce, ()), nonce]) for nonce in self.nonces}
        ready = [nonce for nonce in self.nonces if len(sharing[nonce]) >= self.members[nonce].threshold]
        positions = np.sort(np.array([self.positions[nonce] for nonce in ready], np.int64))
        uploads, report = node.train(table, order, positions)
        return _guarded(mask_uploads, uploads, self.members, sharing, len(table)), report

    def reveal(self, arrived: set[int]) -> Parcels:
        """Step 4: the halves of shares that open the sum."""
        found = []
        for nonce, member in self.members.items():
            if not member.sharing or nonce not in arrived:
                continue
            group = self.nonces[nonce]
            numbers = self._numbers(nonce, [other for other in group if other in arrived])
            if len(numbers) < member.threshold:
                continue  # that group's sum is lost; this device's clients in other groups still answer
            sealed = {self._numbers(nonce, [sender])[0]: box for sender, box in self.sealed[nonce].items()}
            for number, share in _guarded(member.reveal, numbers, sealed).items():
                found.append((nonce, group[number - 1], share))
        return Parcels.of(found, SHARE)

    def _numbers(self, nonce: int, others: list[int]) -> list[int]:
        group = self.nonces[nonce]
        return sorted(group.index(other) + 1 for other in others)

    # ---- kept between messages ---------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Everything, as JSON."""
        return json.dumps(
            {
                "positions": {str(nonce): position for nonce, position in self.positions.items()},
                "members": {str(nonce): _told(asdict(member)) for nonce, member in self.members.items()},
                "nonces": {str(nonce): group for nonce, group in self.nonces.items()},
                "sealed": {
                    str(to): {str(sender): box.hex() for sender, box in boxes.items()}
                    for to, boxes in self.sealed.items()
                },
            }
        )

    @staticmethod
    def from_text(text: str) -> SecureRound:
        """Read what `to_text` wrote."""
        values = json.loads(text)
        kept = SecureRound()
        kept.positions = {int(nonce): position for nonce, position in values["positions"].items()}
        kept.members = {int(nonce): _member(member) for nonce, member in values["members"].items()}
        kept.nonces = {int(nonce): group for nonce, group in values["nonces"].items()}
        kept.sealed = {
            int(to): {int(sender): bytes.fromhex(box) for sender, box in boxes.items()}
            for to, boxes in values["sealed"].items()
        }
        return kept


def _guarded(step: Callable[..., Any], *arguments: Any) -> Any:
    """A step of the protocol; what it refuses goes back as a refusal."""
    try:
        return step(*arguments)
    except SecureSumError as error:
        raise RefusedError(f"secure sum: {error}") from None


def _told(member: dict[str, Any]) -> dict[str, Any]:
    told = {key: value.hex() if isinstance(value, bytes) else value for key, value in member.items()}
    told["group"] = {
        str(number): {key: each.hex() for key, each in hello.items()} for number, hello in member["group"].items()
    }
    return told


def _member(values: Mapping[str, Any]) -> Member:
    hidden = ("context", "encryption_key", "mask_key", "own_seed", "own_share")
    read: dict[str, Any] = {key: bytes.fromhex(value) if key in hidden else value for key, value in values.items()}
    read["group"] = {
        int(number): Hello(bytes.fromhex(hello["encryption"]), bytes.fromhex(hello["masks"]))
        for number, hello in values["group"].items()
    }
    read["sharing"] = tuple(values["sharing"])
    return Member(**read)
