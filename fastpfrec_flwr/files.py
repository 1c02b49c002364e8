"""Files that are whole or not there: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import hashlib
import os
import uuid
from functools import cache
from pathlib import Path

APP = "fastpfrec"


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` by way of a temporary file beside it.

    Raises
    ------
    OSError naming the path if it cannot be written; the old file, if any, is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@cache
def source_fingerprint() -> str:
    """SHA-256 of the package's source, 16 hex digits: tells server and clients whether they run the same code."""
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
