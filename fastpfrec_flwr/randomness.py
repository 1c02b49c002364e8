"""Every random draw of an experiment, keyed by what it belongs to.

Two families, both free of global state:

- `derive_generator(seed, *keys)`: a NumPy generator for draws made once in a while (initial tables, splits, sampling).
- `stream_key(seed, *keys)`: a 64-bit key of a counter-based stream for the kernels, where building a generator object per
  user and round would cost more than the draws. Value i of stream s is `mix64(s + (i + 1) * GOLDEN)`: SplitMix64 with
  random access (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).

The same keys give the same draw in whatever order clients arrive and on whatever process they run. Noise that protects a
real person must not come from here: see `privacy.noise`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _digest(seed: int, keys: tuple[int | str, ...]) -> bytes:
    """Hash of seed and keys; strings and integers never collide because each part carries its type and length."""
    text = hashlib.blake2b(digest_size=32)
    for part in (seed, *keys):
        data = str(part).encode()
        text.update(f"{type(part).__name__}:{len(data)}:".encode() + data)
    return text.digest()


def derive_generator(seed: int, *keys: int | str) -> np.random.Generator:
    """Return the generator that belongs to `keys` under `seed`.

    Parameters
    ----------
    seed : the run's seed.
    keys : what the draw belongs to, for example `("negatives", user, server_round)`.
    """
    return np.random.Generator(np.random.Philox(int.from_bytes(_digest(seed, keys)[:16], "little")))


def stream_key(seed: int, *keys: int | str) -> int:
    """Return the 64-bit key of the counter-based stream that belongs to `keys` under `seed`."""
    return int.from_bytes(_digest(seed, keys)[:8], "little")


def mix64(value: int) -> int:
    """SplitMix64's output function, the reference for the compiled one in `draws`."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def user_stream_keys(key: int, users: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Keys of one sub-stream per user.

    Parameters
    ----------
    key : from `stream_key(seed, purpose, server_round)`.
    users : (users,) global user numbers.

    Returns
    -------
    (users,) uint64, `mix64(key ^ mix64(user))` for each user.
    """

    from fastpfrec_flwr.draws import fill_user_keys  # and with it the compiler

    keys = np.empty(len(users), np.uint64)
    fill_user_keys(np.uint64(key), np.ascontiguousarray(users, np.int64), keys)
    return keys
