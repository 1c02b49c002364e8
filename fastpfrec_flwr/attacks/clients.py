"""What a simulated SuperNode with lying users does beside the honest ClientApp: it rewrites their uploads after it has answered."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.attackers import active, honest_nonces, lasting_liars, lying_users, sent_nonces
from fastpfrec_flwr.attacks.build import RETRAINED, build_attack
from fastpfrec_flwr.attacks.claims import Claims
from fastpfrec_flwr.attacks.exposure import exposed_users, exposure_folder, write_exposure
from fastpfrec_flwr.attacks.forging import Own, Scene
from fastpfrec_flwr.attacks.items import target_item
from fastpfrec_flwr.attacks.replies import Sent, forge_reply, without
from fastpfrec_flwr.attacks.training import lying_shard, retrained
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.data.cache import load_split
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.randomness import stream_key, user_stream_keys


class LyingClients:
    """The lying users of one simulated SuperNode.

    Parameters
    ----------
    node : the honest SuperNode. directory : of its prepared split, for what best-seller lists tell everybody.
    claims : what they have claimed before.
    """

    def __init__(self, node: Node, directory: Path, claims: Claims) -> None:
        self._node = node
        self._config: RunConfig = node.config
        self._lasting = lasting_liars(node.config, node.num_users)
        self._popularity = popularity(directory)
        self._directory = directory
        self._claims = claims

    def train_beside(self, table: NDArray[np.float32], order: Order) -> PrivatizedUploads | None:
        """What the liars' devices send if it is their training that lies; to be called before the honest training."""
        if self._config.attack not in RETRAINED or not active(self._config, order.server_round):
            return None
        return retrained(self._node, table, order, self._claimed())

    def forge(
        self,
        sent: Sent,
        table: NDArray[np.float32],
        order: Order,
        cover_scale: float,
        trained: PrivatizedUploads | None,
    ) -> Sent:
        """The reply with the liars' uploads in place of theirs.

        Parameters
        ----------
        sent : what the honest ClientApp answered. cover_scale : of that answer. trained : of `train_beside`.
        """
        config = self._config
        if not active(config, order.server_round):
            return sent
        liars = lying_users(config, self._node.num_users, order.server_round)
        known = honest_nonces(config, liars, order.phase, order.server_round)
        places = np.flatnonzero(np.isin(sent.nonces, known))
        if len(places) == 0:
            return sent
        if config.attack == "absent":
            return without(sent, places)
        honest = sent.nonces[places]
        keys = user_stream_keys(stream_key(config.seed, "lies", order.server_round), honest.view(np.int64))
        own = sent.own(places, keys) if trained is None else _same_order(trained, honest, keys)
        scene = Scene(config, table, order.server_round, cover_scale, self._popularity)
        return forge_reply(sent, places, own, scene, build_attack(config), sent_nonces(config, honest))

    def measure_exposure(
        self, table: NDArray[np.float32], order: Order, state_root: Path, partition: int, num_partitions: int
    ) -> None:
        """Count the honest users who would be shown the promoted item."""
        item = self._target()
        exposed, users = exposed_users(self._node, table, order, item, self._lasting)
        write_exposure(exposure_folder(state_root, order.state_id), partition, num_partitions, item, exposed, users)

    def _claimed(self) -> Shard:
        """What the liars claim to have, see `Claims`."""
        config, users, target = self._config, self._node.shard.users, self._target()
        which = (self._directory, len(users), int(users[0]) if len(users) else -1)
        key = (*which, config.seed, config.attack, config.attack_fraction, target)
        return self._claims.of(key, lambda: lying_shard(self._node.shard, config, self._lasting, target))

    def _target(self) -> int:
        return target_item(self._config.attack_target_item, self._popularity, self._config.seed)


def _same_order(trained: PrivatizedUploads, nonces: NDArray[np.uint64], keys: NDArray[np.uint64]) -> Own:
    """Uploads of the lying training in the order of the reply.

    Raises
    ------
    ValueError if not all are there: the same users train in both.
    """
    order = np.argsort(trained.nonces)
    found = order[np.searchsorted(trained.nonces, nonces, sorter=order).clip(max=len(order) - 1)]
    if (trained.nonces[found] != nonces).any():
        raise ValueError("a liar's lying training has sent nothing, its honest one something")
    sent = Sent(trained.nonces, trained.pointer, trained.rows, trained.values)  # type: ignore[arg-type]
    return sent.own(found, keys)


@lru_cache(maxsize=8)
def popularity(directory: Path) -> NDArray[np.int64]:
    """(items,) users per item in train."""
    split = load_split(directory)
    counts: NDArray[np.int64] = np.bincount(split.train.items, minlength=split.num_items)
    return counts
