"""Many arrays in one compiled call, by their addresses.

Uploads stay where they arrived, one array per message, and a compiled function takes a fixed number of arrays. Calling it once
per array and block would cost more in handing the interpreter lock around than the sums themselves. Whoever takes an address
must keep the array alive until the call returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray


@intrinsic  # type: ignore[untyped-decorator]
def floats_at(typing_context: Any, address: Any) -> Any:
    """Pointer to float32 for `numba.carray`, from an address (int64)."""
    pointer = types.CPointer(types.float32)
    return pointer(types.int64), lambda context, builder, signature, values: builder.inttoptr(
        values[0], context.get_value_type(signature.return_type)
    )


@intrinsic  # type: ignore[untyped-decorator]
def ints_at(typing_context: Any, address: Any) -> Any:
    """Pointer to int32 for `numba.carray`, from an address (int64)."""
    pointer = types.CPointer(types.int32)
    return pointer(types.int64), lambda context, builder, signature, values: builder.inttoptr(
        values[0], context.get_value_type(signature.return_type)
    )


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address (int64) ahead of its use; harmless whatever the address is."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(flag, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(values[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def address_of(array: NDArray[Any], dtype: str) -> int:
    """Where the elements of a contiguous array lie.

    Raises
    ------
    TypeError if it has another type or gaps: what reads it would read something else.
    """
    if array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
        raise TypeError(f"array must be contiguous {dtype}, got {array.dtype} with strides {array.strides}")
    return int(array.__array_interface__["data"][0])
