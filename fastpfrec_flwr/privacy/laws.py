"""The laws of noise: what checks and averages need to know of noise that they do not see yet.

A simulated dense upload carries the noise of its touched rows only; that on all other rows is drawn where it is added up, from
the moments of its law. So a new law is an entry here, a draw in `privacy.noise`, and a `Cost` in `privacy.accountant`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LAPLACE, GAUSSIAN = "laplace", "gaussian"
# Of scale 1: variance, fourth cumulant.
_UNIT_MOMENTS = {LAPLACE: (2.0, 12.0), GAUSSIAN: (1.0, 0.0)}


@dataclass(frozen=True)
class NoiseLaw:
    """Noise on one coordinate: independent of all others, symmetric about zero.

    Attributes
    ----------
    kind : `laplace` or `gaussian`. scale : lambda of a Laplace, standard deviation sigma of a Gaussian; 0 is no noise.

    Raises
    ------
    ValueError for another kind.
    """

    kind: str
    scale: float

    def __post_init__(self) -> None:
        if self.kind not in _UNIT_MOMENTS:
            raise ValueError(f"noise must be one of {', '.join(_UNIT_MOMENTS)}, got {self.kind!r}")

    @property
    def unit_variance(self) -> float:
        """Variance at scale 1."""
        return _UNIT_MOMENTS[self.kind][0]

    @property
    def unit_fourth(self) -> float:
        """Fourth cumulant at scale 1; like the variance it adds up over independent noises."""
        return _UNIT_MOMENTS[self.kind][1]

    @property
    def unit_square_variance(self) -> float:
        """Variance of the noise's square at scale 1: 2 variance^2 + fourth cumulant."""
        return 2.0 * self.unit_variance**2 + self.unit_fourth

    @property
    def deviation(self) -> float:
        """Standard deviation of a coordinate."""
        return self.scale * math.sqrt(self.unit_variance)

    @property
    def gaussian(self) -> bool:
        """Whether draws are normal; what the kernels branch on."""
        return self.kind == GAUSSIAN
