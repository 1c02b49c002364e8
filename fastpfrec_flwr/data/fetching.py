"""Files of the named sets from their public homes, each checked by SHA-256 before it gets its name.

A source that does not answer, or answers with something else, is passed over for the next one; only when all have
failed is there an error, and it lists what each of them said.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fastpfrec_flwr.data.catalogue import NAMED_SETS, SYNTHETIC, Archive, NamedSet, PinnedFile, WheelFile
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.storage import one_at_a_time, store_root, write_atomically
from fastpfrec_flwr.data.types import Progress

TIMEOUT_SECONDS = 5.0
_WHEEL_SECONDS = 180.0


class _SourceError(Exception):
    """One source did not deliver; the next one is tried."""


def fetch_into_store(named: NamedSet, progress: Progress | None = None) -> Path:
    """Fetch a named set unless the store holds it, and return its directory there. Safe in several processes at once.

    Raises
    ------
    DataError if no source delivers a file, or none with the right checksum.
    """
    directory = store_root() / named.name
    with one_at_a_time(store_root() / f".{named.name}.lock"):
        for pinned in named.files:
            target = directory / pinned.name
            if not (target.exists() and _sha256(target.read_bytes()) in {digest for _, digest in pinned.accepted}):
                write_atomically(target, _fetch(named, pinned, progress or (lambda what, done, total: None)))
    return directory


def _fetch(named: NamedSet, pinned: PinnedFile, progress: Progress) -> bytes:
    complaints = []
    for source, get in _sources(named, pinned, progress):
        try:
            data = get()
            _verify(data, pinned.sha256)
            return data
        except _SourceError as error:
            complaints.append(f"  {source}: {error}")
    raise DataError(
        f"data set {named.name} ({pinned.name}) is neither in data-dir nor in {store_root()}, and cannot be fetched. "
        f'Without a network, set data-set = "{SYNTHETIC}" for generated data, or set data-dir to a directory that '
        f"holds {named.name}/{pinned.name}, or import it once: fastpfrec data fetch {named.name} --from DIR. "
        "What was tried:\n" + "\n".join(complaints)
    )


def _sources(named: NamedSet, pinned: PinnedFile, progress: Progress) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for url in pinned.urls:
        yield url, lambda url=url: download(url, pinned.size, progress)  # type: ignore[misc]
    for archive in pinned.archives:
        yield archive.url, lambda archive=archive: _from_archive(archive, progress)  # type: ignore[misc]
    if named.wheel is not None:
        wheel = named.wheel
        yield f"wheel {wheel.requirement} on your package index", lambda: from_wheel(wheel, progress)


def _from_archive(archive: Archive, progress: Progress) -> bytes:
    data = download(archive.url, archive.size, progress)
    _verify(data, archive.sha256)
    return _member(data, archive.member)


def download(url: str, size: int, progress: Progress) -> bytes:
    """Return what `url` answers, at most a little more than `size` bytes of it."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    name = url.rsplit("/", 1)[-1]
    parts: list[bytes] = []
    done = 0
    try:
        with urlopen(Request(url, headers={"User-Agent": "fastpfrec-flwr"}), timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read(1 << 16):
                parts.append(chunk)
                done += len(chunk)
                progress(name, done, size)
                if done > size:
                    raise _SourceError(f"wrong size: more than the expected {size:,} bytes")
    except (OSError, HTTPException, ValueError) as error:
        raise _SourceError(f"no answer ({getattr(error, 'reason', None) or error or type(error).__name__})") from error
    return b"".join(parts)


def from_wheel(wheel: WheelFile, progress: Progress) -> bytes:
    """Return the rows of a `.inter` file out of a wheel, which is read and not installed.

    `pip download` asks whatever package index the user's pip is set to, with the user's proxies and certificates.
    """
    progress(f"{wheel.requirement} (pip download)", 0, None)
    arguments = [
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
    ]
    arguments += ["--timeout", f"{TIMEOUT_SECONDS:.0f}", "--retries", "1", wheel.requirement]
    said = []
    with tempfile.TemporaryDirectory(prefix="fastpfrec-") as directory:
        for pip in _pips():
            try:
                result = subprocess.run(
                    [*pip, *arguments, "--dest", directory],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_WHEEL_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                said.append(str(error))
                continue
            found = sorted(Path(directory).glob("*.whl"))
            if result.returncode == 0 and found:
                content = _member(found[0].read_bytes(), wheel.member)
                _verify(content, wheel.sha256)
                progress(wheel.requirement, len(content), len(content))
                return content.partition(b"\n")[2]
            said.append((result.stderr.strip().splitlines() or ["pip failed"])[-1])
    raise _SourceError("; ".join(dict.fromkeys(said)))


def fetch_titles(name: str, progress: Progress | None = None) -> str:
    """Lines `item id, tab, title, ...` of a named set that has titles, without a header.

    Raises
    ------
    DataError if it has none, or they cannot be fetched.
    """
    named = NAMED_SETS.get(name)
    if named is None or named.titles is None:
        having = ", ".join(each.name for each in NAMED_SETS.values() if each.titles is not None)
        raise DataError(f"{name}: no titles can be fetched for it, only for {having}. Give a file with --titles")
    try:
        return from_wheel(named.titles, progress or (lambda what, done, total: None)).decode("utf-8")
    except _SourceError as error:
        raise DataError(f"titles of {name} cannot be fetched ({error}). Give a file with --titles") from error


def _pips() -> list[list[str]]:
    """Every pip that may be there: an environment made by other tools has no pip module of its own."""
    # -P keeps files of the working directory from being imported in place of pip's own.
    return [[sys.executable, "-P", "-m", "pip"], *([path] for name in ("pip", "pip3") if (path := shutil.which(name)))]


def _member(data: bytes, name: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(name)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise _SourceError(f"no file {name} in it ({error})") from error


def _verify(data: bytes, sha256: str) -> None:
    got = _sha256(data)
    if got != sha256:
        raise _SourceError(f"wrong checksum: SHA-256 {sha256} expected, got {got}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
