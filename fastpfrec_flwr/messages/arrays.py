"""Arrays as messages carry them: `.npy`, what Flower itself uses, built and read without a second copy."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from fastpfrec_flwr.messages.records import RefusedError
from fastpfrec_flwr.privacy.eight_bits import LARGEST_EXPONENT, SMALLEST_EXPONENT
from fastpfrec_flwr.wire import MAGIC, message_of, npy_header

NPY = "numpy.ndarray"
_MAX_HEADER = 1024
# What NumPy writes for a plain dtype, and no more. `ast.literal_eval` would read it too, but in Python 3.11 it fails
# now and then where two threads use it at a time (cpython issue 106905), and it reads far more than an array's header.
_HEADER = re.compile(
    rb"\{'descr': '([^']{1,16})', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,200})\)(?:, )?\} *\n?"
)
_SIZES = re.compile(rb"(?:[0-9]{1,20}, )*[0-9]{1,20},?|")


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
    text = data[10 : 10 + length]
    header = _HEADER.fullmatch(text)
    if header is None or not text.isascii() or _SIZES.fullmatch(header[3]) is None:
        raise RefusedError(f"{name}: npy header cannot be read")
    found_dtype = header[1].decode("ascii")
    fortran = header[2] == b"True"
    found_shape = tuple(int(size) for size in header[3].split(b",") if size)
    wanted = np.dtype(dtype)
    if found_dtype != wanted.str or array.dtype != dtype:
        raise RefusedError(f"{name}: dtype {array.dtype!r} / {found_dtype!r} is not {dtype}")
    if tuple(array.shape) != found_shape:
        raise RefusedError(f"{name}: shape {found_shape!r} is not the declared {tuple(array.shape)!r}")
    fits = len(found_shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, found_shape, strict=True)
    )
    if not fits or fortran:
        raise RefusedError(f"{name}: shape {found_shape!r} is not {shape!r} in C order")
    count = 1
    for n in found_shape:
        count *= n
    if count * wanted.itemsize != len(data) - 10 - length:
        raise RefusedError(f"{name}: {len(data) - 10 - length} bytes do not make {count} elements of {dtype}")
    return np.frombuffer(data, wanted, offset=10 + length).reshape(found_shape)


def decode_exponents(array: Array, name: str, rows: int) -> NDArray[np.int8]:
    """Read the (rows,) exponents of values in eight bits; RefusedError if any is one that `to_eight_bits` never gives."""
    exponents: NDArray[np.int8] = decode_array(array, name, "int8", (rows,))
    if len(exponents) and not (exponents.min() >= SMALLEST_EXPONENT and exponents.max() <= LARGEST_EXPONENT):
        raise RefusedError(f"{name}: must be {SMALLEST_EXPONENT} to {LARGEST_EXPONENT}")
    return exponents
