"""Compiled draws from keyed streams: distinct negatives, Laplace and normal noise.

A stream is a 64-bit key (`randomness.stream_key`). Single values come from SplitMix64 with random access; noise in bulk from
16 interleaved xoshiro128++ generators (Blackman and Vigna, ACM TOMS 2021) seeded by that SplitMix64, because they vectorise
without 64-bit multiplication. A draw depends on its key alone: not on the thread, the batch or the order. Logarithms are short
polynomials written so that the compiler vectorises them: that is what makes noise on every uploaded coordinate cheap.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.randomness import GOLDEN

BLOCK = 1024
_LANES = 16

_GOLDEN = np.uint64(GOLDEN)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_LN2 = np.float32(math.log(2.0))
_SQRT2 = np.float32(math.sqrt(2.0))


@compiled
def _mix(value: Any) -> Any:
    """SplitMix64's output function of a uint64."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@compiled
def stream_value(key: Any, index: Any) -> Any:
    """Value number `index` (uint64) of stream `key`: a uint64."""
    return _mix(key + (index + np.uint64(1)) * _GOLDEN)


@compiled
def fill_user_keys(key: Any, users: Any, keys: Any) -> None:
    """Keys ((users,) uint64) of one sub-stream of `key` (uint64) for each of `users` (int64), see `randomness.user_stream_keys`."""
    for i in range(users.shape[0]):
        keys[i] = _mix(key ^ _mix(np.uint64(users[i])))


@compiled
def draw_unmarked(key: Any, marks: Any, num_items: int, mark: int, drawn: Any) -> None:
    """Draw distinct items uniformly from those with `marks[item] == 0`, by rejection, and mark them.

    Parameters
    ----------
    key : uint64 stream key.
    marks : (>= num_items,) uint8; at least `len(drawn)` of the first `num_items` are zero.
    mark : what the drawn items are marked with.
    drawn : (count,) int, receives the items in the order drawn.
    """
    index = np.uint64(0)
    items = np.uint64(num_items)
    count = 0
    while count < drawn.shape[0]:
        bits = stream_value(key, index)
        index += np.uint64(1)
        # The multiply-shift map of 32 bits to [0, items) is off uniform by less than items / 2^32.
        for _ in range(2):
            if count < drawn.shape[0]:
                item = np.int64(((bits & _LOW) * items) >> _S32)
                bits >>= _S32
                if marks[item] == 0:
                    marks[item] = mark
                    drawn[count] = item
                    count += 1


@compiled
def seed_lanes(key: Any) -> Any:
    """State of the bulk generator of stream `key`: (4, lanes) uint32."""
    state = np.empty((4, _LANES), np.uint32)
    for half in range(2):
        for lane in range(_LANES):
            value = stream_value(key, np.uint64(half * _LANES + lane))
            state[2 * half, lane] = np.uint32(value & _LOW)
            state[2 * half + 1, lane] = np.uint32(value >> _S32)
    return state


