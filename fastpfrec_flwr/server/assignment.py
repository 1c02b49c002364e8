"""A key of the server's own in every nonce, so that a client that picks its nonce does not pick its trusted node."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.uploads import Uploads


def assignment_key(config: RunConfig, deployed: bool, phase: str, server_round: int) -> int | None:
    """What a round's nonces are mixed with before they draw a node; None leaves them as they are.

    Nodes are a function of nonces, and colluding clients that choose theirs would gather in one node. With real devices the key is
    from the operating system, made once all of them have been asked, and no client learns it. In a simulation it comes from the
    seed where `secret-assignment` asks for it, the same whatever the number of SuperNodes.
    """
    if deployed:
        return secrets.randbits(64)
    return simulated_assignment_key(config, phase, server_round)


def simulated_assignment_key(config: RunConfig, phase: str, server_round: int) -> int | None:
    """In a simulation the key of a round comes from the seed; None where nonces are left as they are."""
    return stream_key(config.seed, "assignment", phase, server_round) if config.secret_assignment else None


def with_key(nonces: NDArray[np.uint64], key: int | None) -> NDArray[np.uint64]:
    """(clients,) nonces with a key mixed in: a bijection, so different ones stay different."""
    return nonces if key is None else user_stream_keys(key, nonces.view(np.int64))


def with_keyed_nonces(uploads: Uploads, key: int | None) -> Uploads:
    """The uploads with a key mixed into their nonces, otherwise as they are."""
    if key is None:
        return uploads
    mixed = replace(uploads, nonces=with_key(uploads.nonces, key))
    return mixed if uploads.norms is None else mixed.with_norms(uploads.norms)
