"""Honest messages spoiled: bytes, sizes, types, keys and figures. Every edit comes from the generator that it is given."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.hostile import COVER, ITEMS

CLIENTS = 3
NUMBERS = [
    0, 1, -1, 2, 3, 5, 7, ITEMS, ITEMS + 1, CLIENTS + 1, 255, 256, 2**15, 2**31 - 1, 2**31, -(2**31), 10**12, 2**53, 2**62,
    2**63 - 1, -(2**63),
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, COVER, -COVER, 1e-45, 3e38, 1e300, float("inf"), float("-inf"), float("nan")]
TOKENS = [
    b"(1000000000000, 4)", b"(1000000000000,)", b"(-1,)", b"()", b"True", b"None", b"'|O'", b"'<f8'", b"'<f4'", b"'descr'",
    b"'shape'", b"'fortran_order'", b"[", b"(", b"-", b"{", b"\\x00", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"PK\x03\x04",
    b"\x80\x04\x95", b"__import__('os')", b"9" * 40, b"9" * 400, b"(" * 90, b"\xff" * 8,
]  # fmt: skip
DTYPES = [
    "float32",
    "float64",
    "float16",
    "int32",
    "int64",
    "uint64",
    "bool",
    "object",
    "complex64",
    "U4",
    "",
    "x" * 500,
]
STYPES = ["numpy.ndarray"] * 6 + ["", "torch.tensor", "pickle"]


def spoil_bytes(rng: Random, data: bytes) -> bytes:
    """A few edits: bits, bytes, numbers, tokens, cuts, repeats."""
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        place = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 128) + 1)
        kind = rng.randrange(8)
        if kind == 0 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place] + rng.randbytes(rng.randrange(9)) + data[place + rng.randrange(9) :]
        elif kind == 2:
            data = data[:place] + rng.choice(TOKENS) + data[place + rng.randrange(24) :]
        elif kind == 3:
            data = data[:place]
        elif kind == 4:
            data = data + data[place:]
        elif kind == 5:
            number = struct.pack("<q", rng.choice(NUMBERS))
            data = data[:place] + number + data[place + 8 :]
        elif kind == 6:
            number = struct.pack("<f", rng.choice(FLOATS[:7] + FLOATS[8:]))
            data = data[:place] + number + data[place + 4 :]
        else:
            data = data[:place] + data[place + rng.randrange(1, 64) :]
    return data


def spoil_shape(rng: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Other sizes, more of them, fewer."""
    sizes = list(shape)
    if sizes and rng.random() < 0.7:
        sizes[rng.randrange(len(sizes))] = rng.choice(NUMBERS)
    elif rng.random() < 0.5:
        sizes.append(rng.choice(NUMBERS))
    elif sizes:
        sizes.pop()
    return tuple(sizes)


def spoil_array(rng: Random, array: Array, strange: list[bytes]) -> Array:
    """An array whose parts do not fit any more; `strange` are the bytes of others."""
    dtype, shape, stype, data = array.dtype, tuple(array.shape), array.stype, array.data
    kind = rng.randrange(6)
    if kind == 0:
        dtype = rng.choice(DTYPES)
    elif kind == 1:
        shape = spoil_shape(rng, shape)
    elif kind == 2:
        stype = rng.choice(STYPES)
    elif kind == 3:
        data = rng.choice(strange)
    if kind >= 3:
        data = spoil_bytes(rng, data)
    if kind == 5:
        # Sizes of header and record agree, as a liar would see to.
        shape = spoil_shape(rng, shape)
        descr = np.dtype(dtype if dtype in DTYPES[:7] else "float32").str
        data = _npy(descr, shape, data[128:])
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def _npy(descr: str, shape: tuple[int, ...], body: bytes) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def spoil_numbers(rng: Random, array: Array) -> Array:
    """An array that fits, with numbers in it that do not."""
    try:
        values = array.numpy().copy()
    except Exception:  # spoiled before
        return array
    flat = values.reshape(-1)
    for _ in range(rng.choice([1, 1, 2, 5])):
        if len(flat):
            number = rng.choice(FLOATS) if flat.dtype.kind == "f" else rng.choice(NUMBERS)
            if flat.dtype.kind != "f":
                bits = 8 * flat.dtype.itemsize
                number = struct.unpack("<q", struct.pack("<Q", number & (2**64 - 1)))[0] if bits == 64 else number
                number = np.array(number & (2**bits - 1), np.uint64).astype(flat.dtype)
            with np.errstate(all="ignore"):
                flat[rng.randrange(len(flat))] = number
    return Array(values)


def spoil_record(rng: Random, record: Any, strange: list[bytes]) -> Any:
    """A record with another key, one less, or another value."""
    found = dict(record.items())
    keys = sorted(found)
    kind = rng.randrange(4)
    if kind == 0 and keys:
        found.pop(rng.choice(keys))
    elif kind == 1:
        found[rng.choice(["", "more", "x" * 1000, "a\nb"])] = found[rng.choice(keys)] if keys else 1
    elif keys:
        key = rng.choice(keys)
        if isinstance(record, ArrayRecord):
            change = spoil_numbers if rng.random() < 0.5 else None
            found[key] = change(rng, found[key]) if change else spoil_array(rng, found[key], strange)
        else:
            choices: list[Any] = [*NUMBERS, *FLOATS, [], [1, 2], [0.5] * 50]
            if isinstance(record, ConfigRecord):
                choices += [True, "", "x" * 2000, "\x1b[2J\n", b"", ["a"], ["test", "test"]]
            found[key] = rng.choice(choices)
    if isinstance(record, ArrayRecord):
        found = {key: value for key, value in found.items() if isinstance(value, Array)}
    return type(record)(found)


def spoil_content(rng: Random, content: RecordDict, strange: list[bytes]) -> RecordDict:
    """One or two records spoiled, dropped, added or exchanged."""
    found = dict(content.items())
    for _ in range(rng.choice([1, 1, 1, 2])):
        names = sorted(found)
        kind = rng.randrange(12)
        if kind == 0 and names:
            found.pop(rng.choice(names))
        elif kind == 1:
            found[rng.choice(["more", "", "refusal", "uploads"])] = rng.choice(
                [ConfigRecord({"reason": "x" * 5000}), MetricRecord({"reason": 1}), ArrayRecord({}), ConfigRecord({})]
            )
        elif names:
            name = rng.choice(names)
            found[name] = spoil_record(rng, found[name], strange)
    return RecordDict(found)
