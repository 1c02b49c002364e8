"""Attacks of liars who know each other's honest uploads (those of their own SuperNode) and send one crafted change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import norm

from fastpfrec_flwr.attacks.forging import Crafted, Forgery, Moments, Own, Scene, Whole


def alie_z(clients: int, liars: int) -> float:
    """z_max of ALIE: Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2 + 1) - m supporters needed for a majority.

    At least 0, where liars are a majority already.
    """
    honest = clients - liars
    needed = max(clients // 2 + 1 - liars, 0)
    return max(float(norm.ppf(min(max((honest - needed) / max(honest, 1), 0.5), 1.0 - 1e-9))), 0.0)


@dataclass(frozen=True)
class Alie:
    """A Little Is Enough (Baruch et al., NeurIPS 2019): mean - z deviation on every coordinate.

    Under dense noise the deviation is mostly the noise's, so the change lies on every row; own strength z = z_max.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        clients = scene.config.clients_per_round
        z = scene.strength(alie_z(clients, round(scene.config.attack_fraction * clients)))
        moments = Moments.of(own, scene)
        rows = moments.rows(scene)
        return Crafted(own, scene, rows, (moments.mean[rows] - z * moments.deviation[rows]).astype(np.float32))


@dataclass(frozen=True)
class Ipm:
    """Inner product manipulation (Xie et al., UAI 2020): -e times the mean.

    Own strength e = 1.1 (n - m) / m, which turns the average of all around.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        share = scene.config.attack_fraction
        moments = Moments.of(own, scene)
        rows = np.flatnonzero(moments.touched).astype(np.int32)
        factor = -scene.strength(1.1 * max(1.0 - share, 1e-3) / max(share, 1.0 / scene.config.clients_per_round))
        return Crafted(own, scene, rows, (factor * moments.mean[rows]).astype(np.float32))


@dataclass(frozen=True)
class MinMax:
    """Min-Max (Shejwalkar and Houmansadr, NDSS 2021): mean - g deviation, with the largest g such that the change is no farther
    from any of the liars' own uploads than two of those are from each other. Strength multiplies that g; own 1.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        moments = Moments.of(own, scene)
        rows = moments.rows(scene)
        noise = 2.0 * scene.cover_scale**2 * scene.table.size if scene.cover_scale > 0 else 0.0
        bare = 0.0 if scene.config.attack_noise else noise
        size = scene.strength(1.0) * min_max_step(own, moments, len(scene.table), bare)
        return Crafted(own, scene, rows, (moments.mean[rows] - size * moments.deviation[rows]).astype(np.float32))


def min_max_step(own: Own, moments: Moments, num_items: int, slack: float = 0.0) -> float:
    """Largest g with max_i ||mean - g deviation - x_i||^2 <= max_ij ||x_i - x_j||^2 + slack, 0 if there is none.

    Parameters
    ----------
    slack : squared norm of noise that lies on two honest uploads more than on a bare one and an honest one.
    """
    points = _matrix(own, num_items)  # (liars, items * k)
    gram = (points @ points.T).toarray()
    squares = np.diagonal(gram)
    farthest = float((squares[:, None] + squares[None, :] - 2.0 * gram).max()) + slack
    mean, direction = moments.mean.reshape(-1), -moments.deviation.reshape(-1)
    # ||mean + g p - x||^2 = a + 2 b g + c g^2 <= farthest: the larger root.
    a = float(mean @ mean) - 2.0 * (points @ mean) + squares
    b = float(direction @ mean) - points @ direction
    c = float(direction @ direction)
    if c == 0.0:
        return 0.0
    inside = b * b - c * (a - farthest)
    roots = np.where(inside >= 0, (-b + np.sqrt(np.maximum(inside, 0.0))) / c, 0.0)
    return max(float(roots.min()), 0.0)


def _matrix(own: Own, num_items: int) -> sparse.csr_array:
    """The uploads as rows of a sparse matrix over all coordinates."""
    k = own.values.shape[1]
    columns = (own.rows.astype(np.int64)[:, None] * k + np.arange(k)).reshape(-1)
    matrix: sparse.csr_array = sparse.csr_array(
        (own.values.reshape(-1).astype(np.float64), columns, own.pointer * k), shape=(own.count, num_items * k)
    )
    return matrix


@dataclass(frozen=True)
class Sybil:
    """All send the very same upload: f times the first liar's own, its noise included; own strength f = 1."""

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        first = Whole(own, scene)
        rows = first.rows(0)
        values = np.empty((len(rows), own.values.shape[1]), np.float32)
        first.fill(0, values)
        return _Copies(rows, values * np.float32(scene.strength(1.0)))


@dataclass(frozen=True)
class _Copies:
    at: NDArray[np.int32]
    values: NDArray[np.float32]

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`."""
        return self.at

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        out[:] = self.values
