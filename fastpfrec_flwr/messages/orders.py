"""What the server tells a SuperNode with every message, and what a SuperNode says of itself."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fastpfrec_flwr.messages.records import RefusedError, exact_keys, record_of, usable_content, value_of


@dataclass(frozen=True)
class Order:
    """What the server tells a SuperNode with every message.

    Attributes
    ----------
    source : fingerprint of the server's code. state_id : names the state that the devices keep for this training.
    phase : `train`, or `refit` on train plus validation. server_round : from 1; 0 before training.
    clients : clients per round, over all SuperNodes in a simulation and of this one on a real device.
    report_loss : whether to report the train loss this round.
    snapshot : keep a copy of the state after this round (the server writes a checkpoint).
    restore : go back to the copy of this round first; 0 is no.
    catalogue, catalogue_version : hash and version of the item ids that all agreed on; empty and 0 before they have.
    """

    source: str
    state_id: str
    phase: str
    server_round: int
    clients: int
    report_loss: bool = False
    snapshot: bool = False
    restore: int = 0
    catalogue: str = ""
    catalogue_version: int = 0

    @property
    def table_version(self) -> int:
        """What names the item table that comes with the order: 63 bits, of the training, the phase and the round."""
        text = json.dumps([self.state_id, self.phase, self.server_round])
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


_ORDER_TYPES: dict[str, type] = {
    "source": str,
    "state-id": str,
    "phase": str,
    "server-round": int,
    "clients": int,
    "report-loss": bool,
    "snapshot": bool,
    "restore": int,
    "catalogue": str,
    "catalogue-version": int,
}


def encode_order(order: Order) -> ConfigRecord:
    """The record of an order."""
    return ConfigRecord({key: getattr(order, key.replace("-", "_")) for key in _ORDER_TYPES})


def decode_order(content: RecordDict) -> Order:
    """Read what `encode_order` wrote."""
    record = record_of(content, "order", ConfigRecord)
    exact_keys(record, set(_ORDER_TYPES), "order")
    values = {key.replace("-", "_"): value_of(record, key, kind, "order") for key, kind in _ORDER_TYPES.items()}
    for key in ("state_id", "phase"):
        # They become names of folders on a device.
        if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", values[key], re.ASCII):
            raise RefusedError(
                f"order: {key.replace('_', '-')} must be letters, digits, '-' and '_', got {values[key]!r}"
            )
    return Order(**values)


@dataclass(frozen=True)
class Description:
    """What a SuperNode says of itself. Nothing of it depends on who interacted with what, but for the number of users.

    Attributes
    ----------
    partition : its number in a simulation, -1 on a real device. users : users it holds.
    num_items : rows of the table. catalogue : hash of the item ids. data : fingerprint of the data set's split.
    data_set : its name.
    """

    partition: int
    users: int
    num_items: int
    catalogue: str
    data: str
    data_set: str


# Of one SuperNode. What it says is added up; a claim beyond this would run over.
MOST_USERS = 10**9
_DESCRIPTION_TYPES: dict[str, type] = {
    "partition": int,
    "users": int,
    "num-items": int,
    "catalogue": str,
    "data": str,
    "data-set": str,
}


def encode_query(order: Order) -> RecordDict:
    """Server -> SuperNode: describe yourself, hand out the catalogue, or let go of the state (by the message's action)."""
    return RecordDict({"order": encode_order(order)})


def decode_query(content: RecordDict) -> Order:
    """Read what `encode_query` wrote."""
    return decode_order(content)


def encode_description(description: Description) -> RecordDict:
    """SuperNode -> server."""
    values = {key: getattr(description, key.replace("-", "_")) for key in _DESCRIPTION_TYPES}
    return RecordDict({"description": ConfigRecord(values)})


def decode_description(reply: Message) -> Description:
    """Read what `encode_description` wrote."""
    record = record_of(usable_content(reply), "description", ConfigRecord)
    exact_keys(record, set(_DESCRIPTION_TYPES), "description")
    values = {
        key.replace("-", "_"): value_of(record, key, kind, "description") for key, kind in _DESCRIPTION_TYPES.items()
    }
    if not 0 <= values["users"] <= MOST_USERS or values["num_items"] < 1:
        raise RefusedError(f"description: users {values['users']} and num-items {values['num_items']} make no sense")
    return Description(**values)


def encode_catalogue(item_ids: list[str], report: str) -> RecordDict:
    """SuperNode -> server: the public item ids in row order, and the data set's report (JSON)."""
    return RecordDict({"catalogue": ConfigRecord({"item-ids": item_ids, "report": report})})


def decode_catalogue(reply: Message, num_items: int) -> tuple[list[str], str]:
    """Read what `encode_catalogue` wrote."""
    record = record_of(usable_content(reply), "catalogue", ConfigRecord)
    exact_keys(record, {"item-ids", "report"}, "catalogue")
    item_ids = record["item-ids"]
    if not isinstance(item_ids, list) or len(item_ids) != num_items or not all(type(i) is str for i in item_ids):
        raise RefusedError(f"catalogue: item-ids must be {num_items} strings")
    return item_ids, value_of(record, "report", str, "catalogue")


def encode_done() -> RecordDict:
    """SuperNode -> server: done, nothing to tell."""
    return RecordDict({"done": ConfigRecord({})})
