"""A real device's own file: interactions of one user or many, on the rows of a catalogue that everybody shares.

Nothing of it is kept anywhere else: the file is read anew by each process, in milliseconds for one user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.interactions import Ids, restrict
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


def read_device(
    path: Path,
    catalogue: Catalogue,
    settings: SplitSettings,
    number: Callable[[list[str]], NDArray[np.int64]],
) -> DeviceData:
    """Read a device's file or folder.

    Parameters
    ----------
    path : one file of interactions, or a folder with train, validation and test files.
    catalogue : gives the items their rows; what it does not have is left out and counted.
    number : gives each user id a number of its own that stays the same whatever else the file holds: state is kept under it.

    Raises
    ------
    DataError naming file, line, value and remedy.
    """
    if not path.exists():
        raise DataError(f"data-path {path}: no such file or folder. Look at --node-config of this SuperNode")
    files = files_of_directory(path) if path.is_dir() else {"all": path}
    ids = Ids()
    found = read_files(files, ids, settings.min_weight)
    report: dict[str, Any] = {"files": {role: str(part.path) for role, part in found.items()}}
    found = restrict(found, ids, catalogue, report)
    split = make_split(path.stem, ids, found, settings, report, catalogue)
    numbers = number([str(user) for user in split.user_ids])
    order = np.argsort(numbers)

    def rows(part: Csr) -> ShardRows:
        return ShardRows(part.items, part.indptr[:-1][order], part.indptr[1:][order])

    shard = Shard(
        numbers[order], split.num_items, rows(split.train), rows(split.validation), rows(split.test), split.num_reserved
    )
    return DeviceData(shard, report)
