"""Places on the user's disk and the three habits that keep them sound: whole files only, one writer, remembered hashes.

- `store_root()`: what was fetched or imported, found by every later run.
- `cache_root()`: what can be made again from it: prepared splits, and hashes of source files.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastpfrec_flwr import files
from fastpfrec_flwr.data.errors import DataError

APP = "fastpfrec"
# A file changed within this time of being hashed could change again without its time of change moving.
_SETTLED_SECONDS = 2.0


def store_root() -> Path:
    """Return the directory of fetched and imported data sets (`$XDG_DATA_HOME/fastpfrec/data-sets` on Linux)."""
    from platformdirs import user_data_path

    return user_data_path(APP, appauthor=False) / "data-sets"


def cache_root() -> Path:
    """Return the directory of what can be made again (`$XDG_CACHE_HOME/fastpfrec` on Linux)."""
    from platformdirs import user_cache_path

    return user_cache_path(APP, appauthor=False)


def make_directory(path: Path) -> Path:
    """Create a directory, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be created ({error.strerror}). Make it writable, or set XDG_CACHE_HOME and XDG_DATA_HOME "
            f"to directories that are"
        ) from error
    return path


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part."""
    make_directory(path.parent)
    try:
        files.write_atomically(path, data)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Free some space or make it writable") from error


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process do a piece of work at a time; the others wait and then find it done.

    The system releases the lock of a process that dies. Where there are no such locks (Windows), work may be done
    twice, which costs time and nothing else, because results appear by one atomic rename.
    """
    make_directory(path.parent)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, remembered by its path, size and times of change."""
    try:
        status = path.stat()
        absolute = str(path.absolute())
        stamp = [absolute, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        memory = cache_root() / "hashes" / f"{hashlib.sha256(absolute.encode()).hexdigest()[:32]}.json"
        known = _read_json(memory)
        if isinstance(known, dict) and known.get("stamp") == stamp and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check data-set and data-dir") from error
    if time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS:
        write_atomically(memory, json.dumps({"stamp": stamp, "sha256": digest}).encode())
    return digest


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
