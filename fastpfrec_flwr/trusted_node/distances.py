"""How far each upload lies from the current table, and what of that is noise: what a trusted node judges clients by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.privacy.laws import LAPLACE, NoiseLaw
from fastpfrec_flwr.trusted_node.uploads import Norms

# Of the noise on a row, above its expectation.
ROW_MARGIN = 10.0
_CLIENTS_PER_TASK = 32


@dataclass(frozen=True)
class Distances:
    """How far each client's upload lies from the current table.

    Attributes
    ----------
    squared : (clients,) ||Theta' - E||^2, noise included.
    noise_mean, noise_sd : (clients,) expectation and standard deviation of the squared norm of the noise on the m coordinates
        that carry it: 2 lambda^2 m and sqrt(20 lambda^4 m) for Laplace, sigma^2 m and sqrt(2 sigma^4 m) for Gaussian noise.
    noise_kind : its law, see `privacy.laws`.
    row_beyond : (clients,) whether a row of the upload exceeds what the clip of rows allows; None where nobody looked.
    """

    squared: NDArray[np.float64]
    noise_mean: NDArray[np.float64]
    noise_sd: NDArray[np.float64]
    noise_kind: str = LAPLACE
    row_beyond: NDArray[np.bool_] | None = None

    @property
    def corrected(self) -> NDArray[np.float64]:
        """(clients,) sqrt(max(d^2 - noise_mean, 0)): the size of the change without its noise."""
        return np.sqrt(np.maximum(self.squared - self.noise_mean, 0.0))

    @property
    def resolution(self) -> float:
        """Size below which a corrected distance is noise: sqrt of the typical noise_sd."""
        return math.sqrt(median(self.noise_sd)) if len(self.noise_sd) else 0.0

    def of(self, members: NDArray[np.int64]) -> Distances:
        """The distances of some clients."""
        rows = None if self.row_beyond is None else self.row_beyond[members]
        return Distances(self.squared[members], self.noise_mean[members], self.noise_sd[members], self.noise_kind, rows)

    @staticmethod
    def joined(parts: Sequence[Distances]) -> Distances:
        """Those of several messages (at least one), one after the other; all of them have looked at rows, or none."""
        rows = [part.row_beyond for part in parts if part.row_beyond is not None]
        return Distances(
            np.concatenate([part.squared for part in parts]),
            np.concatenate([part.noise_mean for part in parts]),
            np.concatenate([part.noise_sd for part in parts]),
            parts[0].noise_kind,
            np.concatenate(rows) if rows else None,
        )


@compiled
def median(values: Any) -> float:
    """np.median of finite values (at least one), without its fixed cost, which is a node's whole check."""
    ordered = np.sort(values)
    n = ordered.shape[0]
    return float(ordered[n // 2]) if n % 2 else float((ordered[n // 2 - 1] + ordered[n // 2]) / 2.0)


@compiled
def _segment_norms(values: Any, pointer: Any, k: int, first: int, last: int, whole: Any, largest_row: Any) -> None:
    for j in range(first, last):
        total, longest = 0.0, np.float32(0.0)
        for t in range(pointer[j], pointer[j + 1]):
            square = np.float32(0.0)
            for c in range(k):
                square += values[t, c] * values[t, c]
            total += float(square)
            longest = max(longest, square)
        whole[j], largest_row[j] = total, longest


def norms_of(values: NDArray[np.float32], pointer: NDArray[np.int64], k: int, threads: int = 1) -> Norms:
    """Norms of uploads over their first `k` columns."""
    norms = Norms(np.empty(len(pointer) - 1), np.empty(len(pointer) - 1))

    def run(first: int) -> None:
        last = min(first + _CLIENTS_PER_TASK, len(norms.whole))
        _segment_norms(values, pointer, k, first, last, norms.whole, norms.largest_row)

    in_parallel(run, range(0, len(norms.whole), _CLIENTS_PER_TASK), threads)
    return norms


@compiled
def first_normals(keys: Any, out: Any) -> None:
    """One standard normal draw of each stream into `out` ((streams,) float64)."""
    one = np.empty(1, np.float32)
    for j in range(keys.shape[0]):
        fill_normal(keys[j], one)
        out[j] = one[0]


def upload_distances(
    values: NDArray[np.float32],
    pointer: NDArray[np.int64],
    noise_scale: float,
    cover_scale: float,
    num_items: int,
    keys: NDArray[np.uint64],
    threads: int = 1,
    columns: int | None = None,
    norms: Norms | None = None,
    noise_kind: str = LAPLACE,
    row_clip: float = 0.0,
) -> Distances:
    """Distance of each upload to the current table.

    The squared norm of cover noise over m coordinates, which a simulated dense upload does not carry, is drawn from its
    limit: normal with mean m Var x and variance m Var x^2 (2 lambda^2 m and 20 lambda^4 m for Laplace noise).

    Parameters
    ----------
    values, pointer : uploads end to end, Theta' - E.
    noise_scale : scale of the noise that the values carry. cover_scale : scale of the noise not yet drawn, or 0.
    columns : columns of the table; the distance is over these. None is all of them.
    num_items : rows of the table. keys : (clients,) uint64 streams of the cover norm.
    norms : over all columns, if known; they are taken where the distance is over all of them.
    noise_kind : law of both noises.
    row_clip : L2 bound of an honest row's change, whose excess is looked for; 0 looks for none.
    """
    law = NoiseLaw(noise_kind, 1.0)
    k = values.shape[1] if columns is None else columns
    if norms is None or k != values.shape[1]:
        norms = norms_of(values, pointer, k, threads)
    squared = norms.whole.copy()
    carried = np.diff(pointer).astype(np.float64) * k
    covered = num_items * k - carried if cover_scale > 0 else np.zeros_like(carried)
    if cover_scale > 0:
        normals = np.empty(len(squared))
        first_normals(keys, normals)
        cover = cover_scale**2 * (law.unit_variance * covered + np.sqrt(law.unit_square_variance * covered) * normals)
        squared += np.maximum(cover, 0.0)
    noise_mean = law.unit_variance * (noise_scale**2 * carried + cover_scale**2 * covered)
    noise_sd = np.sqrt(law.unit_square_variance * (noise_scale**4 * carried + cover_scale**4 * covered))
    beyond = None
    if row_clip > 0:
        beyond = norms.largest_row > row_bound(row_clip, NoiseLaw(noise_kind, noise_scale), k)
    return Distances(squared, noise_mean, noise_sd, noise_kind, beyond)


def row_bound(row_clip: float, law: NoiseLaw, k: int) -> float:
    """Squared norm that a row of an honest upload stays below: R^2 + E||noise||^2 + 10 sd, for Laplace noise
    R^2 + 2 lambda^2 k + 10 sqrt(20 lambda^4 k + 8 lambda^2 R^2).

    Ten standard deviations, because a round has tens of thousands of rows and Laplace noise long tails; they give a liar 10 %.
    """
    variance = law.unit_variance * law.scale**2
    spread = math.sqrt(law.unit_square_variance * law.scale**4 * k + 4.0 * variance * row_clip**2)
    return row_clip**2 * (1 + 1e-3) + variance * k + ROW_MARGIN * spread
