"""Laplace and Gaussian noise on a fixed grid (paper, eq. LDP: Theta' = Theta + eta, eta ~ Lap(lambda)).

Values are rounded to multiples of 2^-20 after the noise: the low bits of a float sum would otherwise betray what was added to
what. Sums of such values in float64 are exact, whatever their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import BLOCK, laplace_of, next_bits, normal_of, seed_lanes

GRID = 2.0**-20


@compiled
def on_grid(value: Any) -> Any:
    """The multiple of the grid nearest to a float32."""
    return np.float32(np.rint(value * np.float32(1048576.0)) * np.float32(9.5367431640625e-07))


@compiled
def round_to_grid(values: Any) -> None:
    """Round every element of `values` ((n,) float32) to the grid, in place."""
    for i in range(values.shape[0]):
        values[i] = on_grid(values[i])


@compiled
def add_seeded_laplace(key: Any, scale: Any, values: Any, rounded: bool = False) -> None:
    """Add Laplace(scale) noise of stream `key` to `values` ((n,) float32): for simulation, where runs must repeat.

    Parameters
    ----------
    rounded : whether to round to the grid in the same pass; whatever leaves a client must be.
    """
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    for start in range(0, values.shape[0], BLOCK):
        next_bits(state, bits)
        block = values[start : start + BLOCK]
        signed = bits.view(np.int32)
        if rounded:
            for i in range(block.shape[0]):
                block[i] = on_grid(block[i] + laplace_of(signed[i], np.float32(scale)))
        else:
            for i in range(block.shape[0]):
                block[i] += laplace_of(signed[i], np.float32(scale))


@compiled
def add_seeded_normal(key: Any, scale: Any, values: Any, rounded: bool = False) -> None:
    """Add normal noise of standard deviation `scale` from stream `key`; otherwise as `add_seeded_laplace`."""
    state = seed_lanes(key)
    bits = np.empty(BLOCK, np.uint32)
    size = np.float32(scale)
    for start in range(0, values.shape[0], BLOCK):
        next_bits(state, bits)
        block = values[start : start + BLOCK]
        signed = bits.view(np.int32)
        if rounded:
            for i in range(block.shape[0]):
                block[i] = on_grid(block[i] + normal_of(signed[i]) * size)
        else:
            for i in range(block.shape[0]):
                block[i] += normal_of(signed[i]) * size


def add_system_laplace(scale: float, values: NDArray[np.float32]) -> None:
    """Add Laplace(scale) noise from the operating system's entropy to `values` ((n,) float32), on the grid: protects people.

    In float64 from 64 bits a draw (one is the sign), and rounded before it is float32 again. Draws of 32 bits would not do here:
    from scale 0.2 on they reach some grid points more often than others, far out hardly any, and that shows what moved.
    """

    def laplace(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        return -np.log(uniform)

    _add_system(laplace, scale, values)


def add_system_normal(scale: float, values: NDArray[np.float32]) -> None:
    """Add normal noise of standard deviation `scale` from the operating system's entropy, on the grid: protects people.

    By the inverse distribution function in float64, from 63 bits and a sign a draw; the tail ends at 9.2 standard deviations,
    which an ideal normal passes with probability 2^-64.
    """
    from scipy.special import ndtri

    def normal(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        size: NDArray[np.float64] = -ndtri(uniform / 2)
        return size

    _add_system(normal, scale, values)


def _add_system(
    size_of: Callable[[NDArray[np.float64]], NDArray[np.float64]], scale: float, values: NDArray[np.float32]
) -> None:
    """Add +-`scale` times `size_of` a uniform draw in (0, 1] to each value, and round to the grid."""
    step = 1 << 17
    for start in range(0, len(values), step):
        part = values[start : start + step]
        bits = np.frombuffer(os.urandom(8 * len(part)), np.uint64)
        uniform = ((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63  # (0, 1]
        noise = np.where(bits & np.uint64(1), scale, -scale) * size_of(uniform)
        part[:] = np.rint((part + noise) / GRID) * GRID
