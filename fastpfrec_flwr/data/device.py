"""A real device's own file: interactions of one user or many, on the rows of a catalogue that everybody shares.

Nothing of it is kept anywhere else: the file is read anew by each process, in milliseconds for one user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.interactions import Ids, id_problem
from fastpfrec_flwr.data.reading import read_files
from fastpfrec_flwr.data.sources import files_of_directory
from fastpfrec_flwr.data.splitting import make_split
from fastpfrec_flwr.data.types import Csr, Shard, ShardRows, SplitSettings


class DeviceData(NamedTuple):
    """What a device holds.

    Attributes
    ----------
    shard : its users under their own numbers. report : what was read and left out, JSON-able; for the device's owner only.
    """

    shard: Shard
    report: dict[str, Any]


def read_items(path: Path) -> list[str]:
    """Item ids of a catalogue file in row order: one a line.

    Raises
    ------
    DataError if the file cannot be read, is empty, or repeats an id.
    """
    try:
        items = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"items-path {path}: cannot be read ({error}). Give the file that the server gave out"
        ) from error
    if not items:
        raise DataError(f"items-path {path}: no item in it. Give one item id a line, in the server's order")
    if len(set(items)) < len(items):
        twice = next(item for item in items if items.count(item) > 1)
        raise DataError(f"items-path {path}: item {twice} stands in it twice. Give each item one row")
    for item in items:
        if problem := id_problem(item):
            raise DataError(f"items-path {path}: {problem}. Give every item an id")
    return items


def catalogue_hash(items: Sequence[str]) -> str:
    """Hash of item ids in row order, 16 hex digits: equal hashes mean equal rows."""
    return hashlib.sha256("\n".join(items).encode()).hexdigest()[:16]


def read_device(
    path: Path,
    items: Sequence[str],
    settings: SplitSettings,
    number: Callable[[list[str]], NDArray[np.int64]],
) -> DeviceData:
    """Read a device's file or folder.

    Parameters
    ----------
    path : one file of interactions, or a folder with train, validation and test files.
    items : the catalogue's ids in row order.
    number : gives each user id a number of its own that stays the same whatever else the file holds: state is kept under it.

    Raises
    ------
    DataError naming file, line, value and remedy.
    """
    if not path.exists():
        raise DataError(f"data-path {path}: no such file or folder. Look at --node-config of this SuperNode")
    files = files_of_directory(path) if path.is_dir() else {"all": path}
    ids = Ids()
    ids.items.encode(items)
    found = read_files(files, ids, settings.min_weight)
    report: dict[str, Any] = {"files": {role: str(part.path) for role, part in found.items()}}
    split = make_split(path.stem, ids, found, settings, report, catalogue=len(items))
    numbers = number([str(user) for user in split.user_ids])
    order = np.argsort(numbers)

    def rows(part: Csr) -> ShardRows:
        return ShardRows(part.items, part.indptr[:-1][order], part.indptr[1:][order])

    shard = Shard(numbers[order], len(items), rows(split.train), rows(split.validation), rows(split.test))
    return DeviceData(shard, report)
