"""Generated data sets of any size, written to disk row by row: for what a million users cost.

The kind of `data.synthetic` (communities of taste, popularity like 1 / rank**exponent), drawn in a way whose cost is that of
the pairs: a user's item comes from her own community with probability `LOYALTY`, else from all others, by popularity, until her
row is full of distinct items. Validation and test pairs are drawn per user as `data.splitting` draws them ("random").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.types import SplitSettings
from fastpfrec_flwr.draws import stream_value
from fastpfrec_flwr.parallel import available_threads, in_parallel
from fastpfrec_flwr.randomness import derive_generator, stream_key, user_stream_keys

LOYALTY, EXPONENT, DATA_SEED = 0.85, 0.9, 0
ITEMS_PER_COMMUNITY = 1000
LONGEST_ROW = 512
_NAME = re.compile(r"synthetic-(\d{1,12})x(\d{1,12})x(\d{1,6})")
_USERS_PER_TASK = 4096
# Draws for each item of a row before the rest of it is filled in order: only tiny catalogues get there.
_TRIES = 64


@dataclass(frozen=True)
class Size:
    """Users, items and the mean length of a row."""

    users: int
    items: int
    per_user: int

    @property
    def communities(self) -> int:
        """Communities of taste, of about `ITEMS_PER_COMMUNITY` items, at least four."""
        return max(4, self.items // ITEMS_PER_COMMUNITY)


def size_of(name: str) -> Size | None:
    """What a name like `synthetic-1000000x1000000x50` (users x items x interactions per user) asks for, else None.

    Raises
    ------
    DataError if it asks for what cannot be made.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    size = Size(*map(int, found.groups()))
    if not (4 <= size.users < 2**31 and 16 <= size.items < 2**31 and 2 <= size.per_user <= min(128, size.items // 4)):
        raise DataError(
            f"data-set {name}: USERSxITEMSxPER_USER must be at least 4 users, 16 items and 2 interactions, with at most 128 "
            f"interactions and a quarter of the items for each user"
        )
    return size


@dataclass(frozen=True)
class _Taste:
    """Items ordered by community, each community's running sum of popularity, and where it begins.

    `running` (items,) float64 grows over all items; `bounds` (communities + 1,) int64.
    """

    items: NDArray[np.int32]
    running: NDArray[np.float64]
    bounds: NDArray[np.int64]


def _taste(size: Size) -> _Taste:
    generator = derive_generator(DATA_SEED, "generated", size.users, size.items, size.per_user)
    community = generator.permutation(np.arange(size.items) % size.communities)
    popularity = np.power(generator.permutation(size.items) + 1.0, -EXPONENT)
    order = np.argsort(community, kind="stable").astype(np.int32)
    bounds = np.searchsorted(community[order], np.arange(size.communities + 1)).astype(np.int64)
    return _Taste(order, np.cumsum(popularity[order] / popularity.sum()), bounds)


def row_lengths(size: Size) -> NDArray[np.int64]:
    """(users,) pairs of each user: 2 and a negative binomial excess, as in `data.synthetic`."""
    generator = derive_generator(DATA_SEED, "generated-lengths", size.users, size.items, size.per_user)
    excess = size.per_user - 2
    drawn = generator.negative_binomial(3, 3 / (3 + excess), size.users) if excess else np.zeros(size.users, np.int64)
    return np.minimum(2 + drawn, min(LONGEST_ROW, size.items // 2)).astype(np.int64)


def cut_lengths(lengths: NDArray[np.int64], settings: SplitSettings) -> dict[str, NDArray[np.int64]]:
    """Pairs of each user in each part, as `data.splitting` counts them; everybody keeps a train pair."""
    generator = derive_generator(settings.seed, "generated-split")
    test = np.minimum(np.floor(lengths * settings.test_fraction + generator.random(len(lengths))), lengths - 1)
    rest = lengths - test
    validation = np.minimum(np.floor(rest * settings.validation_fraction + generator.random(len(lengths))), rest - 1)
    parts = {"train": rest - validation, "validation": validation, "test": test}
    return {part: counts.astype(np.int64) for part, counts in parts.items()}


def write_generated(size: Size, settings: SplitSettings, directory: Path) -> dict[str, Any]:
    """Write `<part>_indptr.npy` and `<part>_items.npy` of a split into a directory, block of users by block.

    Returns
    -------
    Figures for the report.

    Raises
    ------
    DataError if the settings ask for a split or a weight that these data have not.
    """
    if settings.method not in ("auto", "random") or settings.min_weight is not None:
        raise DataError("generated data have no times, weights or test file: use split = 'random' and no min-weight")
    lengths, taste = row_lengths(size), _taste(size)
    bounds, items = {}, {}
    for part, counts in cut_lengths(lengths, settings).items():
        bounds[part] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        np.save(directory / f"{part}_indptr.npy", bounds[part], allow_pickle=False)
        items[part] = _new_array(directory / f"{part}_items.npy", int(bounds[part][-1]))
    row_key, cut_key = stream_key(DATA_SEED, "generated-row"), stream_key(settings.seed, "generated-cut")

    def run(first: int) -> None:
        users = np.arange(first, min(first + _USERS_PER_TASK, size.users))
        _write_rows(
            user_stream_keys(row_key, users), user_stream_keys(cut_key, users), first, lengths,
            taste.items, taste.running, taste.bounds, LOYALTY,
            bounds["train"], bounds["validation"], bounds["test"], items["train"], items["validation"], items["test"],
        )  # fmt: skip

    in_parallel(run, range(0, size.users, _USERS_PER_TASK), available_threads())
    for array in items.values():
        if isinstance(array, np.memmap):
            array.flush()
    return {
        "method": "random",
        "users": size.users,
        "items": size.items,
        "communities": size.communities,
        **{f"{part}_pairs": int(bounds[part][-1]) for part in items},
        "pairs_per_user_mean": round(float(lengths.mean()), 2),
    }


def _new_array(path: Path, length: int) -> NDArray[np.int32]:
    """A new (length,) array on disk, written to by assignment."""
    if length == 0:  # there are no bytes to map
        np.save(path, np.empty(0, np.int32), allow_pickle=False)
        return np.empty(0, np.int32)
    array: NDArray[np.int32] = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(length,))
    return array


@compiled
def _drawn(bits: Any, running: Any, first: int, last: int) -> int:
    """Place in [first, last) by popularity, from 53 of 64 random bits."""
    below = running[first - 1] if first > 0 else 0.0
    wanted = below + float(bits >> np.uint64(11)) * 2.0**-53 * (running[last - 1] - below)
    low, high = first, last - 1
    while low < high:
        middle = (low + high) // 2
        if running[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _row(key: Any, count: int, order: Any, running: Any, communities: Any, loyalty: float, row: Any) -> None:
    """`count` distinct items of one user into `row`."""
    num_items, of_all = order.shape[0], communities.shape[0] - 1
    own = np.int64(stream_value(key, np.uint64(0)) % np.uint64(of_all))
    first, last = communities[own], communities[own + 1]
    made, index = 0, np.uint64(1)
    while made < count:
        if index <= np.uint64(_TRIES * count):
            loyal = float(stream_value(key, index) >> np.uint64(11)) * 2.0**-53 < loyalty
            bits = stream_value(key, index + np.uint64(1))
            index += np.uint64(2)
            place = _drawn(bits, running, first, last) if loyal else _drawn(bits, running, 0, num_items)
            if not loyal and first <= place < last:
                continue
        else:
            place = np.int64(index) % num_items
            index += np.uint64(1)
        item = order[place]
        new = True
        for t in range(made):
            if row[t] == item:
                new = False
                break
        if new:
            row[made] = item
            made += 1


@compiled
def _write_rows(
    keys: Any,
    cut_keys: Any,
    first_user: int,
    lengths: Any,
    order: Any,
    running: Any,
    communities: Any,
    loyalty: float,
    train_at: Any,
    validation_at: Any,
    test_at: Any,
    train: Any,
    validation: Any,
    test: Any,
) -> None:
    row = np.empty(LONGEST_ROW, np.int32)
    for j in range(keys.shape[0]):
        user = first_user + j
        count = lengths[user]
        _row(keys[j], count, order, running, communities, loyalty, row)
        tested = test_at[user + 1] - test_at[user]
        held = validation_at[user + 1] - validation_at[user]
        # Early draws are popular ones, so which of them are held out is drawn anew.
        for t in range(tested + held):
            other = t + np.int64(stream_value(cut_keys[j], np.uint64(t)) % np.uint64(count - t))
            row[t], row[other] = row[other], row[t]
        test[test_at[user] : test_at[user + 1]] = np.sort(row[:tested])
        validation[validation_at[user] : validation_at[user + 1]] = np.sort(row[tested : tested + held])
        train[train_at[user] : train_at[user + 1]] = np.sort(row[tested + held : count])
