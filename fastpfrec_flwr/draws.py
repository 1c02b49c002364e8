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
def stream_value(key: Any, index: Any) -> Any:
    """Value number `index` (uint64) of stream `key`: a uint64."""
    value = key + (index + np.uint64(1)) * _GOLDEN
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


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


@compiled
def next_bits(state: Any, out: Any) -> None:
    """Fill `out` ((multiple of 16,) uint32) with the next bits of the bulk generator (xoshiro128++ per lane)."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for start in range(0, out.shape[0], _LANES):
        block = out[start : start + _LANES]
        for lane in range(_LANES):
            a, b, c, d = s0[lane], s1[lane], s2[lane], s3[lane]
            total = np.uint32(a + d)
            block[lane] = np.uint32(np.uint32((total << np.uint32(7)) | (total >> np.uint32(25))) + a)
            shifted = np.uint32(b << np.uint32(9))
            c = c ^ a
            d = d ^ b
            s1[lane] = b ^ c
            s0[lane] = a ^ d
            s2[lane] = c ^ shifted
            s3[lane] = np.uint32((d << np.uint32(11)) | (d >> np.uint32(21)))


@compiled
def _minus_log(x: Any, scratch: Any, out: Any) -> None:
    """-ln of (n,) positive normal float32 `x`, absolute error below 3e-7 (1 + |ln x|); scratch (n,) int32."""
    bits = x.view(np.int32)
    mantissa = scratch.view(np.float32)
    for i in range(x.shape[0]):
        scratch[i] = (bits[i] & np.int32(0x007FFFFF)) | np.int32(0x3F800000)
    for i in range(x.shape[0]):
        exponent = np.float32(np.int32(bits[i] >> np.int32(23)) - np.int32(127))
        # ln m = ln c + 2 atanh(t), t = (m - c) / (m + c), c = sqrt 2: |t| <= 0.1716, so five odd terms are enough.
        t = (mantissa[i] - _SQRT2) / (mantissa[i] + _SQRT2)
        s = t * t
        series = np.float32(0.2857143) + s * np.float32(0.2222222)
        series = np.float32(0.6666667) + s * (np.float32(0.4) + s * series)
        out[i] = -(exponent + np.float32(0.5)) * _LN2 - t * (np.float32(2.0) + s * series)


@compiled
def laplace_block(bits: Any, scale: Any, work: Any, out: Any) -> None:
    """Laplace(scale) draws from uniform bits.

    Of each 32 bits one is the sign and 31 are the uniform u in (0, 1]; the draw is +- scale (-ln u). The tail ends at
    22.2 scale, which a draw reaches with probability 2^-31.

    Parameters
    ----------
    bits : (n,) int32, uniform. work : (2, n) float32 scratch. out : (n,) float32, receives the draws.
    """
    uniform = work[0]
    for i in range(bits.shape[0]):
        uniform[i] = (np.float32(bits[i] & np.int32(0x7FFFFFFF)) + np.float32(0.5)) * np.float32(2.0**-31)
    _minus_log(uniform, work[1].view(np.int32), out)
    for i in range(bits.shape[0]):
        out[i] = max(out[i] * scale, np.float32(0.0))
    as_bits = out.view(np.int32)
    for i in range(bits.shape[0]):
        as_bits[i] |= bits[i] & np.int32(-0x80000000)


@compiled
def normal_block(bits: Any, work: Any, out: Any) -> None:
    """Standard normal draws from uniform bits by the inverse error function (Giles, GPU Computing Gems 2012).

    Parameters
    ----------
    bits : (n,) int32, uniform. work : (2, n) float32 scratch. out : (n,) float32, receives the draws.
    """
    tail = work[0]
    for i in range(bits.shape[0]):
        v = (np.float32(bits[i] & np.int32(0x7FFFFFFF)) + np.float32(0.5)) * np.float32(2.0**-31)
        tail[i] = max(v * (np.float32(2.0) - v), np.float32(1e-30))
    _minus_log(tail, work[1].view(np.int32), out)
    for i in range(bits.shape[0]):
        v = (np.float32(bits[i] & np.int32(0x7FFFFFFF)) + np.float32(0.5)) * np.float32(2.0**-31)
        w = max(out[i], np.float32(0.0))
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
        out[i] = (p if w < np.float32(5.0) else q) * (np.float32(1.0) - v) * _SQRT2
    as_bits = out.view(np.int32)
    for i in range(bits.shape[0]):
        as_bits[i] ^= bits[i] & np.int32(-0x80000000)


@compiled
def fill_laplace(key: Any, scale: Any, out: Any) -> None:
    """Fill `out` ((n,) float32) with Laplace(scale) draws of stream `key`."""
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    work = np.empty((2, BLOCK), np.float32)
    block = np.empty(BLOCK, np.float32)
    scale = np.float32(scale)
    for start in range(0, out.shape[0], BLOCK):
        next_bits(state, bits)
        stop = min(BLOCK, out.shape[0] - start)
        laplace_block(bits.view(np.int32), scale, work, block)
        for i in range(stop):
            out[start + i] = block[i]


@compiled
def fill_normal(key: Any, out: Any) -> None:
    """Fill `out` ((n,) float32) with standard normal draws of stream `key`."""
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    work = np.empty((2, BLOCK), np.float32)
    block = np.empty(BLOCK, np.float32)
    for start in range(0, out.shape[0], BLOCK):
        next_bits(state, bits)
        normal_block(bits.view(np.int32), work, block)
        stop = min(BLOCK, out.shape[0] - start)
        for i in range(stop):
            out[start + i] = block[i]
