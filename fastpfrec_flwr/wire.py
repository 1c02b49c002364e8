"""Arrays that lie inside their own message from the start, so that sending them copies nothing.

A round's uploads are tens of megabytes. Flower wants `bytes`; filling an array and turning it into bytes writes each of them
twice. Here the bytes come first and the array is a view of their payload, in the `.npy` format that Flower itself uses.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"\x93NUMPY\x01\x00"
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Everything of a version-1 `.npy` file before the elements, padded to a multiple of 64 bytes."""
    header = repr({"descr": dtype.str, "fortran_order": False, "shape": shape}).encode()
    padding = -(len(MAGIC) + 2 + len(header) + 1) % 64
    header += b" " * padding + b"\n"
    return MAGIC + struct.pack("<H", len(header)) + header


class _Payload:
    """The elements inside a message, and the message that their memory belongs to."""

    def __init__(self, message: bytes, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.message = message
        start = int(np.frombuffer(message, np.uint8).ctypes.data)
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": shape,
            "data": (start + offset, False),
        }


def sendable(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array with undefined elements whose message is already around it; `message_of` takes it once it is filled."""
    wanted = np.dtype(dtype)
    header = npy_header(wanted, shape)
    size = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
    # The one case in which the C API lets bytes be written to: made without content and not yet seen by anybody.
    message = _new_bytes(None, len(header) + size)
    ctypes.memmove(int(np.frombuffer(message, np.uint8).ctypes.data), header, len(header))
    return np.asarray(_Payload(message, len(header), wanted, shape))


def message_of(array: NDArray[Any]) -> bytes | None:
    """The message around an array that `sendable` made, None for any other; the array is read-only from here on."""
    if not isinstance(array.base, _Payload):
        return None
    message = array.base.message
    header = npy_header(array.dtype, array.shape)
    if not array.flags.c_contiguous or len(message) != len(header) + array.nbytes or not message.startswith(header):
        return None
    array.flags.writeable = False
    return message
