"""Interactions as read from files: pairs of codes, with weight and time where the source has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.data.errors import DataError

MISSING_IDS = frozenset({"", "nan", "null", "none", "<na>"})


class IdMap:
    """Numbers ids in order of appearance. All files of a data set share one map for users and one for items."""

    def __init__(self) -> None:
        self._codes: defaultdict[str, int] = defaultdict()
        self._codes.default_factory = self._codes.__len__

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, ids: Iterable[str]) -> list[int]:
        """Return the code of each id; unknown ids get the next free one."""
        return list(map(self._codes.__getitem__, ids))

    def newest(self, count: int) -> list[str]:
        """Return the `count` ids that came last: those worth a look after a block of lines."""
        return list(islice(reversed(self._codes), count))

    def ids(self) -> list[str]:
        """Return all ids; the one at position c has code c."""
        return list(self._codes)


@dataclass
class Ids:
    """The two id maps of a data set."""

    users: IdMap = field(default_factory=IdMap)
    items: IdMap = field(default_factory=IdMap)


@dataclass(frozen=True)
class Interactions:
    """The content of one file.

    Attributes
    ----------
    users, items : (pairs,) int32 codes of `Ids`, in the order of the file, repeats included.
    weights : (pairs,) float64, None where the source has none.
    timestamps : (pairs,) float64 in the source's own unit, None where the source has none.
    format : the detected format, in words.
    lines : non-blank lines (rows of a table) of the file, its header included.
    empty_users : lines of a user without a single item.
    """

    path: Path
    users: NDArray[np.int32]
    items: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    timestamps: NDArray[np.float64] | None
    format: str
    lines: int
    empty_users: int = 0


def id_problem(value: str) -> str | None:
    """Say what is wrong with an id, or None if nothing is."""
    if value.lower() in MISSING_IDS:
        return f"an id is missing (found {value!r})"
    if value[0] == "-" and value[1:].isdigit():
        return f"the id {value} is negative, which usually marks padding or a missing value"
    return None


def sort_ids(ids: list[str]) -> NDArray[np.intp]:
    """Order of the catalogue: by number if every id is a plain integer, else by text.

    Numbers given in this order do not depend on the order of lines in a file, so two copies of a data set agree.
    """
    if all(value.isascii() and value.isdigit() and len(value) < 19 for value in ids):
        # Ties ("7" and "07" are different ids) fall back to the text.
        keys = list(map(int, ids))
        return np.array(sorted(range(len(ids)), key=lambda code: (keys[code], ids[code])), dtype=np.intp)
    return np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.intp)


def restrict(
    found: dict[str, Interactions], ids: Ids, catalogue: Catalogue, report: dict[str, Any]
) -> dict[str, Interactions]:
    """Keep the interactions whose item the catalogue has; `report` gets the count of the others.

    Raises
    ------
    DataError if nothing is left: most likely the ids are of another kind than the catalogue's.
    """
    item_ids = ids.items.ids()
    known = np.array([catalogue.row(each) is not None for each in item_ids], dtype=np.bool_)
    kept = {role: _chosen(part, known[part.items]) for role, part in found.items()}
    pairs, left = (sum(len(part.items) for part in parts.values()) for parts in (found, kept))
    report |= {
        "catalogue": catalogue.label,
        "items_not_in_catalogue": int((~known).sum()),
        "interactions_not_in_catalogue": pairs - left,
    }
    if not left:
        path = next(iter(found.values())).path
        raise DataError(
            f"{path}: none of its {len(item_ids)} items (the first is {item_ids[0]!r}) is in {catalogue.label} (its first is "
            f"{catalogue.ids[0]!r}). Use the ids that the catalogue has, or the catalogue of this data"
        )
    return kept


def _chosen(part: Interactions, keep: NDArray[np.bool_]) -> Interactions:
    return replace(
        part,
        users=part.users[keep],
        items=part.items[keep],
        weights=None if part.weights is None else part.weights[keep],
        timestamps=None if part.timestamps is None else part.timestamps[keep],
    )
