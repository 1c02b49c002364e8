"""The ClientApp: unpack, load, train or evaluate, pack."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
from functools import lru_cache
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fastpfrec_flwr import messages
from fastpfrec_flwr.catalogue import CatalogueError
from fastpfrec_flwr.client.build import build_device, node_class
from fastpfrec_flwr.client.opening import (
    Place,
    catalogue_hash,
    catalogue_of,
    close_states,
    fitting_node,
    node_of,
    open_split,
    own_data,
    place_of,
    prepared_split,
    warn_once,
)
from fastpfrec_flwr.client.secure import SecureRound
from fastpfrec_flwr.client.state import StateError
from fastpfrec_flwr.config import ConfigError, RunConfig, parse_run_config
from fastpfrec_flwr.data import DataError, open_shard
from fastpfrec_flwr.data.preparation import split_settings as split_settings
from fastpfrec_flwr.files import source_fingerprint
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.messages import Description, Order, RefusedError, secure
from fastpfrec_flwr.privacy.masking import least_in_sum
from fastpfrec_flwr.recommend.keeping import keep_model

# Ray hides the GPUs from actors that asked for none; must be set where `ray.init` will see it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

# Where a SuperNode keeps a secure sum that is under way.
KEPT = "secure-sum"

app = ClientApp()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Say what this SuperNode holds."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        if config.device == "cuda":
            build_device(config.device)  # a SuperNode that cannot train says so before round 1
        node_class(config)
        if place.own is not None:
            # Nothing of a person's data is hashed into it: the hash of a short history can be guessed.
            data = own_data(config, order, place)
            items = data.catalogue
            return messages.encode_description(
                Description(-1, len(data.shard.users), items.num_rows, items.hash, items.hash, items.name or "own data")
            )
        prepared = prepared_split(config, order, place)
        if missing := prepared.report.get("items_not_in_catalogue"):
            warn_once(f"{missing} items of this device's data are not in its catalogue and are left out")
        shard = open_shard(prepared.directory, place.partition, place.num_partitions)
        return messages.encode_description(
            Description(
                -1 if place.deployed else place.partition,
                len(shard.users),
                shard.num_items,
                catalogue_hash(prepared.directory),
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
            return messages.encode_catalogue(own_data(config, order, place).catalogue.row_names, "{}")
        split = open_split(prepared_split(config, order, place).directory)
        return messages.encode_catalogue([str(i) for i in split.item_ids], json.dumps(split.report))

    return _reply(message, context, answer)


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """Let go of the state of a finished simulation; a real device keeps what it has."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        if not place.deployed:
            close_states()
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
        node = fitting_node(config, order, place, len(table))
        uploads, report = node.train(table, order)
        return messages.encode_uploads(uploads, report, len(table))

    return _reply(message, context, answer)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Rank this SuperNode's users and report sums."""

    def answer(config: RunConfig, order: Order, place: Place) -> RecordDict:
        table, _, parts = messages.decode_evaluate(message.content, config.embedding_dim)
        counts = messages.decode_item_counts(message.content, len(table)) if config.counted else None
        node = fitting_node(config, order, place, len(table))
        sums = node.evaluate(table, order, parts, counts)
        if place.deployed and "test" in parts:
            # The server asks for the test part where a table is the best so far: the device's users recommend with that one.
            items = catalogue_of(config, order, place)
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
        # A real person's noise and ledger rest on so many clients in each sum; nobody is hurt by a small simulation.
        fraction = config.dropout_fraction
        least = least_in_sum(config.clients_per_round, config.num_trusted_nodes, fraction) if place.deployed else 0
        sealed = kept.share(secure.decode_groups(message.content), fraction, least)
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
        node = fitting_node(config, order, place, len(table))
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


@lru_cache(maxsize=8)
def _parsed(values: tuple[tuple[str, type, Any], ...]) -> RunConfig:
    """The configuration of (key, type, value): a run's is the same in every message. With types, for 1, 1.0 and true are equal."""
    return parse_run_config({key: value for key, _, value in values})


def _keep(context: Context, kept: SecureRound, order: Order) -> None:
    context.state[KEPT] = secure.encode_kept(kept.to_text(), order.server_round, order.phase)


def _kept(context: Context, order: Order) -> SecureRound:
    return SecureRound.from_text(secure.decode_kept(context.state.get(KEPT), order.server_round, order.phase))


def _reply(message: Message, context: Context, answer) -> Message:  # type: ignore[no-untyped-def]
    """Answer a message; what can be foreseen comes back as a refusal with its reason, not as a traceback."""
    keep_freed_memory()
    try:
        config = _parsed(tuple((key, type(value), value) for key, value in context.run_config.items()))
        order = messages.decode_query(message.content)
        if order.source != source_fingerprint():
            raise RefusedError(
                f"this SuperNode runs other code than the server ({source_fingerprint()} against {order.source}): "
                "end the local SuperLink (or update the app on the device) and run again"
            )
        content = answer(config, order, place_of(context.node_config, config))
    except (
        ConfigError, DataError, CatalogueError, RefusedError, StateError, sqlite3.Error, OSError
    ) as error:  # fmt: skip
        logging.getLogger(__name__).warning("this SuperNode sits out: %s", error)
        content = messages.encode_refusal(str(error))
    return Message(content, reply_to=message)
