"""Compiled parts of the central graph models, for the processor: product with the graph, BPR with its gradient, negatives.

Rows are gathered from tables that are larger than a core's own caches, so a product waits for memory: asking for the rows of later
edges early makes it a third faster. Nothing here depends on the number of threads: a product's rows belong to one task each, and
where sums meet in a row, tasks share out the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import next_bits, seed_lanes, stream_value

_AHEAD = 16  # edges; 8 to 16 are the best, 0 costs half as much again
_LINE = 16  # float32 in a cache line
_S32 = np.uint64(32)
_ATTEMPTS = 100  # a user with the whole catalogue keeps the last draw
NOISE_ROWS = 256  # of one stream


@intrinsic  # type: ignore[untyped-decorator]
def _ask_for(typing_context: Any, values: Any, start: Any) -> Any:
    """Start to load the cache line of a flat array's element, and go on."""
    signature = types.void(values, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [place, *(ir.Constant(word, each) for each in (0, 3, 1))])  # to read, keep, data
        return context.get_dummy_value()

    return signature, generate


@compiled
def multiply_rows(
    pointer: Any, columns: Any, values: Any, dense: Any, add: bool, first: int, last: int, out: Any
) -> None:
    """out[first:last] = (M dense)[first:last] of a sparse M, or += with `add`.

    Parameters
    ----------
    pointer, columns, values : M as CSR: (rows + 1,) int64, (entries,) int32, (entries,) float32.
    dense, out : (columns, k), (rows, k) float32, contiguous.
    """
    width = dense.shape[1]
    flat = dense.reshape(-1)
    end = columns.shape[0] - 1
    for r in range(first, last):
        row = out[r]
        if not add:
            for c in range(width):
                row[c] = np.float32(0.0)
        for e in range(pointer[r], pointer[r + 1]):
            later = np.int64(columns[min(e + _AHEAD, end)]) * width
            for c in range(0, width, _LINE):
                _ask_for(flat, later + c)
            value = values[e]
            other = dense[columns[e]]
            for c in range(width):
                row[c] += value * other[c]


@compiled
def bpr_slopes(rows: Any, users: Any, items: Any, negatives: Any, first: int, last: int, slopes: Any) -> float:
    """Sum of -ln sigma(u . (i - j)) over triples [first, last), and its slope in u . (i - j) for each.

    Parameters
    ----------
    rows : (nodes, k) float32. users, items, negatives : (triples,) int32 rows of the three. slopes : (triples,) float32, receives.
    """
    width = rows.shape[1]
    flat = rows.reshape(-1)
    end = users.shape[0] - 1
    total = 0.0
    for t in range(first, last):
        later = min(t + _AHEAD, end)
        i_later, j_later = np.int64(items[later]) * width, np.int64(negatives[later]) * width
        for c in range(0, width, _LINE):
            _ask_for(flat, i_later + c)
            _ask_for(flat, j_later + c)
        u, i, j = rows[users[t]], rows[items[t]], rows[negatives[t]]
        x = np.float32(0.0)
        for c in range(width):
            x += u[c] * (i[c] - j[c])
        small = np.exp(-abs(x))
        total += max(-x, np.float32(0.0)) + np.log1p(small)
        slopes[t] = -(small if x >= 0 else np.float32(1.0)) / (np.float32(1.0) + small)
    return total


@compiled
def add_bpr_gradient(
    rows: Any, users: Any, items: Any, negatives: Any, slopes: Any, scale: float, first: int, last: int, out: Any
) -> None:
    """Columns [first, last) of the gradient of `scale` times the sum of all triples, added to `out` (nodes, k) float32."""
    width = rows.shape[1]
    flat, flat_out = rows.reshape(-1), out.reshape(-1)
    end = users.shape[0] - 1
    for t in range(users.shape[0]):
        later = min(t + _AHEAD, end)
        i_later, j_later = np.int64(items[later]) * width, np.int64(negatives[later]) * width
        for c in range(first, last, _LINE):
            _ask_for(flat, i_later + c)
            _ask_for(flat, j_later + c)
            _ask_for(flat_out, i_later + c)
            _ask_for(flat_out, j_later + c)
        slope = slopes[t] * np.float32(scale)
        u, i, j = rows[users[t]], rows[items[t]], rows[negatives[t]]
        u_out, i_out, j_out = out[users[t]], out[items[t]], out[negatives[t]]
        for c in range(first, last):
            lift = slope * u[c]
            u_out[c] += slope * (i[c] - j[c])
            i_out[c] += lift
            j_out[c] -= lift


@compiled
def draw_missing(
    key: Any, users: Any, pointer: Any, owned: Any, lowest: int, count: int, first: int, last: int, out: Any
) -> None:
    """One of `count` ids from `lowest` on that each user has not, uniform, by rejection, into out[first:last].

    Parameters
    ----------
    key : uint64 stream key; every draw has a stream of its own. users : (draws,) int32.
    pointer, owned : each user's ids, ascending: (>= users + 1,) int64, int32. out : (draws,) int32.
    """
    for t in range(first, last):
        own = stream_value(key, np.uint64(t))
        start, end = pointer[users[t]], pointer[users[t] + 1]
        drawn = np.int64(0)
        for attempt in range(_ATTEMPTS):
            bits = stream_value(own, np.uint64(attempt))
            drawn = lowest + np.int64(((bits >> _S32) * np.uint64(count)) >> _S32)
            place = start + np.searchsorted(owned[start:end], drawn)
            if place == end or owned[place] != drawn:
                break
        out[t] = drawn


@compiled
def add_noise(key: Any, rows: Any, length: float, first: int, last: int) -> None:
    """Add to each of rows [first, last) a random direction with the row's own signs, of this length.

    Parameters
    ----------
    key : uint64 stream key; `first` names a stream of its own. rows : (n, k) float32; a zero stays one.
    """
    width = rows.shape[1]
    state = seed_lanes(stream_value(key, np.uint64(first)))
    bits = np.empty((width + 15) // 16 * 16, np.uint32)
    drawn = np.empty(width, np.float32)
    for r in range(first, last):
        next_bits(state, bits)
        square = np.float32(0.0)
        for c in range(width):
            drawn[c] = np.float32(np.int32(bits[c] >> np.uint32(1))) + np.float32(1.0)
            square += drawn[c] * drawn[c]
        scale = np.float32(length) / np.float32(np.sqrt(square))
        row = rows[r]
        for c in range(width):
            sign = np.float32(row[c] > np.float32(0.0)) - np.float32(row[c] < np.float32(0.0))
            row[c] += sign * drawn[c] * scale
