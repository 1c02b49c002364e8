"""From a SuperNode's place to its users: data, catalogue and state, opened once and kept for its next turn."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fastpfrec_flwr.catalogue import Catalogue, hash_of
from fastpfrec_flwr.client.agreement import CatalogueFile, catalogue_file, load_catalogue, opened, see_that_they_agree
from fastpfrec_flwr.client.build import build_client
from fastpfrec_flwr.client.device import Allowance, Device
from fastpfrec_flwr.client.history import merged_rows
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.own_data import (
    NodeConfig,
    OwnData,
    default_state_root,
    parse_node_config,
    read_own_data,
    refuse_device_keys,
)
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import PreparedSplit, Shard, Split, SplitSettings, open_shard, prepare
from fastpfrec_flwr.data.cache import load_split
from fastpfrec_flwr.data.preparation import split_settings
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order, RefusedError
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.parallel import available_threads

# A process of the simulation serves many SuperNodes in turn.
OPEN_AT_ONCE = 128


class Place(NamedTuple):
    """Which users this SuperNode holds, and where it keeps their state.

    Attributes
    ----------
    own : the device's own settings; None in a simulation, and on a real device that trains on a public data set for trial.
    catalogue : the catalogue file that it goes by, if any.
    """

    partition: int
    num_partitions: int
    state_root: Path
    deployed: bool
    own: NodeConfig | None = None
    catalogue: Path | None = None


def place_of(node: Mapping[str, Any], config: RunConfig) -> Place:
    """Where the SuperNode with this node configuration stands."""
    if "partition-id" not in node:
        # On a real device its owner says what is read and where it is kept, never the run's configuration.
        own = parse_node_config(node, config.data_set)
        root = own.state_dir or default_state_root()
        if own.data_path is not None:
            return Place(0, 1, root, True, own, own.catalogue)
        return Place(0, 1, root, True, None, catalogue_file(node, config, root))
    refuse_device_keys(node)
    root = Path(str(node["state-dir"])) if node.get("state-dir") else state_root(config)
    return Place(
        int(node["partition-id"]), int(node["num-partitions"]), root, False, None, catalogue_file(node, config, None)
    )


def prepared_split(config: RunConfig, order: Order, place: Place) -> PreparedSplit:
    """This SuperNode's data, under the catalogue that server and devices agreed on."""
    file = opened(place.catalogue)
    prepared = _prepared(config.data_set, config.data_dir, split_settings(config), file)
    see_that_they_agree(order, catalogue_hash(prepared.directory), file)
    return prepared


def catalogue_of(config: RunConfig, order: Order, place: Place) -> Catalogue:
    """The catalogue that this SuperNode goes by."""
    if place.own is not None:
        return own_data(config, order, place).catalogue
    file = opened(place.catalogue)
    if file is not None:
        return load_catalogue(file)
    split = open_split(prepared_split(config, order, place).directory)
    return Catalogue.of_rows(split.item_ids.tolist(), split.name)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _prepared(data_set: str, data_dir: str, settings: SplitSettings, catalogue: CatalogueFile | None) -> PreparedSplit:
    return prepare(
        data_set, data_dir or None, settings, catalogue=None if catalogue is None else load_catalogue(catalogue)
    )


@lru_cache(maxsize=OPEN_AT_ONCE)
def open_split(directory: Path) -> Split:
    """A prepared split."""
    return load_split(directory)


@lru_cache(maxsize=OPEN_AT_ONCE)
def catalogue_hash(directory: Path) -> str:
    """Hash of a prepared split's items."""
    return hash_of(open_split(directory).item_ids.tolist())


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_shard(directory: Path, partition: int, num_partitions: int) -> Shard:
    return open_shard(directory, partition, num_partitions)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _refit_rows(directory: Path, partition: int, num_partitions: int) -> Rows:
    return merged_rows(_open_shard(directory, partition, num_partitions))


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_state(path: Path, embedding_dim: int, durable: bool) -> ClientState:
    return ClientState(path, embedding_dim, durable)


def close_states() -> None:
    """Let go of all states of this process."""
    _open_state.cache_clear()


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_device(root: Path) -> Device:
    return Device(root)


def own_data(config: RunConfig, order: Order, place: Place) -> OwnData:
    """A real device's own file, under the catalogue that server and devices agreed on."""
    assert place.own is not None
    data = read_own_data(place.own, split_settings(config), _open_device(place.state_root))
    see_that_they_agree(order, data.catalogue.hash, opened(place.catalogue))
    return data


def _device_node(config: RunConfig, order: Order, place: Place) -> Node:
    """A real device's users on its own file."""
    shard = own_data(config, order, place).shard
    device = _open_device(place.state_root)
    limit = place.own.epsilon_limit if place.own is not None else math.inf
    return build_client(
        config,
        shard,
        _open_state(
            place.state_root / order.state_id / order.phase / "0-of-1.sqlite3", config.embedding_dim, durable=True
        ),
        len(shard.users),
        device.secret,
        available_threads(config.threads),
        None if order.phase == "train" else merged_rows(shard),
        _user_metrics(config, order, place),
        Allowance(device, order.state_id, order.phase, limit),
    )


def node_of(config: RunConfig, order: Order, place: Place) -> Node:
    """The SuperNode's users, ready to train and to be evaluated."""
    if place.own is not None:
        return _device_node(config, order, place)
    prepared = prepared_split(config, order, place)
    shard = _open_shard(prepared.directory, place.partition, place.num_partitions)
    name = f"{place.partition}-of-{place.num_partitions}.sqlite3"
    return build_client(
        config,
        shard,
        _open_state(place.state_root / order.state_id / order.phase / name, config.embedding_dim, place.deployed),
        open_split(prepared.directory).num_users,
        _open_device(place.state_root).secret if place.deployed else None,
        available_threads(config.threads),
        None if order.phase == "train" else _refit_rows(prepared.directory, place.partition, place.num_partitions),
        _user_metrics(config, order, place),
    )


def fitting_node(config: RunConfig, order: Order, place: Place, num_items: int) -> Node:
    """The node, if the table that came is one of its catalogue."""
    node = node_of(config, order, place)
    if num_items != build_layout(config).rows(node.shard.num_items):
        raise RefusedError(
            f"the item table has {num_items} rows, this SuperNode's catalogue {node.shard.num_items} items: the data set changed "
            "since the run began; give all SuperNodes the same and start the run again"
        )
    return node


def user_metrics_folder(state_root: Path, state_id: str) -> Path:
    """Where simulated SuperNodes keep the test metrics of their users; a release leaves it alone."""
    return state_root / state_id / "user-metrics"


def user_metrics_name(partition: int, num_partitions: int) -> str:
    """The file of one of them."""
    return f"{partition}-of-{num_partitions}.npz"


def _user_metrics(config: RunConfig, order: Order, place: Place) -> Path | None:
    if not config.user_metrics:
        return None
    if place.deployed:
        warn_once("user-metrics is for simulations: this device keeps no metrics of its user")
        return None
    folder = user_metrics_folder(place.state_root, order.state_id)
    return folder / user_metrics_name(place.partition, place.num_partitions)


@cache
def warn_once(text: str) -> None:
    """Say something in this process' log, the first time only."""
    logging.getLogger(__name__).warning(text)


def state_root(config: RunConfig) -> Path:
    """Where the SuperNodes of a simulation keep their state."""
    return Path(config.state_dir) if config.state_dir else default_state_root()
