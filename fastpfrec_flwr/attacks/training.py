"""Liars whose training lies: the same device code with other data or a loss of the other sign; clip and noise are the honest ones.

A liar needs to know nothing but its own data here. Nothing of it is kept: the device's own state comes from its honest training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.data.types import ShardRows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.randomness import derive_generator


class ReadOnlyState:
    """A device's state to look at: what would be kept is dropped."""

    def __init__(self, state: ClientState) -> None:
        self._state = state

    def __getattr__(self, name: str) -> object:
        return getattr(self._state, name)

    def save(
        self,
        server_round: int,
        users: NDArray[np.int64],
        vectors: NDArray[np.float32],
        deviations: list[Deviation] | None = None,
        spent: NDArray[np.float64] | None = None,
    ) -> None:
        """Keep nothing."""


def lying_shard(shard: Shard, config: RunConfig, liars: NDArray[np.int64], target: int) -> Shard:
    """What the lying users of a SuperNode claim to have, the same in every round.

    Parameters
    ----------
    shard : the honest one. liars : users that lie. target : row of the item that shilling promotes.
    """
    theirs = of_users(shard, liars)
    if config.attack == "label-flip":
        return flipped(theirs, config.seed)
    return with_item(theirs, target) if config.attack == "shilling" else theirs


def retrained(node: Node, table: NDArray[np.float32], order: Order, shard: Shard) -> PrivatizedUploads:
    """What the lying users of a SuperNode upload after a round of lying training; call it before the honest one.

    Parameters
    ----------
    node : the honest SuperNode. shard : of `lying_shard`; liars that do not train this round send nothing.
    """
    if order.restore:
        node.state.restore(order.restore)
    config = node.config
    if config.attack == "gradient-ascent":
        rate = -abs(config.attack_strength or 1.0) * config.item_learning_rate
        # Not a valid configuration, and meant to be none: validation is for honest ones.
        config = config.model_copy(update={"item_learning_rate": rate})
    lying = replace(
        node,
        config=config.model_copy(update={"epsilon_budget": 0.0}),
        shard=shard,
        state=cast(ClientState, ReadOnlyState(node.state)),
        refit_rows=None,
        user_metrics=None,
    )
    uploads, _ = lying.train(table, replace(order, restore=0, snapshot=False, report_loss=False))
    return uploads


def of_users(shard: Shard, users: NDArray[np.int64]) -> Shard:
    """The part of a shard that holds these users."""
    here = np.flatnonzero(np.isin(shard.users, users, assume_unique=True))

    def few(rows: ShardRows) -> ShardRows:
        return ShardRows(rows.items, rows.starts[here], rows.ends[here])

    return Shard(shard.users[here], shard.num_items, few(shard.train), few(shard.validation), few(shard.test))


def flipped(shard: Shard, seed: int) -> Shard:
    """Label flip: each user's items replaced by as many that it has not got, the same in every round."""
    train, validation = [], []
    for position, user in enumerate(shard.users):
        own = np.concatenate([shard.train.row(position), shard.validation.row(position)])
        others = np.setdiff1d(np.arange(shard.num_items, dtype=np.int32), own)
        drawn = derive_generator(seed, "flipped", int(user)).permutation(others)
        parts = (len(shard.train.row(position)), len(own))
        train.append(np.sort(drawn[: parts[0]]))
        validation.append(np.sort(drawn[parts[0] : parts[1]]))
    return replace(shard, train=_rows(train), validation=_rows(validation))


def with_item(shard: Shard, item: int) -> Shard:
    """Shilling: everybody claims to have the item too."""
    train = [np.union1d(shard.train.row(place), [item]).astype(np.int32) for place in range(len(shard.users))]
    return replace(shard, train=_rows(train))


def _rows(rows: list[NDArray[np.int32]]) -> ShardRows:
    ends = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    return ShardRows(np.concatenate([*rows, np.empty(0, np.int32)]).astype(np.int32), ends[:-1], ends[1:])
