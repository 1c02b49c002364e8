"""A ragged table of item ids, one row a user: what is masked in a ranking, and the truth that it is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RowsLike(Protocol):
    """Anything that says where each user's items lie; rows may be part of a larger table and need not be adjacent.

    Row u is `items[starts[u]:ends[u]]`.
    """

    @property
    def items(self) -> NDArray[Any]:
        """(entries,) item ids of all rows."""

    @property
    def starts(self) -> NDArray[Any]:
        """(users,) first entry of each row."""

    @property
    def ends(self) -> NDArray[Any]:
        """(users,) one past the last entry of each row."""


class CsrLike(Protocol):
    """Anything that holds all users' items in order, as a split's parts do.

    Row u is `items[indptr[u]:indptr[u + 1]]`.
    """

    @property
    def indptr(self) -> NDArray[Any]:
        """(users + 1,) row pointers."""

    @property
    def items(self) -> NDArray[Any]:
        """(entries,) item ids of all rows."""


@dataclass(frozen=True)
class Rows:
    """The plain form of `RowsLike`.

    Parameters
    ----------
    items : (entries,) int32 item ids.
    starts, ends : (users,) int64 bounds of each row in `items`.
    """

    items: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of_csr(cls, table: CsrLike) -> Rows:
        """View a table with row pointers as rows."""
        indptr = np.asarray(table.indptr, dtype=np.int64)
        return cls(np.asarray(table.items, dtype=np.int32), indptr[:-1], indptr[1:])


def checked_rows(rows: RowsLike, num_users: int, num_items: int | None, name: str) -> Rows:
    """Return `rows` with settled types, refused unless every row lies inside `items` and every id inside the catalogue.

    Compiled loops do not check bounds, so nothing unchecked may reach them.

    Parameters
    ----------
    rows : the rows of `num_users` users.
    num_users : how many rows there must be.
    num_items : size of the catalogue; None where any non-negative id will do.
    name : what the rows are, for the message.

    Raises
    ------
    ValueError if the number of rows, a bound or an item id does not fit.
    """
    items = np.ascontiguousarray(rows.items)
    if items.size and not np.issubdtype(items.dtype, np.integer):
        raise ValueError(f"{name}: item ids must be integers, got {items.dtype}")
    starts = np.ascontiguousarray(rows.starts, dtype=np.int64)
    ends = np.ascontiguousarray(rows.ends, dtype=np.int64)
    if items.ndim != 1 or starts.shape != (num_users,) or ends.shape != (num_users,):
        raise ValueError(
            f"{name}: expected one row for each of {num_users} users, got starts {starts.shape}, ends {ends.shape}"
        )
    if num_users and (starts.min() < 0 or np.any(ends < starts) or ends.max() > items.size):
        raise ValueError(f"{name}: a row's bounds lie outside its {items.size} items or run backwards")
    limit = np.iinfo(np.int32).max if num_items is None else num_items
    if items.size and (items.min() < 0 or items.max() >= limit):
        raise ValueError(f"{name}: item ids must lie in [0, {limit}), got {items.min()} to {items.max()}")
    return Rows(items.astype(np.int32, copy=False), starts, ends)


def entries_of(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Spell a checked table out as pairs.

    Returns
    -------
    users : (pairs,) int64 row numbers, ascending.
    items : (pairs,) int32 item ids, in each row's order.
    """
    lengths = rows.ends - rows.starts  # (users,)
    users = np.repeat(np.arange(lengths.size), lengths)  # (pairs,)
    first = np.cumsum(lengths) - lengths  # (users,) where each row begins among the pairs
    position = np.arange(users.size) - np.repeat(first - rows.starts, lengths)  # (pairs,)
    return users, rows.items[position]
