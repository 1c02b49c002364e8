"""What crosses the wire between the tiers. The only place that knows record keys.

Encoding takes what may leave (`PrivatizedUploads`, metric sums, public settings) and nothing else. Decoding trusts nothing: exact
keys, dtypes and shapes, sizes checked before anything of that size exists, finite values, row ids sorted and in range. A message
that cannot be read is refused whole; in one that can, a bad upload costs its own client only.

Arrays travel as `.npy` (what Flower itself uses), built and read without a second copy.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.trusted_node.uploads import Uploads
from fastpfrec_flwr.wire import MAGIC, message_of, npy_header

NPY = "numpy.ndarray"
# Beyond this a value is no honest change, and sums of a million of them on the 2^-20 grid would stop being exact.
LARGEST_VALUE = 2.0**12
_MAX_HEADER = 1024
_CLIENTS_PER_TASK = 32
_UPLOAD_DTYPES = {"nonces": "uint64", "pointer": "int64", "rows": "int32", "values": "float32"}


class RefusedError(ValueError):
    """A message that cannot be used; the text says why, for the round's record."""


# ---- arrays ----------------------------------------------------------------------------------------------------------


def encode_array(array: NDArray[Any]) -> Array:
    """Wrap an array as Flower does, with one copy of its bytes instead of two; none where `wire.sendable` made it."""
    array = np.ascontiguousarray(array)
    data = message_of(array)
    if data is None:
        data = b"".join([npy_header(array.dtype, array.shape), array.reshape(-1).data.cast("B")])
    return Array(dtype=str(array.dtype), shape=tuple(array.shape), stype=NPY, data=data)


