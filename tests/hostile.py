"""SuperNodes with one client each, one of which misbehaves: the bad uploads of the list, each with what it must be refused for."""

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, TrainReport
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism, PrivatizedUploads
from fastpfrec_flwr.randomness import derive_generator

ITEMS, K, ROWS, COVER = 40, 4, 5, 0.1
HUGE = 10**12
Spoil = Callable[[RecordDict], RecordDict]


@dataclass
class Changes:
    """What training hands to the mechanism."""

    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def honest_upload(partition: int, server_round: int, size: float = 1.0) -> PrivatizedUploads:
    """One client's upload: `ROWS` rows, changed by about `size`."""
    generator = derive_generator(3, "upload", partition, server_round)
    rows = np.sort(generator.choice(ITEMS, ROWS, replace=False)).astype(np.int32)
    values = (size * generator.standard_normal((ROWS, K))).astype(np.float32)
    mechanism = LaplaceMechanism(Clip(0, 0), COVER, dense=True)
    return mechanism.privatize(
        Changes(rows, np.array([0, ROWS]), values),
        np.array([nonce_of(partition, server_round)], np.uint64),
        np.array([partition + 1], np.uint64),
        ITEMS,
    )


def nonce_of(partition: int, server_round: int) -> int:
    """The nonce that an honest client draws."""
    return int(derive_generator(3, "nonce", partition, server_round).integers(0, 2**64, dtype=np.uint64))


def honest_content(partition: int, server_round: int, table_version: int = 0, size: float = 1.0) -> RecordDict:
    """An honest reply."""
    return messages.encode_uploads(
        honest_upload(partition, server_round, size), TrainReport(server_round, 0, 1.5, 3, 0, table_version)
    )


def description(partition: int) -> Description:
    """What one of these SuperNodes says of itself."""
    return Description(partition, 1, ITEMS, "catalogue", "data", "name")


class Cohort:
    """The SuperNodes as a ClientApp; `faults` maps a partition to what becomes of its honest reply."""

    def __init__(self, faults: dict[int, Callable[[Message, RecordDict], RecordDict]], size: float = 1.0) -> None:
        self.faults, self.size = faults, size

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a train message."""
        order = messages.decode_query(message.content)
        partition = int(context.node_config["partition-id"])
        content = honest_content(partition, order.server_round, order.table_version, self.size)
        if partition in self.faults:
            content = self.faults[partition](message, content)
        return Message(content, reply_to=message)


# ---- how an upload is spoiled ----------------------------------------------------------------------------------------


def array(name: str, change: Callable[[np.ndarray], Any]) -> Spoil:
    """The array `name` is what `change` makes of it."""

    def spoil(content: RecordDict) -> RecordDict:
        content["uploads"][name] = Array(np.asarray(change(content["uploads"][name].numpy().copy())))
        return content

    return spoil


def one_value(value: float) -> Spoil:
    """One coordinate is this."""

    def change(values: np.ndarray) -> np.ndarray:
        values[2, 1] = value
        return values

    return array("values", change)


def raw(name: str, **parts: Any) -> Spoil:
    """The array `name` with other `dtype`, `shape`, `stype` or `data` (bytes, or a function of the honest array)."""

    def spoil(content: RecordDict) -> RecordDict:
        old = content["uploads"][name]
        data = parts.get("data", old.data)
        content["uploads"][name] = Array(
            dtype=parts.get("dtype", old.dtype), shape=parts.get("shape", tuple(old.shape)),
            stype=parts.get("stype", old.stype), data=data(old) if callable(data) else data,
        )  # fmt: skip
        return content

    return spoil


def npy(descr: str, shape: tuple[int, ...], body: bytes = b"") -> bytes:
    """A version-1 npy file that claims whatever it is told to."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def npz(old: Array) -> bytes:
    """The array in a zip file."""
    file = io.BytesIO()
    np.savez(file, old.numpy())
    return file.getvalue()


def arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Spoil:
    """The record of arrays is what `change` makes of it."""

    def spoil(content: RecordDict) -> RecordDict:
        content["uploads"] = ArrayRecord(change(dict(content["uploads"].items())))
        return content

    return spoil


def two_records(content: RecordDict) -> RecordDict:
    """A second array record."""
    content["more"] = ArrayRecord(dict(content["uploads"].items()))
    return content


def figure(key: str, value: Any) -> Spoil:
    """A figure of the train report is this."""

    def spoil(content: RecordDict) -> RecordDict:
        content["train"][key] = value
        return content

    return spoil


def renamed(found: dict[str, Array]) -> dict[str, Array]:
    """`values` under another name."""
    return {("weights" if name == "values" else name): each for name, each in found.items()}


def rows(*numbers: int) -> Spoil:
    """The row ids are these."""
    return array("rows", lambda _: np.array(numbers, np.int32))


