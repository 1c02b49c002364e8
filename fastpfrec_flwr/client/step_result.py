"""What the local steps have in common, whatever computes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StepResult:
    """What one local step gives: changes (not yet private), new private vectors, losses before the step.

    Attributes
    ----------
    changes : (touched, k) float32. private : (users, k) float32. losses : (users,) float64, sum over the user's positives.
    """

    changes: NDArray[np.float32]
    private: NDArray[np.float32]
    losses: NDArray[np.float64]
