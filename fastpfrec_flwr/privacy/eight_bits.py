"""Uploads in a byte a coordinate: each row as whole multiples of a power of two of its own.

Rounded after the noise, so it tells nobody more. The step of a row is the smallest power of two at which its largest value fits
into a byte, at least the noise's own grid: what arrives lies on that grid again, and sums of it stay exact in any order. Under
Laplace noise of scale lambda on every coordinate a row of 64 reaches about 4.7 lambda, so the step is 0.04 to 0.08 lambda and its
rounding error at most 2 % of the noise's standard deviation, or 0.03 % of its variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.privacy.mechanism import Changes, Mechanism, PrivatizedUploads

# 2^-20 is the grid of the noise; 127 * 2^5 = 4064 is the most that an upload may hold anyway.
SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 5


@dataclass(frozen=True)
class EightBits:
    """Another mechanism's uploads in int8 with an exponent per row: a quarter of the bytes."""

    mechanism: Mechanism

    @property
    def noise_scale(self) -> float:
        """Of the other mechanism."""
        return self.mechanism.noise_scale

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`."""
        whole = self.mechanism.privatize(changes, nonces, keys, num_items)
        return whole.recoded(*to_eight_bits(whole.values))


def to_eight_bits(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Rows as multiples of powers of two.

    Parameters
    ----------
    values : (rows, k) float32.

    Returns
    -------
    (rows, k) int8 multiples and (rows,) int8 exponents: a value is about multiple * 2^exponent.
    """
    multiples = np.empty(values.shape, np.int8)
    exponents = np.empty(len(values), np.int8)
    _round_rows(values, multiples, exponents)
    return multiples, exponents


def from_eight_bits(multiples: NDArray[np.int8], exponents: NDArray[np.int8]) -> NDArray[np.float32]:
    """(rows, k) float32 values of what `to_eight_bits` made, exactly."""
    values = multiples.astype(np.float32)
    values *= np.ldexp(np.float32(1.0), exponents.astype(np.int32))[:, None]
    return values


@compiled
def _round_rows(values: Any, multiples: Any, exponents: Any) -> None:
    for t in range(values.shape[0]):
        largest = np.float32(0.0)
        for c in range(values.shape[1]):
            largest = max(largest, abs(values[t, c]))
        mantissa, exponent = math.frexp(min(largest, np.float32(4064.0)) / np.float32(127.0))
        if mantissa == 0.5:
            exponent -= 1
        exponent = -20 if largest == 0.0 else min(max(exponent, -20), 5)
        exponents[t] = exponent
        inverse = np.float32(math.ldexp(1.0, -exponent))
        for c in range(values.shape[1]):
            multiple = np.rint(values[t, c] * inverse)
            multiples[t, c] = np.int8(min(max(multiple, np.float32(-127.0)), np.float32(127.0)))
