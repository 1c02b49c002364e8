"""The draws of a SuperNode's users: keyed streams, of the run's seed in a simulation, of its own secret on a real device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.randomness import stream_key, user_stream_keys


@dataclass(frozen=True)
class Streams:
    """Streams of users, apart from each other and the same again for the same keys.

    Attributes
    ----------
    seed : of the run. secret : the device's; None in a simulation.
    """

    seed: int
    secret: int | None

    def keys(self, users: NDArray[np.int64], *purpose: int | str) -> NDArray[np.uint64]:
        """(users,) one stream for each user and purpose."""
        return user_stream_keys(stream_key(self.seed if self.secret is None else self.secret, *purpose), users)

    def of_false_items(self, users: NDArray[np.int64], *anew: str) -> NDArray[np.uint64]:
        """(users,) what the stars' false items are drawn from, in all rounds alike.

        Parameters
        ----------
        anew : what they are drawn anew for, if anything.
        """
        key = stream_key(self.seed, "secret") if self.secret is None else self.secret
        return user_stream_keys(stream_key(key, "secret", *anew) if anew else key, users)

    def first_vectors(self, users: NDArray[np.int64], embedding_dim: int, scale: float) -> NDArray[np.float32]:
        """(users, k) p_u before a user's first round: N(0, scale^2)."""
        vectors = np.empty((len(users), embedding_dim), np.float32)
        _normal_rows(self.keys(users, "private-vector"), vectors)
        return vectors * np.float32(scale)


@compiled
def _normal_rows(keys: Any, rows: Any) -> None:
    for u in range(rows.shape[0]):
        fill_normal(keys[u], rows[u])
