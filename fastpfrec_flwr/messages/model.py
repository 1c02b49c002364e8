"""Server to SuperNode: the table of the round, to train on or to rank with."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fastpfrec_flwr.messages.arrays import decode_array, decode_exponents, encode_array
from fastpfrec_flwr.messages.orders import Order, decode_order, encode_order
from fastpfrec_flwr.messages.records import RefusedError, exact_keys, record_of
from fastpfrec_flwr.privacy.eight_bits import from_eight_bits, to_eight_bits
from fastpfrec_flwr.privacy.mechanism import HALF_LARGEST


def encode_model(
    item_table: NDArray[np.float32], item_counts: NDArray[np.float64] | None = None, precision: str = "float32"
) -> ArrayRecord:
    """The table (and the items' counts, if there are any) as all messages of a round carry it: encoded once.

    Parameters
    ----------
    precision : float32, or float16 or int8 (rows with an exponent each, see `privacy.eight_bits`) for a half and a quarter of the
        bytes. The server's own table stays what it is, so rounding errors do not add up over the rounds.
    """
    if precision == "int8":
        multiples, exponents = to_eight_bits(item_table)
        arrays = {"item-table": encode_array(multiples), "item-exponents": encode_array(exponents)}
    elif precision == "float16":
        arrays = {"item-table": encode_array(np.clip(item_table, -HALF_LARGEST, HALF_LARGEST).astype(np.float16))}
    else:
        arrays = {"item-table": encode_array(item_table)}
    if item_counts is not None:
        arrays["item-counts"] = encode_array(item_counts.astype(np.float32))
    return ArrayRecord(arrays)


def encode_train(model: ArrayRecord, order: Order) -> RecordDict:
    """Server -> SuperNode: train some of your users on this table."""
    return RecordDict({"model": model, "order": encode_order(order)})


def decode_train(content: RecordDict, embedding_dim: int) -> tuple[NDArray[np.float32], Order]:
    """Read what `encode_train` wrote: table (items, k), float32 whatever it travelled as, and order."""
    model = record_of(content, "model", ArrayRecord)
    exact_keys(model, {"item-table", *(set(model) & {"item-counts", "item-exponents"})}, "model")
    return _decode_table(model, embedding_dim), decode_order(content)


def _decode_table(model: ArrayRecord, embedding_dim: int) -> NDArray[np.float32]:
    shape = (None, embedding_dim)
    if "item-exponents" in model:
        multiples = decode_array(model["item-table"], "item-table", "int8", shape)
        exponents = decode_exponents(model["item-exponents"], "item-exponents", len(multiples))
        table = from_eight_bits(multiples, exponents)
    elif model["item-table"].dtype == "float16":
        table = decode_array(model["item-table"], "item-table", "float16", shape).astype(np.float32)
    else:
        return decode_array(model["item-table"], "item-table", "float32", shape)
    table.flags.writeable = False  # one type for the kernels, however the table came
    return table


def decode_item_counts(content: RecordDict, num_items: int) -> NDArray[np.float32]:
    """(items,) noised users per item that a model record carries."""
    model = record_of(content, "model", ArrayRecord)
    exact_keys(model, {"item-table", "item-counts", *(set(model) & {"item-exponents"})}, "model")
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
