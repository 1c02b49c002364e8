"""What a trusted node receives, once it has been decoded and checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Uploads:
    """Uploads of some clients, one segment each: Theta' - E on the rows that travelled.

    Attributes
    ----------
    nonces : (clients,) uint64. pointer : (clients + 1,) int64. rows : (touched,) int32, of each client sorted and distinct.
    values : (touched, k) float32, finite.
    cover_scale : scale of Laplace noise on all other rows that is still to be drawn (simulated dense uploads), else 0.
    """

    nonces: NDArray[np.uint64]
    pointer: NDArray[np.int64]
    rows: NDArray[np.int32]
    values: NDArray[np.float32]
    cover_scale: float

    @property
    def num_clients(self) -> int:
        """Clients behind these uploads."""
        return len(self.nonces)
