"""Clipping: what bounds one client's influence. Compiled, in place, one user after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastpfrec_flwr.compiling import compiled

# Numba's float() leaves a float32 what it is: only np.float64 widens it before the square.
# A norm summed in float32 is off by less than k 2^-24; from this share of the bound on it is summed again in float64.
_NEAR = 1.0 - 1e-4


@compiled
def _row_norm(row: Any, columns: int) -> float:
    """L2 norm of a float32 row, NaN where an element is not finite; safe from overflow and underflow of the squares."""
    square = np.float32(0.0)
    for c in range(columns):
        square += row[c] * row[c]
    if np.float32(1e-30) < square < np.float32(1e30):
        return math.sqrt(float(square))
    total = 0.0
    for c in range(columns):
        total += np.float64(row[c]) * np.float64(row[c])
    return math.sqrt(total) if math.isfinite(total) else math.nan


@compiled
def _exact_square(row: Any, columns: int) -> float:
    """Squared L2 norm of a finite float32 row in float64: what decides wherever a norm comes near its bound."""
    total = 0.0
    for c in range(columns):
        total += np.float64(row[c]) * np.float64(row[c])
    return total


@compiled
def clamp(values: Any, bound: float, columns: int = -1) -> None:
    """Bring each coordinate into [-`bound`, `bound`] (0: no bound); `values` (rows, k) float32, in place.

    What is not a number stays what it is, for `clip_rows` to find. Scaling afterwards keeps every coordinate inside.

    Parameters
    ----------
    columns : only the first so many are clamped; -1 is all.
    """
    if bound <= 0.0:
        return
    if columns < 0:
        columns = values.shape[1]
    # A bound that float32 cannot hold is taken a hair below it.
    limit = np.float32(bound)
    if np.float64(limit) > bound:
        limit = np.float32(bound * (1.0 - 1e-7))
    for t in range(values.shape[0]):
        for c in range(columns):
            value = values[t, c]
            if value > limit and value < np.float32(np.inf):
                values[t, c] = limit
            elif value < -limit and value > np.float32(-np.inf):
                values[t, c] = -limit


@compiled
def clip_rows(values: Any, bound: float, columns: int = -1) -> tuple[int, float]:
    """Bring each row to L2 norm <= `bound` (0: no bound).

    A row that is not finite becomes zero: it carries nothing that could be averaged, and zero lies inside every bound.

    Parameters
    ----------
    values : (rows, k) float32, changed in place. columns : only the first so many are clipped and counted; -1 is all.

    Returns
    -------
    Number of rows that were not finite; squared norm of all rows afterwards, off by less than `_NEAR` allows for.
    """
    broken, total = 0, 0.0
    if columns < 0:
        columns = values.shape[1]
    for t in range(values.shape[0]):
        row = values[t]
        norm = _row_norm(row, columns)
        if math.isnan(norm):
            for c in range(columns):
                row[c] = np.float32(0.0)
            broken += 1
            continue
        if bound > 0.0 and norm > bound * _NEAR:
            norm = math.sqrt(_exact_square(row, columns))
        if 0.0 < bound < norm:
            # A hair below the bound, so that float32 rounding cannot end above it.
            factor = bound / norm * (1.0 - 1e-6)
            for c in range(columns):
                row[c] = np.float32(float(row[c]) * factor)
            norm = bound
        total += norm * norm
    return broken, total


@compiled
def clip_joint(values: Any, bound: float, l1: bool, columns: int = -1, square: float = -1.0) -> None:
    """Bring a whole upload to L2 (or L1) norm <= `bound` (0: no bound); `values` (rows, k) float32, finite, in place.

    Parameters
    ----------
    columns : only the first so many are clipped and counted; -1 is all.
    square : squared L2 norm, where `clip_rows` has just found it; -1 has it summed here.
    """
    if bound <= 0.0:
        return
    if columns < 0:
        columns = values.shape[1]
    total = 0.0 if l1 else square
    if l1:
        for t in range(values.shape[0]):
            for c in range(columns):
                total += abs(float(values[t, c]))
    elif square < 0.0:
        total = 0.0
        for t in range(values.shape[0]):
            norm = _row_norm(values[t], columns)
            total += norm * norm
    norm = total if l1 else math.sqrt(total)
    if not l1 and norm > bound * _NEAR:
        exact = 0.0
        for t in range(values.shape[0]):
            exact += _exact_square(values[t], columns)
        norm = math.sqrt(exact)
    if norm > bound:
        factor = bound / norm * (1.0 - 1e-6)
        for t in range(values.shape[0]):
            for c in range(columns):
                values[t, c] = np.float32(float(values[t, c]) * factor)
