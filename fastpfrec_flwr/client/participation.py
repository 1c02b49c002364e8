"""Which of a SuperNode's users train this round: its own draw, which the server does not learn.

In a simulation the users of a round are a slice of one seeded permutation of all users, of which each SuperNode takes its own: the
same users train whatever the number of SuperNodes. A real device draws from the operating system's entropy.
"""

from __future__ import annotations

import secrets
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.randomness import derive_generator


def round_users(seed: int, phase: str, server_round: int, clients: int, num_users: int) -> NDArray[np.int64]:
    """Users that train in `server_round`, over all SuperNodes.

    Each permutation is walked through in whole rounds; the users left over at its end (fewer than `clients`) wait for the next
    one, which is drawn anew. So a round has distinct users, and everybody has the same chance.

    Returns
    -------
    (min(clients, num_users),) int64, ascending.
    """
    clients = min(clients, num_users)
    if clients == 0:
        return np.empty(0, np.int64)
    rounds_per_walk = num_users // clients
    walk, place = divmod(server_round - 1, rounds_per_walk)
    return np.sort(_order(seed, phase, walk, num_users)[place * clients : (place + 1) * clients])


@lru_cache(maxsize=4)
def _order(seed: int, phase: str, walk: int, num_users: int) -> NDArray[np.int64]:
    # Kept between rounds: with a million users it would be most of a small round.
    return derive_generator(seed, "participation", phase, walk).permutation(num_users)


def device_users(clients: int, num_users: int) -> NDArray[np.int64]:
    """Users of a real device that train this round: `clients` of them, from the operating system's entropy; ascending."""
    generator = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
    return np.sort(generator.choice(num_users, min(clients, num_users), replace=False)).astype(np.int64)


def places_of(own: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the `wanted` users that are among `own` stand there; both ascending and distinct."""
    places = np.searchsorted(own, wanted)
    inside = places < len(own)
    found: NDArray[np.int64] = places[inside][own[places[inside]] == wanted[inside]].astype(np.int64)
    return found
