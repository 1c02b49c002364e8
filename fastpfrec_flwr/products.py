"""Small matrix products inside compiled code, at the speed of the processor's vector units.

A user's step multiplies matrices of some twenty rows: there a BLAS spends more on packing and dispatch than on arithmetic (18 to
40 GFlop/s on a core that can do 75; these do 50 to 75). Each kernel keeps a tile of the result in vector registers. Written in LLVM
vector types, so every processor that LLVM knows gets its own instructions. Sums run in the order of the depth, so a row of the
result does not depend on the other rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastpfrec_flwr.compiling import compiled

# Widths of all matrices that these kernels write are multiples of this.
WIDTH = 16
NARROW = 8


def _tile(rows: int, width: int, accumulate: bool) -> Any:
    """A kernel for one tile: out[r, :width] (+)= sum_d a[r, d] b[d, :width], r < rows.

    All arrays are float32, C-contiguous and addressed by element: `a_start + r a_row + d a_step`, `b_start + d b_row`,
    `out_start + r out_row`.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        typing_context: Any,
        a: Any,
        a_start: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_start: Any,
        b_row: Any,
        depth: Any,
        out: Any,
        out_start: Any,
        out_row: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(a, size, size, size, b, size, size, size, out, size, size)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a_data, b_data, out_data = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 4, 8)
            )
            _, a_start, a_row, a_step, _, b_start, b_row, depth, _, out_start, out_row = arguments
            vector = ir.VectorType(ir.FloatType(), width)
            nothing = ir.Constant(vector, ir.Undefined)
            first = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)

            def times(value: Any, factor: int) -> Any:
                return builder.mul(value, ir.Constant(value.type, factor))

            def load(pointer: Any) -> Any:
                value = builder.load(pointer)
                value.align = 4
                return value

            places = [
                builder.bitcast(builder.gep(out_data, [builder.add(out_start, times(out_row, r))]), vector.as_pointer())
                for r in range(rows)
            ]
            sums = [cgutils.alloca_once(builder, vector) for _ in range(rows)]
            for place, total in zip(places, sums, strict=True):
                builder.store(load(place) if accumulate else ir.Constant(vector, [0.0] * width), total)
            with cgutils.for_range(builder, depth, intp=depth.type) as loop:
                row = builder.add(b_start, builder.mul(loop.index, b_row))
                b_row_values = load(builder.bitcast(builder.gep(b_data, [row]), vector.as_pointer()))
                column = builder.add(a_start, builder.mul(loop.index, a_step))
                for r, total in enumerate(sums):
                    factor = builder.load(builder.gep(a_data, [builder.add(column, times(a_row, r))]))
                    lane = builder.insert_element(nothing, factor, ir.Constant(ir.IntType(32), 0))
                    product = builder.fmul(
                        builder.shuffle_vector(lane, nothing, first), b_row_values, flags=("contract",)
                    )
                    builder.store(builder.fadd(product, builder.load(total), flags=("contract",)), total)
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(total), place).align = 4
            return context.get_dummy_value()

        return signature, generate

    return tile


_narrow_rows, _narrow_row = _tile(8, NARROW, False), _tile(1, NARROW, False)
_wide_rows, _wide_row = _tile(4, WIDTH, False), _tile(1, WIDTH, False)
_adding_rows, _adding_row = _tile(4, WIDTH, True), _tile(1, WIDTH, True)


@compiled
def _multiply_wide(a: Any, lda: int, b: Any, column: int, width: int, rows: int, depth: int, out: Any) -> None:
    """Sixteen columns of a product, from `column` on."""
    row = 0
    while row + 4 <= rows:
        _wide_rows(a, row * lda, lda, 1, b, column, width, depth, out, row * width + column, width)
        row += 4
    while row < rows:
        _wide_row(a, row * lda, lda, 1, b, column, width, depth, out, row * width + column, width)
        row += 1


@compiled
def multiply_narrow(a: Any, b: Any, rows: int, depth: int, width: int, out: Any) -> None:
    """out[:rows, :width] = a[:rows, :depth] b[:depth, :width].

    Parameters
    ----------
    a : (>= rows, lda) float32. b : (>= depth, width) float32, `width` a multiple of 8. out : (>= rows, width) float32.
    """
    lda = a.shape[1]
    column = 0
    # Sixteen columns at a time share their loads of `a` better than eight.
    while column + WIDTH <= width:
        _multiply_wide(a, lda, b, column, width, rows, depth, out)
        column += WIDTH
    if column < width:
        row = 0
        while row + 8 <= rows:
            _narrow_rows(a, row * lda, lda, 1, b, column, width, depth, out, row * width + column, width)
            row += 8
        while row < rows:
            _narrow_row(a, row * lda, lda, 1, b, column, width, depth, out, row * width + column, width)
            row += 1


@compiled
def multiply(a: Any, b: Any, rows: int, lda: int, depth: int, out: Any) -> None:
    """out[:rows] = a[:rows, :depth] b[:depth].

    Parameters
    ----------
    a : float32, contiguous, its rows `lda` apart. b : (>= depth, width), out : (>= rows, width) float32, `width` a multiple of 16.
    """
    width = b.shape[1]
    for column in range(0, width, WIDTH):
        _multiply_wide(a, lda, b, column, width, rows, depth, out)


@compiled
def add_transposed_product(a: Any, b: Any, rows: int, lda: int, depth: int, out: Any) -> None:
    """out[:rows] += a[:depth, :rows]^T b[:depth]; shapes as for `multiply`, the rows of `a` being the depth here."""
    width = b.shape[1]
    for column in range(0, width, WIDTH):
        row = 0
        while row + 4 <= rows:
            _adding_rows(a, row, 1, lda, b, column, width, depth, out, row * width + column, width)
            row += 4
        while row < rows:
            _adding_row(a, row, 1, lda, b, column, width, depth, out, row * width + column, width)
            row += 1
