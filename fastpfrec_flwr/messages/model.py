"""Server to SuperNode: the table of the round, to train on or to rank with."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fastpfrec_flwr.messages.arrays import decode_array, encode_array
from fastpfrec_flwr.messages.orders import Order, decode_order, encode_order
from fastpfrec_flwr.messages.records import RefusedError, exact_keys, record_of


def encode_model(item_table: NDArray[np.float32], item_counts: NDArray[np.float64] | None = None) -> ArrayRecord:
    """The table (and the items' counts, if there are any) as all messages of a round carry it: encoded once."""
    arrays = {"item-table": encode_array(item_table)}
    if item_counts is not None:
        arrays["item-counts"] = encode_array(item_counts.astype(np.float32))
    return ArrayRecord(arrays)


def encode_train(model: ArrayRecord, order: Order) -> RecordDict:
    """Server -> SuperNode: train some of your users on this table."""
    return RecordDict({"model": model, "order": encode_order(order)})


def decode_train(content: RecordDict, embedding_dim: int) -> tuple[NDArray[np.float32], Order]:
    """Read what `encode_train` wrote: table (items, k) and order."""
    model = record_of(content, "model", ArrayRecord)
    exact_keys(model, {"item-table", *(set(model) & {"item-counts"})}, "model")
    return decode_array(model["item-table"], "item-table", "float32", (None, embedding_dim)), decode_order(content)


def decode_item_counts(content: RecordDict, num_items: int) -> NDArray[np.float32]:
    """(items,) noised users per item that a model record carries."""
    model = record_of(content, "model", ArrayRecord)
    exact_keys(model, {"item-table", "item-counts"}, "model")
    return decode_array(model["item-counts"], "item-counts", "float32", (num_items,))


def encode_evaluate(model: ArrayRecord, order: Order, parts: list[str]) -> RecordDict:
    """Server -> SuperNode: rank your users' `parts` (validation, test) with this table."""
    return RecordDict({"model": model, "order": encode_order(order), "parts": ConfigRecord({"parts": parts})})


def decode_evaluate(content: RecordDict, embedding_dim: int) -> tuple[NDArray[np.float32], Order, list[str]]:
    """Read what `encode_evaluate` wrote."""
    table, order = decode_train(content, embedding_dim)
    parts = record_of(content, "parts", ConfigRecord).get("parts")
    if not isinstance(parts, list) or not parts or not set(parts) <= {"validation", "test"}:
        raise RefusedError(f"parts must be some of validation and test, got {parts!r}")
    return table, order, parts
