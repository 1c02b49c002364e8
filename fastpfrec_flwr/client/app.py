"""The ClientApp: unpack, load, train or evaluate, pack."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sqlite3
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fastpfrec_flwr import messages
from fastpfrec_flwr.catalogue import Catalogue, CatalogueError, hash_of
from fastpfrec_flwr.client.agreement import CatalogueFile, catalogue_file, load_catalogue, opened, see_that_they_agree
from fastpfrec_flwr.client.build import build_client, build_device, node_class
from fastpfrec_flwr.client.device import Allowance, Device
from fastpfrec_flwr.client.node import Node, merged_rows
from fastpfrec_flwr.client.own_data import NodeConfig, OwnData, default_state_root, parse_node_config, read_own_data
from fastpfrec_flwr.client.secure import SecureRound
from fastpfrec_flwr.client.state import ClientState, StateError
from fastpfrec_flwr.config import ConfigError, RunConfig, parse_run_config
from fastpfrec_flwr.data import DataError, PreparedSplit, Shard, Split, SplitSettings, open_shard, prepare
from fastpfrec_flwr.data.cache import load_split
from fastpfrec_flwr.data.preparation import split_settings as split_settings
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.files import source_fingerprint
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.messages import Description, Order, RefusedError, secure
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.recommend.keeping import keep_model

# Ray hides the GPUs from actors that asked for none; must be set where `ray.init` will see it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

# A process of the simulation serves many SuperNodes in turn; what they opened is kept for their next turn.
OPEN_AT_ONCE = 128

# Where a SuperNode keeps a secure sum that is under way.
KEPT = "secure-sum"

app = ClientApp()


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


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Say what this SuperNode holds."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        if config.device == "cuda":
            build_device(config.device)  # a SuperNode that cannot train says so before round 1
        node_class(config)
        if place.own is not None:
            # Nothing of a person's data is hashed into it: the hash of a short history can be guessed.
            data = _own_data(config, order, place)
            items = data.catalogue
            return messages.encode_description(
                Description(-1, len(data.shard.users), items.num_rows, items.hash, items.hash, items.name or "own data")
            )
        prepared = _prepare(config, order, place)
        if missing := prepared.report.get("items_not_in_catalogue"):
            _warn_once(f"{missing} items of this device's data are not in its catalogue and are left out")
        shard = open_shard(prepared.directory, place.partition, place.num_partitions)
        return messages.encode_description(
            Description(
                -1 if place.deployed else place.partition,
                len(shard.users),
                shard.num_items,
                _catalogue_hash(prepared.directory),
                prepared.fingerprint,
                prepared.name,
            )
        )

    return _reply(message, context, answer)


@app.query("catalogue")
def catalogue(message: Message, context: Context) -> Message:
    """Hand out the public item ids, in row order."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        if place.own is not None:
            return messages.encode_catalogue(_own_data(config, order, place).catalogue.row_names, "{}")
        split = _open_split(_prepare(config, order, place).directory)
        return messages.encode_catalogue([str(i) for i in split.item_ids], json.dumps(split.report))

    return _reply(message, context, answer)


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """Let go of the state of a finished simulation; a real device keeps what it has."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        if not place.deployed:
            _open_state.cache_clear()
            shutil.rmtree(place.state_root / order.state_id / order.phase, ignore_errors=True)
            # The last SuperNode to let go removes the training's folder.
            if (place.state_root / order.state_id).is_dir() and not any((place.state_root / order.state_id).iterdir()):
                (place.state_root / order.state_id).rmdir()
        return messages.encode_done()

    return _reply(message, context, answer)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train this round's users and upload what may leave."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        table, _ = messages.decode_train(message.content, config.embedding_dim)
        node = _fitting_node(config, order, place, len(table))
        uploads, report = node.train(table, order)
        return messages.encode_uploads(uploads, report, len(table))

    return _reply(message, context, answer)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Rank this SuperNode's users and report sums."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        table, _, parts = messages.decode_evaluate(message.content, config.embedding_dim)
        counts = messages.decode_item_counts(message.content, len(table)) if config.counted else None
        node = _fitting_node(config, order, place, len(table))
        sums = node.evaluate(table, order, parts, counts)
        if place.deployed and "test" in parts:
            # The server asks for the test part where a table is the best so far: the device's users recommend with that one.
            items = _catalogue(config, order, place)
            keep_model(place.state_root, table, counts, items, config.to_flat_dict(), order.state_id)
        return messages.encode_metric_sums(sums)

    return _reply(message, context, answer)


@app.train("hello")
def secure_hello(message: Message, context: Context) -> Message:
    """Begin a secure sum: this round's clients and their public keys."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        begun = SecureRound.of(node_of(config, order, place), order)
        _keep(context, begun, order)
        return secure.encode_hellos(begun.hellos())

    return _reply(message, context, answer)


@app.train("share")
def secure_share(message: Message, context: Context) -> Message:
    """Seal shares for the other members of each client's group."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        kept = _kept(context, order)
        sealed = kept.share(secure.decode_groups(message.content), config.dropout_fraction)
        _keep(context, kept, order)
        return secure.encode_parcels(sealed, "sealed")

    return _reply(message, context, answer)


@app.train("mask")
def secure_mask(message: Message, context: Context) -> Message:
    """Train this round's clients and upload behind masks."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        table, _ = messages.decode_train(message.content, config.embedding_dim)
        kept = _kept(context, order)
        sealed = secure.parcels_in(message.content, "sealed", secure.SEALED)
        node = _fitting_node(config, order, place, len(table))
        uploads, report = kept.mask(node, table, order, sealed)
        _keep(context, kept, order)
        return secure.encode_masked(uploads, report)

    return _reply(message, context, answer)


