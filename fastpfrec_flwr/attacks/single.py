"""Attacks that each liar makes alone: it knows its own upload, the public table and the run configuration, and nobody else's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.forging import Forgery, Own, Scene, Whole, normals
from fastpfrec_flwr.randomness import derive_generator


@dataclass(frozen=True)
class Honest:
    """What the devices would have sent: for liars whose data or training lies, not their upload."""

    own: Own

    def rows(self, i: int) -> NDArray[np.int32]:
        """See `Forgery`."""
        return self.own.rows[self.own.segment(i)]

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        out[:] = self.own.values[self.own.segment(i)]


@dataclass(frozen=True)
class Retrained:
    """Gradient ascent, label flip and shilling: the lie is in the training (`attacks.training`); the upload is what came of it."""

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        return Honest(own)


@dataclass(frozen=True)
class Noise:
    """x + N(0, sigma^2) on every coordinate; own strength sigma = 1."""

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        return _Noised(own, scene, scene.strength(1.0))


@dataclass(frozen=True)
class _Noised(Whole):
    sigma: float

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        super().fill(i, out)
        noise = np.empty_like(out)
        normals(self.own.keys[i], noise)
        noise *= np.float32(self.sigma)
        out += noise


@dataclass(frozen=True)
class Shift:
    """x + c on every coordinate; own strength c = 1."""

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        return _Shifted(own, scene, scene.strength(1.0))


@dataclass(frozen=True)
class _Shifted(Whole):
    step: float

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        super().fill(i, out)
        out += np.float32(self.step)


@dataclass(frozen=True)
class Scaling:
    """f x on the rows that the upload carries, noise as it is elsewhere; own strength f = 10."""

    default: float = 10.0

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        return _Scaled(own, scene.strength(abs(self.default)) * (1.0 if self.default > 0 else -1.0))


@dataclass(frozen=True)
class _Scaled(Honest):
    factor: float

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`."""
        np.multiply(self.own.values[self.own.segment(i)], np.float32(self.factor), out=out)


def sign_flip() -> Scaling:
    """-f x; own strength f = 1: the honest change backwards, of honest size."""
    return Scaling(-1.0)


@dataclass(frozen=True)
class Replacement:
    """Model replacement (Bagdasaryan et al., AISTATS 2020): f (R - E), so that the average of all becomes R.

    R is a table drawn like the first one. Own strength f = clients / liars, which the liar knows from the run configuration.
    """

    def forge(self, own: Own, scene: Scene) -> Forgery:
        """See `Attack`."""
        config = scene.config
        boost = scene.strength(1.0 / max(config.attack_fraction, 1.0 / config.clients_per_round))
        wanted = derive_generator(config.seed, "replacement").normal(0.0, config.init_scale, scene.table.shape)
        return _Replaced(own, scene, (boost * (wanted - scene.table)).astype(np.float32))


@dataclass(frozen=True)
class _Replaced(Whole):
    change: NDArray[np.float32]

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """See `Forgery`. It needs no noise: the boost drowns it."""
        out[:] = self.change[self.rows(i)]
