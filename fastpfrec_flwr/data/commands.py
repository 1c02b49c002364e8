"""What `fastpfrec data list | fetch | show` do; the command line itself is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastpfrec_flwr.data.catalogue import NAMED_SETS, SYNTHETIC, NamedSet
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.fetching import fetch_into_store
from fastpfrec_flwr.data.preparation import PreparedSplit
from fastpfrec_flwr.data.sources import named_files
from fastpfrec_flwr.data.storage import store_root, write_atomically
from fastpfrec_flwr.data.types import Progress


def list_data_sets(data_dir: str | Path | None = None) -> list[dict[str, str]]:
    """Return name, where it was found, and origin of each named set. Reads nothing but hashes, fetches nothing."""
    directory = Path(data_dir).expanduser() if data_dir else None
    rows = [
        {"name": named.name, "found": _where(named, directory), "origin": named.origin} for named in NAMED_SETS.values()
    ]
    made = "made by a seeded generator: long-tailed popularity, communities of taste"
    return [*rows, {"name": SYNTHETIC, "found": "generated", "origin": made}]


def _where(named: NamedSet, data_dir: Path | None) -> str:
    """Say where a set was found; a broken copy is worth a word, not an end of the list."""
    try:
        if data_dir is not None and named_files(named, data_dir / named.name, strict=True):
            return str(data_dir / named.name)
    except DataError as error:
        return f"unusable: {error}"
    if named_files(named, store_root() / named.name, strict=False):
        return str(store_root() / named.name)
    return "not fetched"


def fetch(name: str, from_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Fetch a named set, or import it, so that later runs find it without any setting.

    Parameters
    ----------
    from_dir : directory that holds the files or `<name>/` with the files; None to fetch from the public home.

    Returns
    -------
    The set's directory in the store.

    Raises
    ------
    DataError for an unknown name, missing files, a wrong checksum, or no source that answers.
    """
    if name not in NAMED_SETS:
        known = ", ".join(NAMED_SETS)
        raise DataError(
            f"data set {name!r} cannot be fetched; known are {known}. Own data need no fetching: give their path"
        )
    named = NAMED_SETS[name]
    if from_dir is None:
        return fetch_into_store(named, progress)
    directory = Path(from_dir).expanduser()
    files = named_files(named, directory / name, strict=True) or named_files(named, directory, strict=True)
    if files is None:
        wanted = ", ".join(pinned.name for pinned in named.files)
        raise DataError(f"{directory}: holds neither {name}/ with {wanted} nor those files themselves. Check --from")
    target = store_root() / name
    for pinned in named.files:
        source = files[pinned.role]
        data = source.read_bytes()
        write_atomically(target / source.name, data)
        if progress is not None:
            progress(source.name, len(data), len(data))
    return target


def report_of(prepared: PreparedSplit) -> dict[str, Any]:
    """The report of a prepared data set, with fingerprint, settings and place of the prepared arrays."""
    split = prepared.load()
    return {
        **prepared.report,
        "split": split.split_settings.as_dict(),
        "fingerprint": prepared.fingerprint,
        "prepared_in": str(prepared.directory),
        "from_cache": prepared.from_cache,
    }
