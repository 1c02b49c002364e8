"""What the owner of a real device has given it: `--node-config` of its SuperNode, and the file of interactions named there."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.client.agreement import NAME, CatalogueFile, load_catalogue, opened
from fastpfrec_flwr.client.device import Device
from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.data import DATA_SET_NAMES, Shard, SplitSettings
from fastpfrec_flwr.data.device import read_device
from fastpfrec_flwr.files import APP

KEYS = ("data-path", "catalogue", "state-dir", "epsilon-limit")


@dataclass(frozen=True)
class NodeConfig:
    """The settings of a device.

    Attributes
    ----------
    data_path : file or folder of interactions; None on a device that trains on a public data set for trial.
    catalogue : file of the items, the same on every device; None without a `data-path`.
    state_dir : where it keeps its state; None for the user's own folder.
    epsilon_limit : what each of its users may spend in its life.
    """

    data_path: Path | None
    catalogue: Path | None
    state_dir: Path | None
    epsilon_limit: float


class OwnData(NamedTuple):
    """A device's file and the catalogue that it was read with."""

    shard: Shard
    catalogue: Catalogue


def parse_node_config(values: Mapping[str, Any], data_set: str) -> NodeConfig:
    """Read `--node-config` of a SuperNode.

    Parameters
    ----------
    data_set : the run's. Without a `data-path` it must be a public one: a server must not name files on a device.

    Raises
    ------
    ConfigError naming the key, what it must be and what to do.
    """
    unknown = sorted(set(values) - set(KEYS))
    if unknown:
        raise ConfigError(f"node-config: unknown key {unknown[0]!r}; a SuperNode takes {', '.join(KEYS)}")
    data_path, catalogue, state_dir = (_path(values, key) for key in ("data-path", "catalogue", "state-dir"))
    if catalogue is None and state_dir is not None and (state_dir / NAME).is_file():
        catalogue = state_dir / NAME
    if data_path is None and data_set not in DATA_SET_NAMES:
        raise ConfigError(
            "node-config: this SuperNode has no data-path. Start it with "
            "--node-config \"data-path='/.../me.csv' catalogue='/.../catalogue.json' state-dir='/.../state'\""
        )
    if data_path is not None and catalogue is None:
        raise ConfigError(
            f"node-config: data-path = {str(data_path)!r} needs catalogue, the file of items that the server gave out: "
            "without it this device's own items would be the catalogue"
        )
    limit = values.get("epsilon-limit", math.inf)
    if data_path is None and limit != math.inf:
        raise ConfigError(
            f"node-config: epsilon-limit = {limit!r} needs data-path: without one the users are those of a public data set"
        )
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise ConfigError(f"node-config: epsilon-limit must be a number > 0, got {limit!r}")
    return NodeConfig(data_path, catalogue, state_dir, float(limit))


def refuse_device_keys(values: Mapping[str, Any]) -> None:
    """Of a SuperNode of a simulation, which `partition-id` makes it: refuse what only a real device may say.

    Raises
    ------
    ConfigError naming the key. Its owner would believe that its file is used, its limit is kept, and its noise is its own.
    """
    wrong = next((key for key in ("data-path", "epsilon-limit") if values.get(key) not in (None, "")), None)
    if wrong is not None:
        raise ConfigError(
            f"node-config: {wrong} is for real devices and partition-id for simulations, whose seed the server knows; leave "
            "partition-id and num-partitions out"
        )
    if "num-partitions" not in values:
        raise ConfigError("node-config: partition-id needs num-partitions; on a real device leave out both")


def _path(values: Mapping[str, Any], key: str) -> Path | None:
    value = values.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"node-config: {key} must be a path in quotes, got {value!r}")
    if not value:
        return None
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"node-config: {key} must be an absolute path, got {value!r}")
    return path


def default_state_root() -> Path:
    """Where clients keep their state if nobody says: a folder of the user."""
    import platformdirs

    return Path(platformdirs.user_state_path(APP, appauthor=False)) / "clients"


def read_own_data(own: NodeConfig, settings: SplitSettings, device: Device) -> OwnData:
    """Read the device's file as it is now; a file that has not changed since is read once in a process.

    Raises
    ------
    DataError, CatalogueError, OSError if it cannot be read.
    """
    file = opened(own.catalogue)
    assert own.data_path is not None
    assert file is not None
    return _read(own.data_path, file, settings, device, _stamp(own.data_path))


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file, or one in a folder, does."""
    if not path.exists():
        return ()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    status = [(str(file), os.stat(file)) for file in files]
    return tuple((name, each.st_size, each.st_mtime_ns) for name, each in status)


@lru_cache(maxsize=8)
def _read(
    data_path: Path,
    file: CatalogueFile,
    settings: SplitSettings,
    device: Device,
    stamp: tuple[tuple[str, int, int], ...],
) -> OwnData:
    catalogue = load_catalogue(file)
    found = read_device(data_path, catalogue, settings, device.numbers)
    unknown = found.report["items_not_in_catalogue"]
    if unknown:
        logging.getLogger(__name__).warning(
            "%s: %d items (%d interactions) are not in the catalogue and are left out",
            data_path, unknown, found.report["interactions_not_in_catalogue"],
        )  # fmt: skip
    return OwnData(found.shard, catalogue)
