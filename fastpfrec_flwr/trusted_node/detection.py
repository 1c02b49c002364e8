"""What a trusted node makes of its clients' distances: robust z-scores and the checks (paper, eq. Check)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.privacy.laws import NoiseLaw
from fastpfrec_flwr.trusted_node.distances import Distances, median

# 0.6745 is the upper quartile of the standard normal: it makes MAD / 0.6745 estimate the standard deviation.
NORMAL_QUARTILE = 0.6745
# Standard deviations that an honest client's noise may stand above its expectation before the absolute test speaks.
ABSOLUTE_MARGIN = 4.0
# And below it before an upload is taken for one that lacks the prescribed noise.
QUIET_MARGIN = 6.0
# Least standard deviation of honest log distances that is believed where the clip bounds them anyway: liars who all send the same
# size would otherwise make the spread vanish and have the honest isolated.
LEAST_SPREAD = 0.45


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
