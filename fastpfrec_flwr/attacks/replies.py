"""The liars' part of a train reply, taken out, forged, and put back in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.forging import Attack, Own, Scene
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.messages import LARGEST_VALUE
from fastpfrec_flwr.privacy.noise import on_grid
from fastpfrec_flwr.wire import sendable


class Sent:
    """Uploads of a reply as arrays: nonces (clients,), pointer (clients + 1,), rows (touched,), values (touched, k)."""

    def __init__(
        self,
        nonces: NDArray[np.uint64],
        pointer: NDArray[np.int64],
        rows: NDArray[np.int32],
        values: NDArray[np.float32],
    ) -> None:
        self.nonces, self.pointer, self.rows, self.values = nonces, pointer, rows, values

    def own(self, liars: NDArray[np.int64], keys: NDArray[np.uint64]) -> Own:
        """The uploads of the clients at these places, copied."""
        pieces = [slice(self.pointer[j], self.pointer[j + 1]) for j in liars]
        lengths = [each.stop - each.start for each in pieces]
        return Own(
            keys,
            np.cumsum([0, *lengths]).astype(np.int64),
            np.concatenate([self.rows[:0], *(self.rows[each] for each in pieces)]),
            np.concatenate([self.values[:0], *(self.values[each] for each in pieces)]).astype(np.float32),
        )


def without(sent: Sent, liars: NDArray[np.int64]) -> Sent:
    """The reply without the uploads of the clients at these places."""
    kept = np.setdiff1d(np.arange(len(sent.nonces)), liars)
    others = sent.own(kept, sent.nonces[kept])
    return Sent(others.keys, others.pointer, others.rows, others.values)


def forge_reply(
    sent: Sent, liars: NDArray[np.int64], own: Own, scene: Scene, attack: Attack, nonces: NDArray[np.uint64]
) -> Sent:
    """The reply with the liars' uploads forged, everybody else's as they were.

    Values are brought to the grid, so that sums stay exact in any order, and into what decoding takes.

    Parameters
    ----------
    liars : places in the reply of the clients that lie, at least one. own : what they would have sent, in this order.
    nonces : (liars,) under which they send.
    """
    forgery = attack.forge(own, scene)
    rows = {int(j): forgery.rows(i) for i, j in enumerate(liars)}
    lengths = np.diff(sent.pointer)
    for j, forged in rows.items():
        lengths[j] = len(forged)
    pointer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    all_rows = np.empty(pointer[-1], np.int32)
    values = sendable((int(pointer[-1]), sent.values.shape[1]), "float32")
    place = {int(j): i for i, j in enumerate(liars)}
    for j in range(len(sent.nonces)):
        mine, before = slice(pointer[j], pointer[j + 1]), slice(sent.pointer[j], sent.pointer[j + 1])
        if j in place:
            all_rows[mine] = rows[j]
            forgery.fill(place[j], values[mine])
            _to_readable(values[mine].reshape(-1), np.float32(LARGEST_VALUE))
        else:
            all_rows[mine], values[mine] = sent.rows[before], sent.values[before]
    new = sent.nonces.copy()
    new[liars] = nonces
    return Sent(new, pointer, all_rows, values)


@compiled
def _to_readable(values: Any, largest: Any) -> None:
    for i in range(values.shape[0]):
        value = min(max(values[i], -largest), largest)
        values[i] = on_grid(value) if value == value else np.float32(0.0)