def decode_array(array: Array, name: str, dtype: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Read an array without copying it.

    Parameters
    ----------
    name : for the message of an error. dtype : exact. shape : exact; None where any length will do.

    Returns
    -------
    A read-only view of the message's bytes.

    Raises
    ------
    RefusedError if anything does not fit. Nothing is allocated on the word of a header.
    """
    if array.stype != NPY:
        raise RefusedError(f"{name}: serialisation {array.stype!r} is not {NPY!r}")
    data = array.data
    if data[:8] != MAGIC or len(data) < 10:
        raise RefusedError(f"{name}: not a version-1 npy array")
    (length,) = struct.unpack("<H", data[8:10])
    if length > _MAX_HEADER or len(data) < 10 + length or (10 + length) % 16:
        # NumPy pads to 64; elements off their alignment would have the kernels compiled anew.
        raise RefusedError(f"{name}: npy header of {length} bytes is too long, cut off or not padded")
    try:
        header = ast.literal_eval(data[10 : 10 + length].decode("latin-1").strip())
        found_dtype, fortran, found_shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise RefusedError(f"{name}: npy header cannot be read") from None
    wanted = np.dtype(dtype)
    if found_dtype != wanted.str or array.dtype != dtype:
        raise RefusedError(f"{name}: dtype {array.dtype!r} / {found_dtype!r} is not {dtype}")
    sizes_ok = isinstance(found_shape, tuple) and all(type(n) is int and n >= 0 for n in found_shape)
    if not sizes_ok or tuple(array.shape) != found_shape:
        raise RefusedError(f"{name}: shape {found_shape!r} is not the declared {tuple(array.shape)!r}")
    fits = len(found_shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, found_shape, strict=True)
    )
    if not fits or fortran is not False:
        raise RefusedError(f"{name}: shape {found_shape!r} is not {shape!r} in C order")
    count = 1
    for n in found_shape:
        count *= n
    if count * wanted.itemsize != len(data) - 10 - length:
        raise RefusedError(f"{name}: {len(data) - 10 - length} bytes do not make {count} elements of {dtype}")
    return np.frombuffer(data, wanted, offset=10 + length).reshape(found_shape)


# ---- reading records -------------------------------------------------------------------------------------------------


def _record(content: RecordDict, key: str, kind: type) -> Any:
    if key not in content or not isinstance(content[key], kind):
        raise RefusedError(f"record {key!r} of kind {kind.__name__} is missing; got {sorted(content)}")
    return content[key]


def _exact_keys(record: Mapping[str, Any], keys: set[str], name: str) -> None:
    if set(record) != keys:
        missing, extra = sorted(keys - set(record)), sorted(set(record) - keys)
        raise RefusedError(f"{name}: missing keys {missing}, unknown keys {extra}")


def _value(record: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    value = record[key]
    if type(value) is not kind:
        raise RefusedError(f"{name}: {key} must be {kind.__name__}, got {value!r}")
    return value


# ---- a refusal by a client -------------------------------------------------------------------------------------------


def encode_refusal(reason: str) -> RecordDict:
    """A reply that says why the client did not do what it was asked to."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def usable_content(reply: Message) -> RecordDict:
    """Content of a reply.

    Raises
    ------
    RefusedError if the client failed or refused, with the last line of its reason.
    """
    if reply.has_error():
        lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
        raise RefusedError(f"client failed (code {reply.error.code}): {lines[-1] if lines else 'no reason given'}")
    content: RecordDict = reply.content
    if "refusal" in content:
        reason = _record(content, "refusal", ConfigRecord).get("reason", "no reason given")
        raise RefusedError(str(reason))
    return content


# ---- describe: what a SuperNode holds --------------------------------------------------------------------------------


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
    """

    source: str
    state_id: str
    phase: str
    server_round: int
    clients: int
    report_loss: bool = False
    snapshot: bool = False
    restore: int = 0


_ORDER_TYPES: dict[str, type] = {
    "source": str,
    "state-id": str,
    "phase": str,
    "server-round": int,
    "clients": int,
    "report-loss": bool,
    "snapshot": bool,
    "restore": int,
}


def _encode_order(order: Order) -> ConfigRecord:
    return ConfigRecord({key: getattr(order, key.replace("-", "_")) for key in _ORDER_TYPES})


def _decode_order(content: RecordDict) -> Order:
    record = _record(content, "order", ConfigRecord)
    _exact_keys(record, set(_ORDER_TYPES), "order")
    values = {key.replace("-", "_"): _value(record, key, kind, "order") for key, kind in _ORDER_TYPES.items()}
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
    return RecordDict({"order": _encode_order(order)})


def decode_query(content: RecordDict) -> Order:
    """Read what `encode_query` wrote."""
    return _decode_order(content)


def encode_description(description: Description) -> RecordDict:
    """SuperNode -> server."""
    values = {key: getattr(description, key.replace("-", "_")) for key in _DESCRIPTION_TYPES}
    return RecordDict({"description": ConfigRecord(values)})


def decode_description(reply: Message) -> Description:
    """Read what `encode_description` wrote."""
    record = _record(usable_content(reply), "description", ConfigRecord)
    _exact_keys(record, set(_DESCRIPTION_TYPES), "description")
    values = {
        key.replace("-", "_"): _value(record, key, kind, "description") for key, kind in _DESCRIPTION_TYPES.items()
    }
    if values["users"] < 0 or values["num_items"] < 1:
        raise RefusedError(f"description: users {values['users']} and num-items {values['num_items']} make no sense")
    return Description(**values)


def encode_catalogue(item_ids: list[str], report: str) -> RecordDict:
    """SuperNode -> server: the public item ids in row order, and the data set's report (JSON)."""
    return RecordDict({"catalogue": ConfigRecord({"item-ids": item_ids, "report": report})})


def decode_catalogue(reply: Message, num_items: int) -> tuple[list[str], str]:
    """Read what `encode_catalogue` wrote."""
    record = _record(usable_content(reply), "catalogue", ConfigRecord)
    _exact_keys(record, {"item-ids", "report"}, "catalogue")
    item_ids = record["item-ids"]
    if not isinstance(item_ids, list) or len(item_ids) != num_items or not all(type(i) is str for i in item_ids):
        raise RefusedError(f"catalogue: item-ids must be {num_items} strings")
    return item_ids, _value(record, "report", str, "catalogue")


def encode_done() -> RecordDict:
    """SuperNode -> server: done, nothing to tell."""
    return RecordDict({"done": ConfigRecord({})})


# ---- training --------------------------------------------------------------------------------------------------------


def encode_model(item_table: NDArray[np.float32], item_counts: NDArray[np.float64] | None = None) -> ArrayRecord:
    """The table (and the items' counts, if there are any) as all messages of a round carry it: encoded once."""
    arrays = {"item-table": encode_array(item_table)}
    if item_counts is not None:
        arrays["item-counts"] = encode_array(item_counts.astype(np.float32))
    return ArrayRecord(arrays)


def encode_train(model: ArrayRecord, order: Order) -> RecordDict:
    """Server -> SuperNode: train some of your users on this table."""
    return RecordDict({"model": model, "order": _encode_order(order)})


def decode_train(content: RecordDict, embedding_dim: int) -> tuple[NDArray[np.float32], Order]:
    """Read what `encode_train` wrote: table (items, k) and order."""
    model = _record(content, "model", ArrayRecord)
    _exact_keys(model, {"item-table", *(set(model) & {"item-counts"})}, "model")
    return decode_array(model["item-table"], "item-table", "float32", (None, embedding_dim)), _decode_order(content)


def decode_item_counts(content: RecordDict, num_items: int) -> NDArray[np.float32]:
    """(items,) noised users per item that a model record carries."""
    model = _record(content, "model", ArrayRecord)
    _exact_keys(model, {"item-table", "item-counts"}, "model")
    return decode_array(model["item-counts"], "item-counts", "float32", (num_items,))


@dataclass(frozen=True)
class TrainReport:
    """What a SuperNode says of a round beside its uploads.

    Attributes
    ----------
    server_round : the round that it answers. skipped : users drawn that had nothing to learn from.
    loss_sum, positives : sum of the losses and of their positives, 0 where the loss was not asked for.
    """

    server_round: int
    skipped: int
    loss_sum: float
    positives: int


def encode_uploads(uploads: PrivatizedUploads, report: TrainReport) -> RecordDict:
    """SuperNode -> trusted nodes: what its clients upload.

    Raises
    ------
    TypeError for anything that did not come out of a privacy mechanism.
    """
    if type(uploads) is not PrivatizedUploads:
        raise TypeError(f"only PrivatizedUploads may leave a client, got {type(uploads).__name__}")
    arrays = {name: encode_array(getattr(uploads, name)) for name in _UPLOAD_DTYPES}
    return RecordDict(
        {
            "uploads": ArrayRecord(arrays),
            "cover": ConfigRecord({"cover-scale": uploads.cover_scale}),
            "train": MetricRecord(
                {
                    "server-round": report.server_round,
                    "skipped": report.skipped,
                    "loss-sum": report.loss_sum,
                    "positives": report.positives,
                }
            ),
        }
    )


@dataclass(frozen=True)
class DecodedUploads:
    """The good uploads of a reply, and why the others were refused (one reason for each bad client)."""

    uploads: Uploads
    report: TrainReport
    refused: list[str]


def decode_uploads(
    reply: Message,
    server_round: int,
    max_clients: int,
    num_items: int,
    embedding_dim: int,
    cover_scale: float,
    threads: int = 1,
) -> DecodedUploads:
    """Read what `encode_uploads` wrote.

    Parameters
    ----------
    server_round : the round that is open. max_clients : most clients that the reply may bring.
    num_items, embedding_dim : shape of the table. cover_scale : noise that simulated dense uploads still lack, or 0.

    Raises
    ------
    RefusedError if the reply as a whole cannot be used.
    """
    content = usable_content(reply)
    if set(content) != {"uploads", "cover", "train"}:
        raise RefusedError(f"train reply: records must be cover, train, uploads, got {sorted(content)}")
    report = _decode_train_report(_record(content, "train", MetricRecord), server_round)
    cover = _record(content, "cover", ConfigRecord)
    _exact_keys(cover, {"cover-scale"}, "cover")
    claimed = _value(cover, "cover-scale", float, "cover")
    if claimed not in (0.0, cover_scale):
        raise RefusedError(f"cover: cover-scale must be 0.0 or {cover_scale}, got {claimed!r}")
    most_positives = max_clients * num_items
    if report.skipped > max_clients or report.positives > most_positives:
        raise RefusedError(f"train: at most {max_clients} clients and {most_positives} positives, got {report}")
    arrays = _record(content, "uploads", ArrayRecord)
    _exact_keys(arrays, set(_UPLOAD_DTYPES), "uploads")
    nonces = decode_array(arrays["nonces"], "nonces", "uint64", (None,))
    if len(nonces) > max_clients:
        raise RefusedError(f"nonces: {len(nonces)} clients, at most {max_clients} were asked")
    pointer = decode_array(arrays["pointer"], "pointer", "int64", (len(nonces) + 1,))
    rows = decode_array(arrays["rows"], "rows", "int32", (None,))
    values = decode_array(arrays["values"], "values", "float32", (len(rows), embedding_dim))
    # Compared, not subtracted: differences of hostile pointers wrap around and look harmless.
    if pointer[0] != 0 or pointer[-1] != len(rows) or (pointer[1:] < pointer[:-1]).any():
        raise RefusedError(f"pointer: does not divide {len(rows)} rows among {len(nonces)} clients")
    faults, squares = np.zeros(len(nonces), np.uint8), np.zeros(len(nonces))

    def look(first: int) -> None:
        last = min(first + _CLIENTS_PER_TASK, len(faults))
        _find_faults(pointer, rows, values, num_items, LARGEST_VALUE, first, last, faults, squares)

    in_parallel(look, range(0, len(faults), _CLIENTS_PER_TASK), threads)
    if claimed != cover_scale:
        # Without cover the rows are all there is, so they must be the whole table: then no cover is left to draw.
        faults[(faults == 0) & (np.diff(pointer) != num_items)] = 6
    uploads = Uploads(nonces, pointer, rows, values, cover_scale).with_squares(squares)
    if faults.any():
        uploads = select_clients(uploads, np.flatnonzero(faults == 0))
    return DecodedUploads(uploads, report, [_FAULTS[int(fault)] for fault in faults if fault])


_FAULTS = {
    1: "upload without rows",
    2: "row ids out of range",
    3: "row ids repeated or unsorted",
    4: "values not finite",
    5: f"values beyond +-{LARGEST_VALUE:g}",
    6: "rows missing from a dense upload without cover noise",
}


@compiled
def _find_faults(
    pointer: Any,
    rows: Any,
    values: Any,
    num_items: int,
    largest: float,
    first: int,
    last: int,
    faults: Any,
    squares: Any,
) -> None:
    """Look at every element once; what it costs is reading them, so the squared norms are taken along for the checks."""
    limit = np.float32(largest)
    for j in range(first, last):
        total = 0.0
        if pointer[j] == pointer[j + 1]:
            faults[j] = 1
            continue
        before = -1
        for t in range(pointer[j], pointer[j + 1]):
            row = rows[t]
            if row < 0 or row >= num_items:
                faults[j] = 2
                break
            if row <= before:
                faults[j] = 3
                break
            before = row
            square = np.float32(0.0)
            for c in range(values.shape[1]):
                square += values[t, c] * values[t, c]
            total += float(square)
            # No element is beyond the limit if their squares' sum is not. This way round NaN is caught: it compares false.
            if square <= limit * limit:
                continue
            good: Any = 0
            finite = True
            for c in range(values.shape[1]):
                good += np.int32(abs(values[t, c]) <= limit)
                finite = finite and bool(np.isfinite(values[t, c]))
            if good < values.shape[1]:
                faults[j] = 5 if finite else 4
                break
        squares[j] = total


def select_clients(uploads: Uploads, chosen: NDArray[np.int64]) -> Uploads:
    """The uploads of some clients, copied."""
    lengths = np.diff(uploads.pointer)[chosen]
    pointer = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths, out=pointer[1:])
    entries = np.repeat(uploads.pointer[chosen] - pointer[:-1], lengths) + np.arange(pointer[-1])
    few = Uploads(uploads.nonces[chosen], pointer, uploads.rows[entries], uploads.values[entries], uploads.cover_scale)
    return few if uploads.squares is None else few.with_squares(uploads.squares[chosen])


