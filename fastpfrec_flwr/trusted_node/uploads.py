"""What a trusted node receives, once it has been decoded and checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.privacy.laws import LAPLACE, NoiseLaw


@dataclass(frozen=True)
class Norms:
    """Squared L2 norms of some uploads.

    Attributes
    ----------
    whole : (clients,) of each client's upload. largest_row : (clients,) of its longest row.
    """

    whole: NDArray[np.float64]
    largest_row: NDArray[np.float64]

    def of(self, members: NDArray[np.int64]) -> Norms:
        """Those of some clients."""
        return Norms(self.whole[members], self.largest_row[members])


@dataclass(frozen=True)
class Uploads:
    """Uploads of some clients, one segment each: Theta' - E on the rows that travelled.

    Attributes
    ----------
    nonces : (clients,) uint64. pointer : (clients + 1,) int64. rows : (touched,) int32, of each client sorted and distinct.
    values : (touched, k) float32, finite.
    cover_scale : scale of the noise on all other rows that is still to be drawn (simulated dense uploads), else 0.
    noise_kind : its law, see `privacy.laws`.
    norms : of each client's `values`, where whoever read them has them; a changed copy has none.
    """

    nonces: NDArray[np.uint64]
    pointer: NDArray[np.int64]
    rows: NDArray[np.int32]
    values: NDArray[np.float32]
    cover_scale: float
    noise_kind: str = LAPLACE
    norms: Norms | None = field(default=None, init=False, repr=False, compare=False)

    def with_norms(self, norms: Norms) -> Uploads:
        """These uploads with the norms of their values."""
        known = replace(self)
        object.__setattr__(known, "norms", norms)
        return known

    @property
    def cover(self) -> NoiseLaw:
        """Law of the cover noise."""
        return NoiseLaw(self.noise_kind, self.cover_scale)

    @property
    def num_clients(self) -> int:
        """Clients behind these uploads."""
        return len(self.nonces)