@app.train("reveal")
def secure_reveal(message: Message, context: Context) -> Message:
    """Give what opens the sum, and forget the keys."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        opened = _kept(context, order).reveal(secure.decode_reveal_request(message.content))
        del context.state[KEPT]
        return secure.encode_parcels(opened, "opened")

    return _reply(message, context, answer)


def _keep(context: Context, kept: SecureRound, order: Order) -> None:
    context.state[KEPT] = secure.encode_kept(kept.to_text(), order.server_round, order.phase)


def _kept(context: Context, order: Order) -> SecureRound:
    return SecureRound.from_text(secure.decode_kept(context.state.get(KEPT), order.server_round, order.phase))


def _reply(message: Message, context: Context, answer) -> Message:  # type: ignore[no-untyped-def]
    """Answer a message; what can be foreseen comes back as a refusal with its reason, not as a traceback."""
    keep_freed_memory()
    try:
        config = parse_run_config(context.run_config)
        order = messages.decode_query(message.content)
        if order.source != source_fingerprint():
            raise RefusedError(
                f"this SuperNode runs other code than the server ({source_fingerprint()} against {order.source}): "
                "end the local SuperLink (or update the app on the device) and run again"
            )
        content = answer(config, order, place_of(context, config))
    except (
        ConfigError, DataError, CatalogueError, RefusedError, StateError, sqlite3.Error, OSError
    ) as error:  # fmt: skip
        logging.getLogger(__name__).warning("this SuperNode sits out: %s", error)
        content = messages.encode_refusal(str(error))
    return Message(content, reply_to=message)


def place_of(context: Context, config: RunConfig) -> Place:
    """Where the SuperNode of this context stands."""
    node = context.node_config
    if "partition-id" not in node:
        # On a real device its owner says what is read and where it is kept, never the run's configuration.
        own = parse_node_config(node, config.data_set)
        root = own.state_dir or default_state_root()
        if own.data_path is not None:
            return Place(0, 1, root, True, own, own.catalogue)
        return Place(0, 1, root, True, None, catalogue_file(node, config, root))
    root = Path(str(node["state-dir"])) if node.get("state-dir") else state_root(config)
    return Place(
        int(node["partition-id"]), int(node["num-partitions"]), root, False, None, catalogue_file(node, config, None)
    )


def _prepare(config: RunConfig, order: Order, place: Place) -> PreparedSplit:
    """This SuperNode's data, under the catalogue that server and devices agreed on."""
    file = opened(place.catalogue)
    prepared = _prepared(config.data_set, config.data_dir, split_settings(config), file)
    see_that_they_agree(order, _catalogue_hash(prepared.directory), file)
    return prepared


def prepared_directory(config: RunConfig, order: Order, place: Place) -> Path:
    """Where the prepared split of this SuperNode lies."""
    return _prepare(config, order, place).directory


def _catalogue(config: RunConfig, order: Order, place: Place) -> Catalogue:
    if place.own is not None:
        return _own_data(config, order, place).catalogue
    file = opened(place.catalogue)
    if file is not None:
        return load_catalogue(file)
    split = _open_split(_prepare(config, order, place).directory)
    return Catalogue.of_rows(split.item_ids.tolist(), split.name)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _prepared(data_set: str, data_dir: str, settings: SplitSettings, catalogue: CatalogueFile | None) -> PreparedSplit:
    return prepare(
        data_set, data_dir or None, settings, catalogue=None if catalogue is None else load_catalogue(catalogue)
    )


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_split(directory: Path) -> Split:
    return load_split(directory)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _catalogue_hash(directory: Path) -> str:
    return hash_of(_open_split(directory).item_ids.tolist())


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_shard(directory: Path, partition: int, num_partitions: int) -> Shard:
    return open_shard(directory, partition, num_partitions)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _refit_rows(directory: Path, partition: int, num_partitions: int) -> Rows:
    return merged_rows(_open_shard(directory, partition, num_partitions))


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_state(path: Path, embedding_dim: int, durable: bool) -> ClientState:
    return ClientState(path, embedding_dim, durable)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open_device(root: Path) -> Device:
    return Device(root)


def _own_data(config: RunConfig, order: Order, place: Place) -> OwnData:
    assert place.own is not None
    data = read_own_data(place.own, split_settings(config), _open_device(place.state_root))
    see_that_they_agree(order, data.catalogue.hash, opened(place.catalogue))
    return data


def _device_node(config: RunConfig, order: Order, place: Place) -> Node:
    """A real device's users on its own file."""
    shard = _own_data(config, order, place).shard
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
    prepared = _prepare(config, order, place)
    shard = _open_shard(prepared.directory, place.partition, place.num_partitions)
    name = f"{place.partition}-of-{place.num_partitions}.sqlite3"
    return build_client(
        config,
        shard,
        _open_state(place.state_root / order.state_id / order.phase / name, config.embedding_dim, place.deployed),
        _open_split(prepared.directory).num_users,
        _open_device(place.state_root).secret if place.deployed else None,
        available_threads(config.threads),
        None if order.phase == "train" else _refit_rows(prepared.directory, place.partition, place.num_partitions),
        _user_metrics(config, order, place),
        Allowance(_open_device(place.state_root), order.state_id, order.phase) if place.deployed else None,
    )


def _fitting_node(config: RunConfig, order: Order, place: Place, num_items: int) -> Node:
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
        _warn_once("user-metrics is for simulations: this device keeps no metrics of its user")
        return None
    folder = user_metrics_folder(place.state_root, order.state_id)
    return folder / user_metrics_name(place.partition, place.num_partitions)


@cache
def _warn_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)


def state_root(config: RunConfig) -> Path:
    """Where the SuperNodes of a simulation keep their state."""
    return Path(config.state_dir) if config.state_dir else default_state_root()
