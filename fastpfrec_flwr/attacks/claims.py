"""What lying users claim to have, kept from one round to the next: it takes thousands of draws and is the same in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpfrec_flwr.data import Shard

MOST_KEPT = 16


class Claims:
    """The claims of the SuperNodes that one ClientApp has answered for."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Shard] = {}

    def of(self, whose: tuple[object, ...], make: Callable[[], Shard]) -> Shard:
        """What is kept under `whose`, made where there is nothing yet."""
        found = self._made.get(whose)
        if found is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            found = self._made[whose] = make()
        return found