@intrinsic  # type: ignore[untyped-decorator]
def _generate(typing_context: Any, state: Any, out: Any, blocks: Any) -> Any:
    """`blocks` times the next value of each lane (xoshiro128++) into `out`, the state in vector registers all the while.

    As a loop over arrays it takes 1.7 times as long, because each value's state goes through memory.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(32), _LANES)
        state_data, out_data = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1)
        )

        def at(data: Any, block: Any) -> Any:
            """Where the block of lanes with this number lies."""
            start = builder.mul(block, ir.Constant(block.type, _LANES))
            return builder.bitcast(builder.gep(data, [start]), lanes.as_pointer())

        def shifted(shift: Any, values: Any, bits: int) -> Any:
            return shift(values, ir.Constant(lanes, [bits] * _LANES))

        def rotated(values: Any, bits: int) -> Any:
            return builder.or_(shifted(builder.shl, values, bits), shifted(builder.lshr, values, 32 - bits))

        places = [at(state_data, ir.Constant(arguments[2].type, i)) for i in range(4)]
        registers = [cgutils.alloca_once(builder, lanes) for _ in places]
        for place, register in zip(places, registers, strict=True):
            builder.store(builder.load(place, align=4), register)
        with cgutils.for_range(builder, arguments[2], intp=arguments[2].type) as loop:
            a, b, c, d = map(builder.load, registers)
            value = builder.add(rotated(builder.add(a, d), 7), a)
            builder.store(value, at(out_data, loop.index), align=4)
            c, d = builder.xor(c, a), builder.xor(d, b)
            after = builder.xor(a, d), builder.xor(b, c), builder.xor(c, shifted(builder.shl, b, 9)), rotated(d, 11)
            for values, register in zip(after, registers, strict=True):
                builder.store(values, register)
        for place, register in zip(places, registers, strict=True):
            builder.store(builder.load(register), place, align=4)
        return context.get_dummy_value()

    return types.void(state, out, blocks), generate


@compiled
def next_bits(state: Any, out: Any) -> None:
    """Fill `out` ((multiple of 16,) uint32) with the next bits of the bulk generator."""
    _generate(state, out, out.shape[0] // _LANES)


@intrinsic  # type: ignore[untyped-decorator]
def _as_float(typing_context: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""
    return types.float32(types.int32), lambda context, builder, _, values: builder.bitcast(values[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def _as_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""
    return types.int32(types.float32), lambda context, builder, _, values: builder.bitcast(values[0], ir.IntType(32))


@compiled
def _minus_log(x: Any) -> Any:
    """-ln of a positive normal float32, absolute error below 3e-7 (1 + |ln x|)."""
    bits = _as_bits(x)
    mantissa = _as_float(np.int32(np.int32(bits & np.int32(0x007FFFFF)) | np.int32(0x3F800000)))
    exponent = np.float32(np.int32(np.int32(bits >> np.int32(23)) - np.int32(127)))
    # ln m = ln c + 2 atanh(t), t = (m - c) / (m + c), c = sqrt 2: |t| <= 0.1716, so five odd terms are enough.
    t = (mantissa - _SQRT2) / (mantissa + _SQRT2)
    s = t * t
    series = np.float32(0.2857143) + s * np.float32(0.2222222)
    series = np.float32(0.6666667) + s * (np.float32(0.4) + s * series)
    return -(exponent + np.float32(0.5)) * _LN2 - t * (np.float32(2.0) + s * series)


@compiled
def _uniform(bits: Any) -> Any:
    """A float32 in (0, 1] from the lower 31 of 32 bits."""
    return (np.float32(np.int32(bits & np.int32(0x7FFFFFFF))) + np.float32(0.5)) * np.float32(2.0**-31)


@compiled
def laplace_of(bits: Any, scale: Any) -> Any:
    """A Laplace(scale) draw from 32 uniform bits (int32): one is the sign, 31 are the uniform u; +- scale (-ln u).

    The tail ends at 22.2 scale, which a draw reaches with probability 2^-31.
    """
    size = max(_minus_log(_uniform(bits)) * scale, np.float32(0.0))
    return _as_float(np.int32(_as_bits(size) | np.int32(bits & np.int32(-0x80000000))))


@compiled
def normal_of(bits: Any) -> Any:
    """A standard normal draw from 32 uniform bits by the inverse error function (Giles, GPU Computing Gems 2012)."""
    v = _uniform(bits)
    w = max(_minus_log(max(v * (np.float32(2.0) - v), np.float32(1e-30))), np.float32(0.0))
    a = w - np.float32(2.5)
    p = np.float32(3.43273939e-07) + a * np.float32(2.81022636e-08)
    p = np.float32(-4.39150654e-06) + a * (np.float32(-3.5233877e-06) + a * p)
    p = np.float32(-0.00125372503) + a * (np.float32(0.00021858087) + a * p)
    p = np.float32(0.246640727) + a * (np.float32(-0.00417768164) + a * p)
    p = np.float32(1.50140941) + a * p
    b = np.float32(math.sqrt(w)) - np.float32(3.0)
    q = np.float32(0.000100950558) + b * np.float32(-0.000200214257)
    q = np.float32(-0.00367342844) + b * (np.float32(0.00134934322) + b * q)
    q = np.float32(-0.0076224613) + b * (np.float32(0.00573950773) + b * q)
    q = np.float32(1.00167406) + b * (np.float32(0.00943887047) + b * q)
    q = np.float32(2.83297682) + b * q
    size = (p if w < np.float32(5.0) else q) * (np.float32(1.0) - v) * _SQRT2
    return _as_float(np.int32(_as_bits(size) ^ np.int32(bits & np.int32(-0x80000000))))


@compiled
def laplace_block(bits: Any, scale: Any, out: Any) -> None:
    """Laplace(scale) draws into `out` ((n,) float32) from `bits` ((n,) int32), see `laplace_of`."""
    for i in range(out.shape[0]):
        out[i] = laplace_of(bits[i], scale)


@compiled
def normal_block(bits: Any, out: Any) -> None:
    """Standard normal draws into `out` ((n,) float32) from `bits` ((n,) int32)."""
    for i in range(out.shape[0]):
        out[i] = normal_of(bits[i])


@compiled
def fill_laplace(key: Any, scale: Any, out: Any) -> None:
    """Fill `out` ((n,) float32) with Laplace(scale) draws of stream `key`."""
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    scale = np.float32(scale)
    for start in range(0, out.shape[0], BLOCK):
        next_bits(state, bits)
        laplace_block(bits.view(np.int32), scale, out[start : start + BLOCK])


@compiled
def fill_normal(key: Any, out: Any) -> None:
    """Fill `out` ((n,) float32) with standard normal draws of stream `key`."""
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    for start in range(0, out.shape[0], BLOCK):
        next_bits(state, bits)
        normal_block(bits.view(np.int32), out[start : start + BLOCK])
