"""One catalogue on both sides: which file a SuperNode goes by, and what it answers to a server that has another one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fastpfrec_flwr.catalogue import Catalogue, CatalogueError, label
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.messages import Order, RefusedError

NAME = "catalogue.json"
_REMEDY = "copy the server's catalogue file to the device and name it in --node-config 'catalogue=\"...\"'"


class CatalogueFile(NamedTuple):
    """A file as it was when it was looked at: once changed it is another one."""

    path: Path
    changed: int
    size: int


def catalogue_file(node_config: Mapping[str, Any], config: RunConfig, state_root: Path | None) -> Path | None:
    """The file that a SuperNode goes by; None where the data set gives the items.

    Parameters
    ----------
    state_root : of a real device, else None. The path in the run's configuration is the server's and may mean nothing there: a
        device has its own in its node configuration, or `catalogue.json` beside its state.
    """
    if state_root is not None:
        if node_config.get("catalogue"):
            return Path(str(node_config["catalogue"]))
        if (state_root / NAME).is_file():
            return state_root / NAME
    return Path(config.catalogue) if config.catalogue else None


def opened(path: Path | None) -> CatalogueFile | None:
    """The file as it is now.

    Raises
    ------
    CatalogueError if it is not there.
    """
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError as error:
        raise CatalogueError(f"{path}: the catalogue cannot be read ({error.strerror or error}); {_REMEDY}") from error
    return CatalogueFile(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def load_catalogue(file: CatalogueFile) -> Catalogue:
    """Its content, kept for the next message."""
    return Catalogue.load(file.path)


def see_that_they_agree(order: Order, own_hash: str, file: CatalogueFile | None) -> None:
    """Compare a SuperNode's catalogue with the one that the order is about.

    Raises
    ------
    RefusedError if they differ, with both and what to do: under another one the table's rows would be other items.
    """
    if order.catalogue in ("", own_hash):
        return
    version = 0 if file is None else load_catalogue(file).version
    if order.catalogue_version == 0:
        remedy = "give it the same data set as the others, or all of them one catalogue file (docs/recommend.md)"
    elif version > order.catalogue_version:
        remedy = "this device's is newer: start the run with the newer file (-c catalogue=...)"
    else:
        remedy = _REMEDY
    raise RefusedError(
        f"this SuperNode has {label(version, own_hash)}, the server {label(order.catalogue_version, order.catalogue)}: {remedy}"
    )
