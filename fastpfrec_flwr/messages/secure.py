"""The four exchanges of a secure sum (`privacy.secure_sum`), between SuperNodes and whoever relays for the trusted nodes.

Clients are named by the nonces of the round. What a SuperNode says in all four is keys, sealed shares, masked tables and opened
shares; the only thing among them that is made of an upload is `MaskedUploads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fastpfrec_flwr.messages.arrays import decode_array, encode_array
from fastpfrec_flwr.messages.orders import Order, encode_order
from fastpfrec_flwr.messages.records import RefusedError, exact_keys, record_of, usable_content, value_of
from fastpfrec_flwr.messages.uploads import LARGEST_LOSS, TrainReport
from fastpfrec_flwr.privacy.masking import MaskedUploads
from fastpfrec_flwr.privacy.secure_sum import Hello

KEYS = 64  # two public keys
SEALED = 80  # two halves of a share and the seal's 16 bytes
SHARE = 32
_REPORT: dict[str, type] = {"server-round": int, "skipped": int, "loss-sum": float, "positives": int}


def context_of(order: Order) -> bytes:
    """Names the sums of a round; what is made for one is of no use in another."""
    return f"fastpfrec|{order.state_id}|{order.phase}|{order.server_round}".encode()


@dataclass(frozen=True)
class Group:
    """Who adds up together: nonces, ascending, with their public keys; a member's number is its place, from 1."""

    nonces: NDArray[np.uint64]
    hellos: list[Hello]
    threshold: int

    @property
    def by_number(self) -> dict[int, Hello]:
        """Number -> public keys."""
        return dict(enumerate(self.hellos, 1))

    def number_of(self, nonce: int) -> int:
        """The member's number, or 0 for a stranger."""
        place = int(np.searchsorted(self.nonces, np.uint64(nonce)))
        return place + 1 if place < len(self.nonces) and int(self.nonces[place]) == nonce else 0


@dataclass(frozen=True)
class Parcels:
    """Bytes from some clients to (or about) others: (m,) nonces each, (m, size) uint8."""

    sender: NDArray[np.uint64]
    receiver: NDArray[np.uint64]
    content: NDArray[np.uint8]

    @staticmethod
    def of(found: list[tuple[int, int, bytes]], size: int) -> Parcels:
        """From (sender, receiver, bytes)."""
        content = np.frombuffer(b"".join(each[2] for each in found), np.uint8).reshape(len(found), size)
        return Parcels(
            np.array([each[0] for each in found], np.uint64), np.array([each[1] for each in found], np.uint64), content
        )

    def items(self) -> list[tuple[int, int, bytes]]:
        """As (sender, receiver, bytes)."""
        return [
            (sender, receiver, content.tobytes())
            for sender, receiver, content in zip(
                self.sender.tolist(), self.receiver.tolist(), self.content, strict=True
            )
        ]

    def selected(self, chosen: NDArray[np.bool_]) -> Parcels:
        """Some of them."""
        return Parcels(self.sender[chosen], self.receiver[chosen], self.content[chosen])


def _arrays(content: RecordDict, name: str, kinds: dict[str, tuple[str, tuple[int | None, ...]]]) -> dict[str, Any]:
    record = record_of(content, name, ArrayRecord)
    exact_keys(record, set(kinds), name)
    return {key: decode_array(record[key], key, dtype, shape) for key, (dtype, shape) in kinds.items()}


def _only(content: RecordDict, names: set[str], what: str) -> None:
    if set(content) != names:
        raise RefusedError(f"{what}: records must be {', '.join(sorted(names))}, got {sorted(content)}")


# ---- 1: public keys --------------------------------------------------------------------------------------------------


def encode_hellos(hellos: dict[int, Hello]) -> RecordDict:
    """SuperNode -> relay: the public keys of this round's clients, by nonce."""
    keys = b"".join(hello.encryption + hello.masks for hello in hellos.values())
    arrays = {
        "nonces": encode_array(np.array(list(hellos), np.uint64)),
        "keys": encode_array(np.frombuffer(keys, np.uint8).reshape(len(hellos), KEYS)),
    }
    return RecordDict({"hello": ArrayRecord(arrays)})


