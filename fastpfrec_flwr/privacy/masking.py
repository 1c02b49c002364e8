"""Uploads behind masks: what leaves a client where not even its trusted node may see it (`privacy.secure_sum`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.privacy.secure_sum import Member, SecureSumError, to_steps

_SEAL = object()


@dataclass(frozen=True)
class MaskedUploads:
    """Masked whole tables of some clients. Made by `mask_uploads` alone, of uploads that a mechanism made.

    Attributes
    ----------
    nonces : (clients,) uint64. steps : (clients, items * columns) uint64, grid steps and masks modulo 2^64.
    """

    nonces: NDArray[np.uint64]
    steps: NDArray[np.uint64]
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("MaskedUploads come from mask_uploads; nothing else may leave a client")


def group_threshold(members: int, dropout_fraction: float) -> int:
    """How many of a group must be left for its sum to be opened: all but the stated fraction, and more than half."""
    return max(members // 2 + 1, math.ceil((1.0 - dropout_fraction) * members - 1e-9))


def least_in_sum(clients: int, nodes: int, dropout_fraction: float) -> int:
    """How many of a round's `clients`, shared out evenly among `nodes`, every sum that is opened holds."""
    return group_threshold(clients // nodes, dropout_fraction)


def mask_uploads(
    uploads: PrivatizedUploads, members: dict[int, Member], sharing: dict[int, Sequence[int]], num_items: int
) -> MaskedUploads:
    """Put each client's upload behind its masks.

    Parameters
    ----------
    members : of each nonce. sharing : of each nonce the numbers of its group that shared; clients without enough are left out.
    num_items : rows of the table.

    Raises
    ------
    TypeError for anything that did not come out of a mechanism.
    SecureSumError if an upload lacks the noise of the rows that its client did not touch.
    """
    if type(uploads) is not PrivatizedUploads:
        raise TypeError(f"only PrivatizedUploads may leave a client, got {type(uploads).__name__}")
    if uploads.cover_scale > 0:
        raise SecureSumError("an upload behind masks must carry its own noise on every row")
    nonces, masked = [], []
    for client, nonce in enumerate(uploads.nonces.tolist()):
        member = members[nonce]
        if len(sharing.get(nonce, ())) < member.threshold:
            continue
        mine = slice(uploads.pointer[client], uploads.pointer[client + 1])
        steps = np.zeros((num_items, uploads.values.shape[1]), np.uint64)
        steps[uploads.rows[mine]] = to_steps(uploads.values[mine].astype(np.float32))
        masked.append(member.mask(steps.reshape(-1), sharing[nonce]))
        nonces.append(nonce)
    width = num_items * uploads.values.shape[1]
    whole = np.stack(masked) if masked else np.empty((0, width), np.uint64)
    return MaskedUploads(np.array(nonces, np.uint64), whole, _SEAL)
