"""What a trusted node can see of a misbehaving client: noise-corrected distances, robust z-scores, checks (paper, eq. Check)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.privacy.laws import LAPLACE, NoiseLaw
from fastpfrec_flwr.trusted_node.uploads import Norms

# 0.6745 is the upper quartile of the standard normal: it makes MAD / 0.6745 estimate the standard deviation.
NORMAL_QUARTILE = 0.6745
# Standard deviations that an honest client's noise may stand above its expectation before the absolute test speaks.
ABSOLUTE_MARGIN = 4.0
ROW_MARGIN = 10.0
# And below it before an upload is taken for one that lacks the prescribed noise.
QUIET_MARGIN = 6.0
# Least standard deviation of honest log distances that is believed where the clip bounds them anyway: liars who all send the same
# size would otherwise make the spread vanish and have the honest isolated.
LEAST_SPREAD = 0.45
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


def robust_z_scores(distances: NDArray[np.float64], resolution: float = 0.0) -> NDArray[np.float64]:
    """Robust z-score of each distance within one trusted node.

    z_j = 0.6745 (d_j - median d) / MAD(d)          (paper, eq. Check; Iglewicz & Hoaglin 1993)

    Parameters
    ----------
    distances : (clients,) non-negative, any unit.
    resolution : what a distance can be told apart by, same unit. MAD is never taken smaller than 0.6745 times this: where
        noise hides every honest change, more than half of the corrected distances are zero and MAD says nothing.

    Returns
    -------
    (clients,) dimensionless. With MAD and resolution zero: 0 for those at the median, +-infinity for all others.

    Raises
    ------
    ValueError if `distances` is empty or not finite.
    """
    if len(distances) == 0 or not np.isfinite(distances).all():
        raise ValueError(f"distances must be finite and at least one, got {distances!r}")
    away = distances - float(median(distances))
    mad = max(float(median(np.abs(away))), NORMAL_QUARTILE * resolution)
    if mad == 0.0:
        return np.where(away == 0.0, 0.0, np.copysign(np.inf, away))
    return NORMAL_QUARTILE * away / mad


@dataclass(frozen=True)
class Verdict:
    """What a check decides about one node: `outliers` (clients,) bool, and whether the whole node is isolated."""

    outliers: NDArray[np.bool_]
    node_isolated: bool


class Check(Protocol):
    """A rule of one trusted node."""

    def examine(self, distances: Distances) -> Verdict:
        """Judge the clients of one node (at least one)."""


@dataclass(frozen=True)
class NoCheck:
    """Trusts everybody."""

    def examine(self, distances: Distances) -> Verdict:
        """Nobody is an outlier."""
        return Verdict(np.zeros(len(distances.squared), np.bool_), False)


@dataclass(frozen=True)
class PaperCheck:
    """The paper's rule: the node is isolated if more than nu of its clients have |z| > mu; no client is isolated alone."""

    threshold: float
    outlier_ratio: float

    def examine(self, distances: Distances) -> Verdict:
        """See the class. The flagged clients of a node that stays are kept, as in the paper."""
        flagged = np.abs(robust_z_scores(distances.corrected, distances.resolution)) > self.threshold
        isolated = bool(flagged.mean() > self.outlier_ratio)
        return Verdict(np.full(len(flagged), isolated), isolated)


@dataclass(frozen=True)
class ClientsCheck:
    """Isolates single clients, and the node where the comparison with each other finds more than a share nu of them.

    Out is who sends what no honest client can: more than the clip of whole uploads allows, where there is one, less than the
    noise that every honest upload carries, or a row beyond the clip of rows. That needs no honest majority and casts no doubt
    on the others, however many it finds. Of the rest a client is out if the robust z of its *log* distance among them exceeds
    mu (users differ so much in activity that honest distances are close to lognormal: on the plain distance the same mu
    isolates 5 to 14 % of the honest clients, the active ones). Small changes harm nobody; small forgeries that many send alike
    are the alignment check's.
    """

    threshold: float
    outlier_ratio: float
    clip_norm: float = 0.0

    def examine(self, distances: Distances) -> Verdict:
        """See the class."""
        outliers = impossible(distances)
        if self.clip_norm > 0:
            outliers |= beyond_clip(distances, self.clip_norm)
        if not outliers.any():
            found = self._stand_out(distances)
        elif outliers.all():
            return Verdict(outliers, True)
        else:
            found = self._stand_out(distances.of(np.flatnonzero(~outliers)))
        isolated = bool(found.mean() > self.outlier_ratio)
        outliers[~outliers] = found
        return Verdict(outliers | isolated, isolated)

    def _stand_out(self, distances: Distances) -> NDArray[np.bool_]:
        # Below the resolution a distance is noise; it also keeps the logarithm finite.
        corrected, floor = distances.corrected, max(distances.resolution, 1e-12)
        middle = median(corrected)
        # What one sd of the noise's squared norm does to the median's logarithm: the scores' own resolution. Half of it,
        # since noise is cut off below zero: an honest change that the noise hides then stays below z = 3.5 up to 5.6 sd.
        blur = 0.5 * math.log((math.hypot(middle, floor) + floor) / (middle + floor))
        if self.clip_norm > 0:
            blur = max(blur, LEAST_SPREAD)
        found: NDArray[np.bool_] = robust_z_scores(np.log(corrected + floor), blur) > self.threshold
        return found


@dataclass(frozen=True)
class AbsoluteCheck:
    """Isolates whoever exceeds what an honest client can send, or lacks its noise; needs no honest majority in the node."""

    clip_norm: float

    def examine(self, distances: Distances) -> Verdict:
        """See the class."""
        outliers = beyond_clip(distances, self.clip_norm) | impossible(distances)
        return Verdict(outliers, bool(outliers.all()))


def beyond_clip(distances: Distances, clip_norm: float) -> NDArray[np.bool_]:
    """Whether d^2 > E |noise|^2 + S^2 + 4 sd: more than an upload clipped to L2 norm S can reach with its noise.

    The variance of d^2 is that of the noise's squared norm (20 lambda^4 m for Laplace) plus that of the cross term
    2 <change, noise>, which is 4 Var x S^2 (8 lambda^2 S^2).
    """
    law = NoiseLaw(distances.noise_kind, 1.0)
    # lambda^2 from the two moments: 20 lambda^4 m / (10 * 2 lambda^2 m) = lambda^2; 0 where there is no noise.
    ratio = law.unit_square_variance / law.unit_variance
    scale_squared = distances.noise_sd**2 / np.maximum(ratio * distances.noise_mean, 1e-300)
    spread = np.sqrt(distances.noise_sd**2 + 4.0 * law.unit_variance * scale_squared * clip_norm**2)
    # The grid's rounding may add a little to a clipped upload.
    bound = distances.noise_mean + clip_norm**2 * (1 + 1e-4) + ABSOLUTE_MARGIN * spread
    flags: NDArray[np.bool_] = distances.squared > bound
    return flags


def impossible(distances: Distances) -> NDArray[np.bool_]:
    """What no honest client sends, whatever its data: less than its noise, or a row beyond the clip of rows."""
    quiet = without_noise(distances)
    return quiet if distances.row_beyond is None else quiet | distances.row_beyond


def without_noise(distances: Distances) -> NDArray[np.bool_]:
    """Whether d^2 < 2 lambda^2 m - 6 sd: less than the noise of an honest upload alone, whatever it changes.

    A forgery crafted from the spread of noised uploads (ALIE) and sent bare is far below.
    """
    flags: NDArray[np.bool_] = distances.squared < distances.noise_mean - QUIET_MARGIN * distances.noise_sd
    return flags