def decode_hellos(reply: Message, max_clients: int) -> dict[int, Hello]:
    """Read what `encode_hellos` wrote."""
    content = usable_content(reply)
    _only(content, {"hello"}, "hello")
    found = _arrays(content, "hello", {"nonces": ("uint64", (None,)), "keys": ("uint8", (None, KEYS))})
    nonces, keys = found["nonces"], found["keys"]
    if len(nonces) != len(keys) or len(nonces) > max_clients or len(np.unique(nonces)) < len(nonces):
        raise RefusedError(f"hello: {len(nonces)} distinct nonces for {len(keys)} keys, at most {max_clients}")
    return {
        nonce: Hello(key[: KEYS // 2].tobytes(), key[KEYS // 2 :].tobytes())
        for nonce, key in zip(nonces.tolist(), keys, strict=True)
    }


# ---- 2: shares -------------------------------------------------------------------------------------------------------


def encode_groups(order: Order, groups: list[Group]) -> RecordDict:
    """Relay -> SuperNode: the groups of its clients."""
    keys = b"".join(hello.encryption + hello.masks for group in groups for hello in group.hellos)
    arrays = {
        "nonces": encode_array(np.concatenate([np.empty(0, np.uint64), *(group.nonces for group in groups)])),
        "keys": encode_array(np.frombuffer(keys, np.uint8).reshape(-1, KEYS)),
        "pointer": encode_array(np.cumsum([0, *(len(group.nonces) for group in groups)], dtype=np.int64)),
        "thresholds": encode_array(np.array([group.threshold for group in groups], np.int64)),
    }
    return RecordDict({"order": encode_order(order), "groups": ArrayRecord(arrays)})


def decode_groups(content: RecordDict) -> list[Group]:
    """Read what `encode_groups` wrote."""
    found = _arrays(
        content, "groups",
        {"nonces": ("uint64", (None,)), "keys": ("uint8", (None, KEYS)), "pointer": ("int64", (None,)),
         "thresholds": ("int64", (None,))},
    )  # fmt: skip
    nonces, keys, pointer, thresholds = (found[name] for name in ("nonces", "keys", "pointer", "thresholds"))
    whole = len(pointer) == len(thresholds) + 1 and pointer[0] == 0 and pointer[-1] == len(nonces) == len(keys)
    if not whole or (pointer[1:] <= pointer[:-1]).any():
        raise RefusedError("groups: pointer does not divide the members")
    groups = []
    for place, threshold in enumerate(thresholds.tolist()):
        members = slice(pointer[place], pointer[place + 1])
        if (nonces[members][1:] <= nonces[members][:-1]).any():
            raise RefusedError("groups: nonces of a group must ascend without repeats")
        hellos = [Hello(key[: KEYS // 2].tobytes(), key[KEYS // 2 :].tobytes()) for key in keys[members]]
        groups.append(Group(nonces[members], hellos, threshold))
    return groups


def encode_parcels(parcels: Parcels, name: str, order: Order | None = None) -> RecordDict:
    """Sealed shares, or opened ones (`name`); with an order on the way to a SuperNode."""
    arrays = {
        "sender": encode_array(parcels.sender),
        "receiver": encode_array(parcels.receiver),
        "content": encode_array(parcels.content),
    }
    content: dict[str, Any] = {name: ArrayRecord(arrays)}
    return RecordDict(content if order is None else {"order": encode_order(order), **content})


def parcels_in(content: RecordDict, name: str, size: int) -> Parcels:
    """Parcels of a message."""
    kinds: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "sender": ("uint64", (None,)), "receiver": ("uint64", (None,)), "content": ("uint8", (None, size)),
    }  # fmt: skip
    found = _arrays(content, name, kinds)
    if not len(found["sender"]) == len(found["receiver"]) == len(found["content"]):
        raise RefusedError(f"{name}: senders, receivers and contents must be as many")
    return Parcels(found["sender"], found["receiver"], found["content"])


def decode_parcels(reply: Message, name: str, size: int, max_parcels: int) -> Parcels:
    """Read what a SuperNode made with `encode_parcels`."""
    content = usable_content(reply)
    _only(content, {name}, name)
    parcels = parcels_in(content, name, size)
    if len(parcels.sender) > max_parcels:
        raise RefusedError(f"{name}: {len(parcels.sender)} shares, at most {max_parcels}")
    return parcels


# ---- 3: masked tables ------------------------------------------------------------------------------------------------


def encode_mask_request(model: ArrayRecord, order: Order, sealed: Parcels) -> RecordDict:
    """Relay -> SuperNode: the table to train on, and the shares sealed for its clients."""
    return RecordDict({"model": model, **encode_parcels(sealed, "sealed", order)})


def encode_masked(uploads: MaskedUploads, report: TrainReport) -> RecordDict:
    """SuperNode -> relay: its clients' uploads behind their masks.

    Raises
    ------
    TypeError for anything else.
    """
    if type(uploads) is not MaskedUploads:
        raise TypeError(f"only MaskedUploads may leave a client in a secure sum, got {type(uploads).__name__}")
    arrays = {"nonces": encode_array(uploads.nonces), "steps": encode_array(uploads.steps)}
    told = {key: getattr(report, key.replace("-", "_")) for key in _REPORT}
    return RecordDict({"masked": ArrayRecord(arrays), "train": MetricRecord(told)})


def decode_masked(
    reply: Message, server_round: int, max_clients: int, num_items: int, width: int
) -> tuple[dict[int, NDArray[np.uint64]], TrainReport]:
    """Read what `encode_masked` wrote: (items * width,) steps by nonce.

    Parameters
    ----------
    max_clients : that this SuperNode was asked for.

    What is behind a mask cannot be looked at: no value of it is good or bad by itself.
    """
    content = usable_content(reply)
    _only(content, {"masked", "train"}, "masked")
    told = record_of(content, "train", MetricRecord)
    exact_keys(told, set(_REPORT), "train")
    figures = {key.replace("-", "_"): value_of(told, key, kind, "train") for key, kind in _REPORT.items()}
    report = TrainReport(**figures)
    if report.server_round != server_round:
        raise RefusedError(f"train: reply to round {report.server_round} in round {server_round}")
    figures_fit = 0 <= report.skipped <= max_clients and 0 <= report.positives <= max_clients * num_items
    # NaN compares false.
    if not figures_fit or not abs(report.loss_sum) <= LARGEST_LOSS * report.positives:
        raise RefusedError(f"train: figures make no sense: {report}")
    found = _arrays(content, "masked", {"nonces": ("uint64", (None,)), "steps": ("uint64", (None, num_items * width))})
    nonces = found["nonces"].tolist()
    if len(nonces) != len(found["steps"]) or len(set(nonces)) < len(nonces) or len(nonces) > max_clients:
        raise RefusedError(f"masked: {len(nonces)} nonces for {len(found['steps'])} tables, at most {max_clients}")
    return dict(zip(nonces, found["steps"], strict=True)), report


# ---- 4: opened shares ------------------------------------------------------------------------------------------------


def encode_reveal_request(order: Order, arrived: NDArray[np.uint64]) -> RecordDict:
    """Relay -> SuperNode: whose masked tables arrived."""
    return RecordDict({"order": encode_order(order), "arrived": ArrayRecord({"nonces": encode_array(arrived)})})


def decode_reveal_request(content: RecordDict) -> set[int]:
    """Read what `encode_reveal_request` wrote."""
    return set(_arrays(content, "arrived", {"nonces": ("uint64", (None,))})["nonces"].tolist())


# ---- what a SuperNode keeps between them -----------------------------------------------------------------------------


def encode_kept(text: str, server_round: int, phase: str) -> ConfigRecord:
    """The SuperNode's own memory of a sum that is under way."""
    return ConfigRecord({"round": server_round, "phase": phase, "members": text})


def decode_kept(record: Any, server_round: int, phase: str) -> str:
    """Read what `encode_kept` wrote.

    Raises
    ------
    RefusedError if there is none of this round.
    """
    if not isinstance(record, ConfigRecord):
        raise RefusedError("secure sum: no sum is under way on this SuperNode")
    if (record.get("round"), record.get("phase")) != (server_round, phase):
        raise RefusedError(f"secure sum: the one under way is of another round than {server_round}")
    return str(value_of(record, "members", str, "secure sum"))
