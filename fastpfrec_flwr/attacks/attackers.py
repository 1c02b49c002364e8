"""Who lies: a seeded subset of the users and of the trusted nodes, known to the attack and to the measurement, never to the server.

Both sides know the liars of a round by their nonces, which in a simulation come from the seed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.randomness import derive_generator, stream_key, user_stream_keys
from fastpfrec_flwr.server.assignment import simulated_assignment_key, with_key
from fastpfrec_flwr.trusted_node.roster import assign_nodes

PHASES = ("train", "refit")


def lying_users(config: RunConfig, num_users: int, server_round: int) -> NDArray[np.int64]:
    """The users that lie in a round: exactly round(fraction * users) of them; ascending.

    Drawn `once` they are the same in all rounds, with `each-round` others in each: devices that are taken over for a while.
    """
    count = 0 if config.attack == "none" else round(config.attack_fraction * num_users)
    which = () if config.attack_drawn == "once" else (server_round,)
    order = derive_generator(config.seed, "attackers", *which).permutation(num_users)
    return np.sort(order[:count]).astype(np.int64)


def lasting_liars(config: RunConfig, num_users: int) -> NDArray[np.int64]:
    """The users that lie in all rounds, so that nothing honest is ever heard of them; ascending."""
    return lying_users(config, num_users, 0) if config.attack_drawn == "once" else np.empty(0, np.int64)


def compromised_nodes(config: RunConfig) -> NDArray[np.int64]:
    """Numbers of the trusted nodes that lie, the same for the whole run; ascending."""
    count = 0 if config.node_attack == "none" else config.compromised_nodes
    order = derive_generator(config.seed, "compromised-nodes").permutation(config.num_trusted_nodes)
    return np.sort(order[:count]).astype(np.int64)


def active(config: RunConfig, server_round: int) -> bool:
    """Whether the round is one in which clients and nodes lie."""
    return server_round >= config.attack_from_round


def honest_nonces(config: RunConfig, users: NDArray[np.int64], phase: str, server_round: int) -> NDArray[np.uint64]:
    """(users,) the nonces that honest simulated devices of these users draw in a round (`client.node.Node`)."""
    return user_stream_keys(stream_key(config.seed, "nonce", phase, server_round), users)


def sent_nonces(config: RunConfig, nonces: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The nonces under which liars send: their own, or with `one-node` the first that leads to the node they meet in."""
    if config.attack_placement == "spread":
        return nonces
    node = int(derive_generator(config.seed, "meeting-node").integers(config.num_trusted_nodes))
    return gather_in(nonces, config.num_trusted_nodes, node)


def gather_in(nonces: NDArray[np.uint64], num_nodes: int, node: int) -> NDArray[np.uint64]:
    """Replace each nonce by one that `assign_nodes` sends to `node`; different nonces stay different (but for 2^-64)."""
    found = nonces.copy()
    step = 0
    while (wrong := np.flatnonzero(assign_nodes(found, num_nodes) != node)).size:
        step += 1
        found[wrong] = user_stream_keys(stream_key(0, "gather", step), nonces[wrong].view(np.int64))
    return found


def liars_of_round(config: RunConfig, users: NDArray[np.int64], server_round: int) -> NDArray[np.uint64]:
    """Nonces of lying users as they reach the trusted nodes in a round, of either phase: what the measurement compares with."""
    if not active(config, server_round) or len(users) == 0:
        return np.empty(0, np.uint64)
    return np.concatenate(
        [
            with_key(
                sent_nonces(config, honest_nonces(config, users, phase, server_round)),
                simulated_assignment_key(config, phase, server_round),
            )
            for phase in PHASES
        ]
    )
