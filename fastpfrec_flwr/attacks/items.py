"""Attacks on what is recommended: one cold item pushed to everybody, and items pulled together until ranking is chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.forging import Forgery, Own, Scene, change_norm
from fastpfrec_flwr.draws import fill_laplace
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.encoders import build_encoder
from fastpfrec_flwr.randomness import derive_generator

_MADE_UP_USERS, _THEIR_ITEMS = 256, 20
_TOP = 10
_CLUSTERS, _LLOYD_STEPS = 3, 8


def target_item(configured: int, popularity: NDArray[np.int64], seed: int) -> int:
    """The promoted item: the configured row, or (-1) one of the least popular items that somebody has, by the seed.

    Raises
    ------
    ValueError if the catalogue has no such row.
    """
    if configured >= len(popularity):
        raise ValueError(f"attack-target-item must be < {len(popularity)}, the items of the data set, got {configured}")
    if configured >= 0:
        return configured
    known = popularity[popularity > 0]
    coldest = np.flatnonzero(popularity == (known.min() if len(known) else 0))
    return int(derive_generator(seed, "target-item").choice(coldest))


@dataclass(frozen=True)
class Promotion:
    """A cold item pushed to everybody (after PSMU, Yuan et al., WWW 2023, arXiv 2301.10964).

    Each liar makes up users from random items of the public table and moves the target's row the way that lifts it into their
    top 10; the rest of its upload is honest. Size of that row's change: own strength 1 times the clip of a row, which is what an
    honest client may send at most.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        item = target_item(scene.config.attack_target_item, scene.popularity, scene.config.seed)
        size = scene.strength(1.0) * (scene.config.row_clip or scene.config.clip_norm or 16.0)
        return _Promoted(own, scene, item, (size * lifting_direction(scene, item)).astype(np.float32))


def lifting_direction(scene: Scene, item: int) -> NDArray[np.float64]:
    """(k,) unit vector: the sum of the made-up users' vectors, each weighted by sigmoid(its 10th best score - the item's)."""
    table, config = scene.table, scene.config
    generator = derive_generator(config.seed, "made-up-users", scene.server_round)
    size = min(_THEIR_ITEMS, len(table))
    chosen = [np.sort(generator.choice(len(table), size, replace=False)) for _ in range(_MADE_UP_USERS)]
    ends = np.arange(1, _MADE_UP_USERS + 1, dtype=np.int64) * size
    history = Rows(np.concatenate(chosen).astype(np.int32), ends - size, ends)
    nobody = np.zeros((_MADE_UP_USERS, table.shape[1]), np.float32)
    users = build_encoder(config).user_vectors(table, history, nobody).astype(np.float64)
    scores = users @ table.T.astype(np.float64)
    best = np.partition(scores, -min(_TOP, len(table)), axis=1)[:, -min(_TOP, len(table))]
    short = np.clip(best - scores[:, item], -50.0, 50.0)
    direction = (users / (1.0 + np.exp(-short))[:, None]).sum(axis=0)
    length = float(np.linalg.norm(direction))
    return direction / length if length > 0 else np.full(table.shape[1], table.shape[1] ** -0.5)


@dataclass(frozen=True)
class _Promoted:
    own: Own
    scene: Scene
    item: int
    change: NDArray[np.float32]

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`."""
        return np.union1d(self.own.rows[self.own.segment(i)], [self.item]).astype(np.int32)

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        mine, rows = self.own.segment(i), self.rows(i)
        out[np.searchsorted(rows, self.own.rows[mine])] = self.own.values[mine]
        noised = self.change.copy()
        if self.scene.config.attack_noise and self.scene.noise_scale > 0:
            noise = np.empty(len(noised), np.float32)
            fill_laplace(self.own.keys[i], self.scene.noise_scale, noise)
            noised += noise
        out[np.searchsorted(rows, self.item)] = noised


@dataclass(frozen=True)
class Clustering:
    """Items pulled to the centres of a few clusters (after ClusterAttack, Yu et al., arXiv 2212.05399).

    Items of a cluster then score alike. Each liar moves the rows that it carries towards their centres, the whole change as
    large as its own honest one times the strength (own 1), so that no norm shows it.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        return _Clustered(own, scene, pull_to_centres(scene.table, scene.config.seed), scene.strength(1.0))


def pull_to_centres(table: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """(items, k) centre of each row's cluster minus the row: 3-means, a few steps of Lloyd's from seeded rows."""
    clusters = min(_CLUSTERS, len(table))
    centres = table[derive_generator(seed, "centres").choice(len(table), clusters, replace=False)].copy()
    labels = np.zeros(len(table), np.int64)
    for _ in range(_LLOYD_STEPS):
        apart = (centres**2).sum(axis=1)[None, :] - 2.0 * (table @ centres.T)
        labels = apart.argmin(axis=1)
        for c in range(clusters):
            if (mine := labels == c).any():
                centres[c] = table[mine].mean(axis=0)
    pull: NDArray[np.float32] = centres[labels] - table
    return pull


@dataclass(frozen=True)
class _Clustered:
    own: Own
    scene: Scene
    pull: NDArray[np.float32]
    strength: float

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`."""
        return self.own.rows[self.own.segment(i)]

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        honest, change = self.own.values[self.own.segment(i)], self.pull[self.rows(i)]
        length = float(np.linalg.norm(change))
        size = self.strength * change_norm(honest, self.scene.noise_scale)
        out[:] = change * np.float32(size / length if length > 0 else 0.0)
        if self.scene.config.attack_noise and self.scene.noise_scale > 0:
            noise = np.empty_like(out)
            fill_laplace(self.own.keys[i], self.scene.noise_scale, noise.reshape(-1))
            out += noise
