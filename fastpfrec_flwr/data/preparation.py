"""The way from a name or path to a split that opens in milliseconds: find, read, split, keep.

What is kept is keyed by the SHA-256 of the source files, the settings, and the source code that reads and splits: a
changed file, setting or rule makes a new one, and nothing has to be invalidated by hand.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data.cache import SCHEMA_VERSION, is_intact, load_split, read_manifest, save_generated, save_split
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.sources import Source, resolve
from fastpfrec_flwr.data.storage import cache_root, one_at_a_time, sha256_of
from fastpfrec_flwr.data.types import Progress, Split, SplitSettings


@dataclass(frozen=True)
class PreparedSplit:
    """A split on disk.

    Attributes
    ----------
    directory : for `open_shard`; absolute.
    from_cache : False if it was made by this very call.
    """

    name: str
    directory: Path
    fingerprint: str
    report: dict[str, Any]
    from_cache: bool

    def load(self) -> Split:
        """Open it; arrays are memory-mapped."""
        return load_split(self.directory)


def prepare(
    data_set: str,
    data_dir: str | Path | None,
    settings: SplitSettings,
    progress: Progress | None = None,
    offline: bool = False,
    catalogue: Catalogue | None = None,
) -> PreparedSplit:
    """Find a data set (fetching it if need be), read and split it once, and keep the result.

    Parameters
    ----------
    data_set : a name (`DATA_SET_NAMES`), or the path of a file or a directory.
    data_dir : directory that may hold named sets as `<name>/...`; None or "" for none.
    progress : called with (what, bytes done, bytes in all or None) while fetching.
    offline : never fetch.
    catalogue : gives the items their rows; what it does not have is left out and counted. None: the data set's own items.

    Raises
    ------
    DataError naming file, line, value and remedy.
    """
    source = resolve(data_set, data_dir, progress, offline)
    if source.size is not None and catalogue is not None:
        raise DataError(f"data-set {source.name} is generated with items of its own: leave catalogue empty")
    hashes = {role: sha256_of(path) for role, path in (source.files or {}).items()}
    directory = cache_root() / "splits" / f"{_safe(source.name)}-{_key(source, hashes, settings, catalogue)}"
    if is_intact(directory):
        return _prepared(directory, from_cache=True)
    with one_at_a_time(directory.with_name(f".{directory.name}.lock")):
        if is_intact(directory):  # another process made it while this one waited
            return _prepared(directory, from_cache=True)
        if source.size is None:
            save_split(_make(source, hashes, settings, catalogue), directory)
        else:
            report = {"data_set": source.name, "origin": source.origin, "files": []}
            save_generated(source.name, source.size, settings, report, directory)
    return _prepared(directory, from_cache=False)


def _prepared(directory: Path, from_cache: bool) -> PreparedSplit:
    manifest = read_manifest(directory)
    return PreparedSplit(manifest["name"], directory, manifest["fingerprint"], manifest["report"], from_cache)


def prepare_run(config: RunConfig, progress: Progress | None = None) -> PreparedSplit:
    """`prepare` the data set of a configuration as its clients do in a simulation: cut as it says, under its catalogue.

    Raises
    ------
    DataError as `prepare`; CatalogueError for a catalogue file that cannot be used.
    """
    catalogue = Catalogue.load(Path(config.catalogue)) if config.catalogue else None
    return prepare(config.data_set, config.data_dir or None, split_settings(config), progress, catalogue=catalogue)


def split_settings(config: RunConfig) -> SplitSettings:
    """How the configuration wants the data set cut."""
    return SplitSettings(
        config.split, config.validation_fraction, config.test_fraction, config.seed, config.min_weight or None
    )


def _make(source: Source, hashes: dict[str, str], settings: SplitSettings, catalogue: Catalogue | None = None) -> Split:
    # Imported here because most calls find the result in the cache.
    from fastpfrec_flwr.data.interactions import Ids, restrict
    from fastpfrec_flwr.data.reading import read_files
    from fastpfrec_flwr.data.splitting import make_split
    from fastpfrec_flwr.data.synthetic import read_synthetic

    ids = Ids()
    with _no_collection():
        found = read_synthetic(ids) if source.files is None else read_files(source.files, ids, settings.min_weight)
    report: dict[str, Any] = {
        "data_set": source.name,
        "origin": source.origin,
        "files": [
            {
                "role": role,
                "file": str(part.path),
                "sha256": hashes.get(role),
                "format": part.format,
                "lines": part.lines,
                "interactions": len(part.users),
                "users_without_items": part.empty_users,
            }
            for role, part in found.items()
        ],
    }
    if catalogue is not None:
        found = restrict(found, ids, catalogue, report)
    return make_split(source.name, ids, found, settings, report, catalogue)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Reading makes millions of short-lived strings and no cycles: searching for cycles costs a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _key(source: Source, hashes: dict[str, str], settings: SplitSettings, catalogue: Catalogue | None = None) -> str:
    files = [[role, str(path), hashes[role]] for role, path in (source.files or {}).items()]
    parts = [SCHEMA_VERSION, _code_version(), source.name, files, settings.as_dict()]
    if catalogue is not None:
        parts.append(catalogue.hash)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@cache
def _code_version() -> str:
    """Hash of the modules that decide what a split looks like."""
    digest = hashlib.sha256()
    names = (
        "formats",
        "generated",
        "interactions",
        "pairs",
        "parquet",
        "reading",
        "splitting",
        "synthetic",
        "textfile",
        "types",
    )
    for path in (Path(__file__).with_name(f"{name}.py") for name in names):
        # Without sources (an archive, compiled files) the schema version must do.
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60] or "data"