def _decode_train_report(record: Mapping[str, Any], server_round: int) -> TrainReport:
    _exact_keys(record, {"server-round", "skipped", "loss-sum", "positives"}, "train")
    report = TrainReport(
        _value(record, "server-round", int, "train"),
        _value(record, "skipped", int, "train"),
        _value(record, "loss-sum", float, "train"),
        _value(record, "positives", int, "train"),
    )
    if report.server_round != server_round:
        raise RefusedError(f"train: reply to round {report.server_round} in round {server_round}")
    if report.skipped < 0 or report.positives < 0 or not np.isfinite(report.loss_sum):
        raise RefusedError(f"train: figures make no sense: {report}")
    return report


# ---- evaluation ------------------------------------------------------------------------------------------------------


def encode_evaluate(model: ArrayRecord, order: Order, parts: list[str]) -> RecordDict:
    """Server -> SuperNode: rank your users' `parts` (validation, test) with this table."""
    return RecordDict({"model": model, "order": _encode_order(order), "parts": ConfigRecord({"parts": parts})})


def decode_evaluate(content: RecordDict, embedding_dim: int) -> tuple[NDArray[np.float32], Order, list[str]]:
    """Read what `encode_evaluate` wrote."""
    table, order = decode_train(content, embedding_dim)
    parts = _record(content, "parts", ConfigRecord).get("parts")
    if not isinstance(parts, list) or not parts or not set(parts) <= {"validation", "test"}:
        raise RefusedError(f"parts must be some of validation and test, got {parts!r}")
    return table, order, parts


def encode_metric_sums(sums: Mapping[str, MetricSums]) -> RecordDict:
    """SuperNode -> server: sums over its users for each part."""
    return RecordDict({part: MetricRecord(dict(of_part.to_dict())) for part, of_part in sums.items()})


def decode_metric_sums(reply: Message) -> dict[str, MetricSums]:
    """Read what `encode_metric_sums` wrote; part -> sums."""
    content = usable_content(reply)
    if not content or not set(content) <= {"validation", "test"}:
        raise RefusedError(f"evaluate reply: records must be some of test, validation, got {sorted(content)}")
    try:
        return {part: MetricSums.from_dict(dict(_record(content, part, MetricRecord))) for part in content}
    except ValueError as error:
        raise RefusedError(f"evaluate reply: {error}") from None