def more_rows_than_items(content: RecordDict) -> RecordDict:
    """Every row of the table and one more."""
    count = ITEMS + 1
    content["uploads"]["rows"] = Array(np.arange(count, dtype=np.int32))
    content["uploads"]["values"] = Array(np.zeros((count, K), np.float32))
    content["uploads"]["pointer"] = Array(np.array([0, count]))
    return content


def of_dtype(dtype: str) -> Spoil:
    """The values as another type."""
    return array("values", lambda values: values.astype(dtype))


BODY = np.zeros((ROWS, K), np.float32).tobytes()
SHAPE = r"values: shape \({}\) is not"

# The list of bad uploads, in its order: name -> (how, the reason that the round's record must give).
BAD: dict[str, tuple[Spoil, str]] = {
    "NaN in one coordinate": (one_value(np.nan), "^values not finite"),
    "+Inf": (one_value(np.inf), "^values not finite"),
    "-Inf": (one_value(-np.inf), "^values not finite"),
    "3e38": (one_value(3e38), r"^values beyond \+-4096"),
    "wrong number of rows": (array("values", lambda v: v[:-1]), SHAPE.format("4, 4")),
    "(1, k) that would broadcast": (array("values", lambda v: v[:1]), SHAPE.format("1, 4")),
    "scalar": (array("values", lambda v: np.float32(1)), SHAPE.format("")),
    "transposed": (array("values", lambda v: v.T.copy()), SHAPE.format("4, 5")),
    "flat": (array("values", np.ravel), SHAPE.format("20,")),
    "empty": (array("values", lambda v: v[:0]), SHAPE.format("0, 4")),
    "int64": (of_dtype("int64"), "values: dtype 'int64'"),
    "bool": (of_dtype("bool"), "values: dtype 'bool'"),
    "float64": (of_dtype("float64"), "values: dtype 'float64'"),
    "complex": (of_dtype("complex64"), "values: dtype 'complex64'"),
    "string": (of_dtype("U4"), "values: dtype '<U4'"),
    "object": (raw("values", dtype="object", data=npy("|O", (ROWS, K), pickle.dumps([1]))), "values: dtype 'object'"),
    "pickle in data": (raw("values", data=lambda old: pickle.dumps(old.numpy())), "not a version-1 npy"),
    "npz in data": (raw("values", data=npz), "not a version-1 npy"),
    "truncated npy in data": (raw("values", data=lambda old: old.data[:-7]), "bytes do not make 20 elements"),
    "npy header of 10^12 rows": (
        raw("values", shape=(HUGE, K), data=npy("<f4", (HUGE, K), BODY)), r"values: shape \(1000000000000, 4\)",
    ),
    "npy header of 10^12 row ids": (
        raw("rows", shape=(HUGE,), data=npy("<i4", (HUGE,), b"\0" * 20)), "bytes do not make 1000000000000 elements",
    ),
    "unknown stype": (raw("values", stype="torch.tensor"), "serialisation 'torch.tensor'"),
    "missing key": (arrays(lambda found: {n: a for n, a in found.items() if n != "rows"}), r"missing keys \['rows'\]"),
    "extra key": (arrays(lambda found: found | {"more": found["values"]}), r"unknown keys \['more'\]"),
    "renamed key": (arrays(renamed), r"missing keys \['values'\], unknown keys \['weights'\]"),
    "two array records": (two_records, "records must be cover, train, uploads"),
    "count of 0": (figure("positives", 0), "figures make no sense"),
    "count of -1": (figure("positives", -1), "figures make no sense"),
    "count of NaN": (figure("positives", float("nan")), "positives must be int, got nan"),
    "count of 10^12": (figure("positives", HUGE), "at most .* positives"),
    "count that is a list": (figure("positives", [3, 3]), r"positives must be int, got \[3, 3\]"),
    "wrong round number": (figure("server-round", 7), "reply to round 7 in round"),
    "row ids out of range": (rows(0, 1, 2, 3, ITEMS), "^row ids out of range"),
    "row ids below zero": (rows(-1, 1, 2, 3, 4), "^row ids out of range"),
    "row ids repeated": (rows(0, 1, 2, 2, 3), "^row ids repeated or unsorted"),
    "row ids unsorted": (rows(4, 3, 2, 1, 0), "^row ids repeated or unsorted"),
    "more rows than the table has": (more_rows_than_items, "^row ids out of range"),
}  # fmt: skip


def spoiled(spoil: Spoil) -> Callable[[Message, RecordDict], RecordDict]:
    """A fault of a `Cohort` out of a way to spoil a content."""
    return partial(_apply, spoil)


def _apply(spoil: Spoil, message: Message, content: RecordDict) -> RecordDict:
    return spoil(content)
