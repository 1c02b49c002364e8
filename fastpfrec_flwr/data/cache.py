"""Prepared splits on disk: plain .npy arrays that open by memory map, and a manifest that tells whether they are whole.

A directory appears by one rename when everything in it is written, so a reader finds all of it or nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.storage import make_directory, temporary_name
from fastpfrec_flwr.data.types import Csr, Shard, ShardRows, Split, SplitSettings, fingerprint

if TYPE_CHECKING:
    from fastpfrec_flwr.data.generated import Size

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
PARTS = ("train", "validation", "test")
_READ_AT_ONCE = 1 << 24
# NumPy reads a header by `ast`, which in Python 3.11 fails now and then where two threads do it at a time
# (cpython issue 106905), and simulated SuperNodes open their shards side by side.
_ONE_HEADER_AT_A_TIME = Lock()
_REMEDY = "Remove the directory; the next run prepares the data set again"


def save_split(split: Split, directory: Path) -> None:
    """Write a split; what stands at `directory` already is replaced."""

    def fill(temporary: Path) -> dict[str, Any]:
        arrays: dict[str, NDArray[Any]] = {"user_ids": split.user_ids, "item_ids": split.item_ids}
        for part in PARTS:
            csr: Csr = getattr(split, part)
            arrays |= {f"{part}_indptr": csr.indptr, f"{part}_items": csr.items}
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        return {
            "name": split.name,
            "num_users": split.num_users,
            "num_items": split.num_items,
            "num_reserved": split.num_reserved,
            "fingerprint": split.fingerprint,
            "settings": split.split_settings.as_dict(),
            "report": split.report,
        }

    _replace(directory, fill)


def save_generated(name: str, size: Size, settings: SplitSettings, report: dict[str, Any], directory: Path) -> None:
    """Generate a split straight onto the disk; what stands at `directory` already is replaced."""
    from fastpfrec_flwr.data.generated import write_generated  # compiled code, which few runs need

    def fill(temporary: Path) -> dict[str, Any]:
        figures = write_generated(size, settings, temporary)
        ids = {f"{kind}_ids": _numbers(count) for kind, count in (("user", size.users), ("item", size.items))}
        for key, array in ids.items():
            np.save(temporary / f"{key}.npy", array, allow_pickle=False)
        parts = {part: Csr(_open(temporary, f"{part}_indptr"), _open(temporary, f"{part}_items")) for part in PARTS}
        return {
            "name": name,
            "num_users": size.users,
            "num_items": size.items,
            "fingerprint": fingerprint(parts, ids["user_ids"], ids["item_ids"]),
            "settings": replace(settings, method="random").as_dict(),
            "report": {**report, **figures},
        }

    _replace(directory, fill)


def _numbers(count: int) -> NDArray[np.str_]:
    """The ids "0", "1", ... as an array."""
    return np.arange(count).astype(f"<U{len(str(count - 1))}")


def _replace(directory: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Have `fill` write .npy files into a new directory and tell what they are; then put it in place of `directory`."""
    temporary = make_directory(temporary_name(directory))
    try:
        facts = fill(temporary)
        files = {path.name: _size_and_crc(path) for path in sorted(temporary.glob("*.npy"))}
        manifest = {"schema": SCHEMA_VERSION, **facts, "files": files}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if directory.exists():
            broken = temporary_name(directory)
            os.replace(directory, broken)
            shutil.rmtree(broken, ignore_errors=True)
        os.replace(temporary, directory)
    except OSError as error:
        raise DataError(f"{directory}: cannot be written ({error}). Free some space or make it writable") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_intact(directory: Path) -> bool:
    """Tell whether everything written by `save_split` is still there, byte for byte."""
    try:
        files = read_manifest(directory)["files"]
        return bool(files) and all(_size_and_crc(directory / name) == expected for name, expected in files.items())
    except (DataError, OSError, AttributeError):
        return False


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a prepared split.

    Raises
    ------
    DataError if there is none, or one of another version.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{directory}: no prepared data set ({error}). {_REMEDY}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA_VERSION or "files" not in manifest:
        raise DataError(f"{directory}: prepared by another version. {_REMEDY}")
    return manifest


def load_split(directory: Path) -> Split:
    """Open a prepared split; its arrays are memory-mapped."""
    manifest = read_manifest(directory)
    parts = {part: Csr(_open(directory, f"{part}_indptr"), _open(directory, f"{part}_items")) for part in PARTS}
    return Split(
        manifest["name"],
        manifest["num_users"],
        manifest["num_items"],
        parts["train"],
        parts["validation"],
        parts["test"],
        _open(directory, "user_ids"),
        _open(directory, "item_ids"),
        manifest["report"],
        manifest["fingerprint"],
        SplitSettings(**manifest["settings"]),
        manifest.get("num_reserved", 0),
    )


def open_shard(directory: Path, partition: int, num_partitions: int) -> Shard:
    """Open the rows of users `partition, partition + num_partitions, ...` and of nobody else.

    Parameters
    ----------
    directory : of a prepared split (`PreparedSplit.directory`).
    partition, num_partitions : as Flower numbers its SuperNodes, 0-based.

    Raises
    ------
    DataError if the directory holds no prepared split, or there is no such partition.
    """
    if not 0 <= partition < num_partitions:
        raise DataError(f"partition-id must be >= 0 and < num-partitions, got {partition} of {num_partitions}")
    manifest = read_manifest(directory)
    users = np.arange(partition, manifest["num_users"], num_partitions, dtype=np.int64)

    def rows(part: str) -> ShardRows:
        indptr = _open(directory, f"{part}_indptr")
        return ShardRows(_open(directory, f"{part}_items"), np.asarray(indptr[users]), np.asarray(indptr[users + 1]))

    return Shard(
        users,
        manifest["num_items"],
        rows("train"),
        rows("validation"),
        rows("test"),
        manifest.get("num_reserved", 0),
    )


def _open(directory: Path, name: str) -> NDArray[Any]:
    path = directory / f"{name}.npy"
    try:
        with _ONE_HEADER_AT_A_TIME:
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        if path.exists():
            try:
                # An empty array has no bytes to map.
                array: NDArray[Any] = np.load(path, allow_pickle=False)
                if not array.size:
                    return array
            except (OSError, ValueError):
                pass
        raise DataError(f"{path}: cannot be opened ({error}). {_REMEDY}") from error


def _size_and_crc(path: Path) -> list[int]:
    size, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(_READ_AT_ONCE):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]
