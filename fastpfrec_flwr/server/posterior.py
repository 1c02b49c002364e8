"""The server step of the spectral encoder: from noisy sums to the table that they most likely stand for.

All of it is post-processing of what the server has seen, so it costs no privacy. The noise on every coordinate is known, so
empirical Bayes tells signal from noise (Efron & Morris 1973; James-Stein with a learnt prior):

- counts: column 0 is a count plus noise. Its prior over items is estimated without a form (Kiefer & Wolfowitz 1956, by EM on a
  grid), and the posterior mean is never negative.
- sums: items of like counts are taken to have sums ~ N(0, s^2 C): one covariance C for all, a size s for each level of counts.
  What the noise adds to both is known and taken off. The last three releases are seen together: what those before knew of a row
  is carried over through their common covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.parallel import one_thread_products
from fastpfrec_flwr.server.steps import ServerState

_GRID, _EM_STEPS, _PER_DEVIATION = 150, 60, 8
# A number this many deviations from nothing is what it seems; the grid would be coarser than the noise there.
_CERTAIN = 500.0
_LEVELS = 20
_REMEMBERED = 3
# Weight of the column of counts: what is left to rank by where noise has covered everything else.
_ALIKE = 0.5
# Without noise a sum still says little of an item that one user has: some doubt is kept.
_LEAST_DOUBT = 0.1


@dataclass(frozen=True)
class PosteriorStep:
    """Takes sums for what they most likely stand for.

    Attributes
    ----------
    deviation : standard deviation of the noise on the average, 0 without noise. clip_norm : length of an upload.
    clients : that the average is over. exponent : rows are the sums over count to this power.
    count_share : share of an upload's squared length that its counts have.

    The state's `first_moment` keeps the last releases side by side (without counts, the newest last) and `second_moment` the sum of
    all counts so far, both in units of the noise.
    """

    deviation: float
    clip_norm: float
    clients: int
    exponent: float
    count_share: float

    def apply(self, state: ServerState, change: NDArray[np.floating[Any]], server_round: int) -> ServerState:
        """See `ServerStep`."""
        unit = max(self.deviation, _LEAST_DOUBT * self.clip_norm / self.clients)
        release = (change / np.float32(unit)).astype(np.float32)
        steps = state.steps + 1
        counted = (state.second_moment + release[:, 0]).astype(np.float32)
        counts = posterior_counts(counted / np.sqrt(steps))
        width = release.shape[1] - 1
        before = state.first_moment if state.steps else release[:, :0]
        seen = np.ascontiguousarray(np.hstack([before, release[:, 1:]])[:, -_REMEMBERED * width :])
        with one_thread_products():
            sums = posterior_sums(seen, counts)[:, -width:]
        # A code of length 1 alike for everybody would have this sum on one of the columns.
        alike = counts * math.sqrt((1 - self.count_share) / self.count_share / width)
        rows = np.column_stack([_ALIKE * alike, sums]) / (counts**self.exponent)[:, None]
        table = (rows / math.sqrt(max(float(np.square(rows).sum(axis=1).mean()), 1e-30))).astype(np.float32)
        return replace(state, item_table=table, first_moment=seen, second_moment=counted, steps=steps)


def posterior_counts(noisy: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Posterior means of positive numbers seen with standard normal noise, under the prior that explains all of them best.

    Parameters
    ----------
    noisy : (items,) in units of the noise.
    """
    sure = np.asarray(noisy, np.float64)
    # Items are pooled to eighths of a deviation: the likelihood is then a small table.
    steps, place = np.unique(np.rint(np.minimum(sure, _CERTAIN) * _PER_DEVIATION), return_inverse=True)
    seen, often = steps / _PER_DEVIATION, np.bincount(place)
    grid = np.geomspace(0.1, max(float(seen[-1]) * 1.1, 1.0), _GRID)
    likelihood = np.exp(-0.5 * np.square(seen[:, None] - grid)) + 1e-300
    prior = np.full(_GRID, 1.0 / _GRID)
    for _ in range(_EM_STEPS):
        weights = likelihood * prior
        prior = (often / weights.sum(axis=1)) @ weights / len(noisy)
    weights = likelihood * prior
    means: NDArray[np.float64] = (weights @ grid / weights.sum(axis=1))[place]
    return np.where(sure > _CERTAIN, sure, means)


def posterior_sums(releases: NDArray[np.float32], counts: NDArray[np.float64]) -> NDArray[np.float32]:
    """Posterior means of rows ~ N(0, s^2 C) seen with standard normal noise.

    Parameters
    ----------
    releases : (items, columns) in units of the noise. counts : (items,) positive; s is a function of them.
    """
    columns = releases.shape[1]
    sizes = _sizes(releases, counts)
    scaled = releases / sizes[:, None].astype(np.float32)
    doubt = 1.0 / np.square(sizes)
    weights = np.square(1.0 / (1.0 / columns + doubt))
    weights /= weights.sum()
    seen = (scaled * weights[:, None].astype(np.float32)).T @ scaled
    variances, basis = np.linalg.eigh(seen.astype(np.float64) - np.eye(columns) * float(weights @ doubt))
    # Noise alone has variances up to here in a sample of that many rows (Marchenko & Pastur 1967).
    noise = float(weights @ doubt)
    spread = columns * float(np.square(weights * doubt).sum()) / noise**2
    kept = variances > max(variances[-1] * 1e-3, noise * ((1 + math.sqrt(spread)) ** 2 - 1))
    variances, basis = variances[kept], basis[:, kept].astype(np.float32)
    shrunk = (scaled @ basis) * (variances / (variances + doubt[:, None])).astype(np.float32)
    means: NDArray[np.float32] = (shrunk @ basis.T) * sizes[:, None].astype(np.float32)
    return means


def _sizes(releases: NDArray[np.float32], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(items,) root mean square norm of the rows without their noise, for items of like counts; rises with the counts."""
    levels = np.array_split(np.argsort(counts, kind="stable"), min(_LEVELS, len(counts)))
    norms = np.einsum("ij,ij->i", releases, releases, dtype=np.float64)
    squares = [max(float(norms[level].mean()) - releases.shape[1], 1e-3) for level in levels]
    at = [float(np.log(counts[level]).mean()) for level in levels]
    rising = np.log(np.maximum.accumulate(squares))
    found: NDArray[np.float64] = np.exp(0.5 * np.interp(np.log(counts), at, rising))
    return found
