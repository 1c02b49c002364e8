"""What liars have to forge uploads from, and the common ways to write one.

A liar's device has trained honestly; what it would have sent is at hand. A forged upload need not be clipped, noised or rounded,
but it must be readable: rows sorted and distinct, values finite and within what decoding takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.draws import fill_laplace, fill_normal


@dataclass(frozen=True)
class Own:
    """What the liars' devices would have sent in a round, one segment each.

    Attributes
    ----------
    keys : (liars,) uint64 streams for what a liar draws. pointer : (liars + 1,) int64. rows : (touched,) int32.
    values : (touched, k) float32, clipped and noised changes of the table.
    """

    keys: NDArray[np.uint64]
    pointer: NDArray[np.int64]
    rows: NDArray[np.int32]
    values: NDArray[np.float32]

    @property
    def count(self) -> int:
        """Liars."""
        return len(self.keys)

    def segment(self, i: int) -> slice:
        """Where liar `i` lies in `rows` and `values`."""
        return slice(int(self.pointer[i]), int(self.pointer[i + 1]))


@dataclass(frozen=True)
class Scene:
    """What a liar knows beside: everything public.

    Attributes
    ----------
    config : the run's. table : (items, k) float32, this round's. server_round : from 1.
    cover_scale : Laplace scale that lies on all rows that an upload does not carry (dense uploads), or 0.
    popularity : (items,) int64, users per item in train: what best-seller lists tell.
    """

    config: RunConfig
    table: NDArray[np.float32]
    server_round: int
    cover_scale: float
    popularity: NDArray[np.int64]

    @property
    def noise_scale(self) -> float:
        """Laplace scale on what honest uploads carry."""
        return self.config.effective_noise_scale

    def strength(self, default: float) -> float:
        """The configured strength, or an attack's own."""
        return self.config.attack_strength or default


class Forgery(Protocol):
    """The uploads that an attack makes of `Own`."""

    def rows(self, i: int) -> NDArray[np.int32]:
        """Rows of liar `i`'s upload, sorted and distinct, at least one."""

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """Write its values into `out` ((rows, k) float32, C order)."""


class Attack(Protocol):
    """One way to lie."""

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """Forge the uploads of a round's liars (at least one)."""


@dataclass(frozen=True)
class Whole:
    """Each liar's honest upload on every row, the noise on rows that it does not carry included.

    With uploads that show their rows these are the rows that it carries.
    """

    own: Own
    scene: Scene

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`."""
        if self.scene.cover_scale == 0:
            return self.own.rows[self.own.segment(i)]
        return np.arange(len(self.scene.table), dtype=np.int32)

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        mine = self.own.segment(i)
        if self.scene.cover_scale == 0:
            out[:] = self.own.values[mine]
            return
        fill_laplace(self.own.keys[i], self.scene.cover_scale, out.reshape(-1))
        out[self.own.rows[mine]] = self.own.values[mine]


@dataclass(frozen=True)
class Crafted:
    """One change that all liars send: each with the prescribed noise, or bare.

    Attributes
    ----------
    at : (r,) int32 rows where the change is not zero. change : (r, k).
    """

    own: Own
    scene: Scene
    at: NDArray[np.int32]
    change: NDArray[np.floating[Any]]

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`. Bare dense uploads carry all rows, so that nobody adds the noise that is missing."""
        if self.scene.cover_scale > 0 and not self.scene.config.attack_noise:
            return np.arange(len(self.scene.table), dtype=np.int32)
        return self.at

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        if self.scene.config.attack_noise and self.scene.noise_scale > 0:
            fill_laplace(self.own.keys[i], self.scene.noise_scale, out.reshape(-1))
            out += self.change
        elif len(out) == len(self.at):
            out[:] = self.change
        else:
            out[:] = 0.0
            out[self.at] = self.change


def normals(key: np.uint64, out: NDArray[np.float32]) -> None:
    """Fill `out` (C order) with standard normal draws of a stream that `Whole` does not use."""
    fill_normal(np.uint64(int(key) ^ 0x5DEECE66D), out.reshape(-1))


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of the liars' own uploads on each coordinate, as a trusted node would see them.

    Attributes
    ----------
    touched : (items,) int64, how many of them carry each row. mean, deviation : (items, k) float64.
    """

    touched: NDArray[np.int64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @staticmethod
    def of(own: Own, scene: Scene) -> Moments:
        """Moments over the liars; noise that an upload does not carry counts with its variance 2 lambda^2."""
        sums, squares = np.zeros(scene.table.shape), np.zeros(scene.table.shape)
        _accumulate(own.rows, own.values, sums, squares)
        touched = np.bincount(own.rows, minlength=len(scene.table))
        mean = sums / own.count
        covered = 2.0 * scene.cover_scale**2 * (own.count - touched) / own.count
        deviation = np.sqrt(np.maximum(squares / own.count + covered[:, None] - mean**2, 0.0))
        return Moments(touched, mean, deviation)

    def rows(self, scene: Scene) -> NDArray[np.int32]:
        """Rows on which there is something to know: all under cover noise, else those that somebody carries."""
        if scene.cover_scale > 0:
            return np.arange(len(scene.table), dtype=np.int32)
        return np.flatnonzero(self.touched).astype(np.int32)


@compiled
def _accumulate(rows: Any, values: Any, sums: Any, squares: Any) -> None:
    for t in range(rows.shape[0]):
        for c in range(values.shape[1]):
            value = np.float64(values[t, c])
            sums[rows[t], c] += value
            squares[rows[t], c] += value * value


def change_norm(values: NDArray[np.float32], noise_scale: float) -> float:
    """Size of a noised change without its noise: sqrt(max(||x||^2 - 2 lambda^2 coordinates, 0))."""
    return math.sqrt(max(float(np.vdot(values, values)) - 2.0 * noise_scale**2 * values.size, 0.0))
