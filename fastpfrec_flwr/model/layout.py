"""How the table that server and clients share is laid out: the items' rows first, then whatever else a model shares, as rows.

A network's weights, or a second table for each cluster of users, are rows of the same width. So they travel in the same messages,
are clipped, noised, checked and averaged like the items' rows, and no part of the system has to know of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Layout(Protocol):
    """The rows of one model's shared table."""

    def rows(self, num_items: int) -> int:
        """Rows of the table in all."""

    def start(self, item_rows: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
        """The table to begin with, from the items' rows (items, k)."""

    def after_step(self, table: NDArray[np.float32]) -> None:
        """What the server itself changes in a table after its step, in place: it is the step's own new one."""


@dataclass(frozen=True)
class ItemsOnly:
    """Nothing but the items' rows."""

    def rows(self, num_items: int) -> int:
        """See `Layout`."""
        return num_items

    def start(self, item_rows: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
        """See `Layout`."""
        return item_rows

    def after_step(self, table: NDArray[np.float32]) -> None:
        """See `Layout`; nothing."""
