"""The values of this room: sparse rows, a split, one SuperNode's shard of it, and the settings that make a split.

All of them are immutable, and their arrays are memory-mapped where they come from the cache: opening a data set costs a
few file handles, and a page is read when a row of it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError

Method = Literal["auto", "released", "chronological", "random"]
Progress = Callable[[str, int, int | None], None]  # (what, bytes done, bytes in all if known)


@dataclass(frozen=True)
class SplitSettings:
    """How interactions become train, validation and test.

    Attributes
    ----------
    method : "released" keeps the source's own test file; "chronological" puts each user's latest interactions into the
        test set; "random" draws them per user by `seed`; "auto" takes the first of these that the source allows.
    validation_fraction : share of each user's train pairs cut off for validation (where the source brings none).
    test_fraction : share of each user's pairs in the test set; unused by "released".
    seed : of the random draws.
    min_weight : only interactions with at least this weight (a rating, say) count. By default all do, and weights
        of zero and less are refused, because nobody can tell what they were meant to say.
    """

    method: Method = "auto"
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    seed: int = 0
    min_weight: float | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise DataError(f"split method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        for name in ("validation_fraction", "test_fraction"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise DataError(f"{name.replace('_', '-')} must be a number >= 0 and < 1, got {value!r}")
        if self.min_weight is not None and not np.isfinite(self.min_weight):
            raise DataError(f"min-weight must be a finite number, got {self.min_weight!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-able values."""
        return asdict(self)


@dataclass(frozen=True)
class Csr:
    """Items of each user: row u is `items[indptr[u]:indptr[u + 1]]`, ascending and without repeats.

    Attributes
    ----------
    indptr : (users + 1,) int64.
    items : (pairs,) int32.
    """

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        """Number of users."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """Number of pairs."""
        return len(self.items)

    def row(self, user: int) -> NDArray[np.int32]:
        """Return the items of one user, a view."""
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of items of each user, (users,)."""
        return np.diff(self.indptr)

    def check(self, name: str, num_items: int) -> None:
        """Raise `DataError` unless the rows are well formed and every item is within the catalogue."""
        bounds = self.indptr
        if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != self.nnz or (np.diff(bounds) < 0).any():
            raise DataError(f"{name}: row bounds do not fit {self.nnz} pairs. Prepare the data set again")
        if self.nnz and (self.items.min() < 0 or self.items.max() >= num_items):
            wrong = self.items[(self.items < 0) | (self.items >= num_items)][0]
            raise DataError(f"{name}: item {wrong} is beyond the catalogue of {num_items} items (0 to {num_items - 1})")
        rising = np.diff(self.items.astype(np.int64)) > 0
        starts = bounds[1:-1]
        rising[starts[(starts > 0) & (starts < self.nnz)] - 1] = True
        if not rising.all():
            raise DataError(f"{name}: the items of a row must ascend without repeats. Prepare the data set again")


@dataclass(frozen=True)
class Split:
    """Train, validation and test pairs over one numbering of users and items; pairwise disjoint.

    Attributes
    ----------
    name : the data set's.
    user_ids, item_ids : (num_users,), (num_items,) the source's own ids, as strings; number -> id.
    report : what was read and dropped, JSON-able.
    fingerprint : SHA-256 over arrays and ids: equal fingerprints mean equal data.
    split_settings : the settings, with the method that "auto" chose.
    num_reserved : rows at the end that a catalogue keeps for items to come; nobody can have them.
    """

    name: str
    num_users: int
    num_items: int
    train: Csr
    validation: Csr
    test: Csr
    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    report: dict[str, Any]
    fingerprint: str
    split_settings: SplitSettings
    num_reserved: int = 0


@dataclass(frozen=True)
class ShardRows:
    """Rows of the users of one shard within the whole, memory-mapped array: nobody else's rows are read.

    Attributes
    ----------
    items : (pairs of all users,) int32.
    starts, ends : (users of the shard,) int64, bounds of each user's row in `items`.
    """

    items: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of items of each user, (users of the shard,)."""
        return self.ends - self.starts

    def row(self, position: int) -> NDArray[np.int32]:
        """Return the items of the user at `position` within the shard, a view."""
        return self.items[self.starts[position] : self.ends[position]]


@dataclass(frozen=True)
class Shard:
    """What one SuperNode holds: the users `partition, partition + num_partitions, ...` and their rows.

    Attributes
    ----------
    users : (users,) int64 global user numbers, ascending.
    num_items : rows of the table. num_reserved : of those, at the end, for items to come.
    """

    users: NDArray[np.int64]
    num_items: int
    train: ShardRows
    validation: ShardRows
    test: ShardRows
    num_reserved: int = 0

    @property
    def num_choices(self) -> int:
        """Items that there are: what can be a false item, a negative or a recommendation."""
        return self.num_items - self.num_reserved


def fingerprint(parts: dict[str, Csr], user_ids: NDArray[np.str_], item_ids: NDArray[np.str_]) -> str:
    """Return the SHA-256 (hex) over the rows and the id maps, independent of the machine's byte order."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}:{parts[name].num_rows}:{parts[name].nnz}\n".encode())
        digest.update(np.ascontiguousarray(parts[name].indptr, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(parts[name].items, dtype="<i4").tobytes())
    for ids in (user_ids, item_ids):
        # A text id cannot hold a line break, so this is injective.
        digest.update("\n".join(ids.tolist()).encode() + b"\0")
    return digest.hexdigest()
