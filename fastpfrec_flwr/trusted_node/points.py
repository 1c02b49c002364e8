"""Uploads of one node as points in the space of whole tables, handed out in blocks of rows so that memory stays bounded.

A rule that looks at single clients (a median, a distance between two of them) must see what a real deployment sends: with dense
uploads that is noise on every row. Simulated dense uploads do not carry it yet, so it is drawn here, per client and block, from
the client's own stream: the same noise however often and in whatever order blocks are asked for.

Cost: one draw for each client and coordinate and pass, as many as the devices themselves would make.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_laplace, fill_normal, stream_value
from fastpfrec_flwr.privacy.noise import round_to_grid
from fastpfrec_flwr.randomness import user_stream_keys
from fastpfrec_flwr.trusted_node.aggregation import noise_of
from fastpfrec_flwr.trusted_node.uploads import Uploads

# Coordinates of all clients together in one block: 32 MB of float64.
BLOCK_VALUES = 1 << 22
# Rows of one noise stream: the noise of a row must not depend on how large the blocks are.
_STREAM_ROWS = 64


class Points(Protocol):
    """Vectors of one length, row by row of a table."""

    @property
    def count(self) -> int: ...  # noqa: D102

    def blocks(
        self, chosen: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """Row numbers (r,) and values (chosen or all points, r, k) of one block after the other; other rows are zero."""


@dataclass(frozen=True)
class UploadPoints:
    """Some clients' uploads, in the order of their nonces: the order of arrival decides nothing.

    Attributes
    ----------
    uploads : their uploads, ordered. num_items : rows of the table. cover_keys : (clients,) uint64 streams of the cover noise.
    """

    uploads: Uploads
    num_items: int
    cover_keys: NDArray[np.uint64]

    @staticmethod
    def gather(parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int) -> UploadPoints:
        """Take some clients out of the round's uploads.

        Parameters
        ----------
        parts, members : as in `aggregation.node_mean`. cover_key : stream of the round's cover noise.

        Raises
        ------
        ValueError if there is no client, or if some parts have cover noise and others not.
        """
        noise = noise_of(parts, "aggregated")
        nonces = np.concatenate([part.nonces[chosen] for part, chosen in zip(parts, members, strict=True)])
        if len(nonces) == 0:
            raise ValueError("an aggregate needs at least one client")
        of_part = np.repeat(np.arange(len(parts)), [len(chosen) for chosen in members])
        place = np.concatenate(members)
        order = np.argsort(nonces, kind="stable")
        rows, values, lengths = [], [], []
        for client in order:
            part = parts[of_part[client]]
            mine = slice(part.pointer[place[client]], part.pointer[place[client] + 1])
            rows.append(part.rows[mine])
            values.append(part.values[mine])
            lengths.append(len(rows[-1]))
        pointer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ordered = nonces[order]
        uploads = Uploads(ordered, pointer, np.concatenate(rows), np.concatenate(values), *noise)
        return UploadPoints(uploads, num_items, user_stream_keys(cover_key, ordered.view(np.int64)))

    @property
    def count(self) -> int:
        """Clients."""
        return self.uploads.num_clients

    @property
    def touched_by(self) -> NDArray[np.int64]:
        """(items,) how many of the clients sent each row."""
        return np.bincount(self.uploads.rows, minlength=self.num_items)

    def blocks(
        self, chosen: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """See `Points`. Without cover noise only rows that somebody sent come up."""
        uploads, k = self.uploads, self.uploads.values.shape[1]
        clients = np.arange(self.count) if chosen is None else chosen
        covered = uploads.cover_scale > 0
        wanted = np.arange(self.num_items) if covered else np.flatnonzero(self.touched_by)
        step = max(BLOCK_VALUES // (max(len(clients), 1) * k), 1)
        if covered:
            step = -(-step // _STREAM_ROWS) * _STREAM_ROWS
        place = np.full(self.num_items, -1, np.int64)
        for start in range(0, len(wanted), step):
            rows = wanted[start : start + step]
            place[rows] = np.arange(len(rows))
            values = np.zeros((len(clients), len(rows), k), np.float64)
            _fill_block(
                uploads.rows, uploads.pointer, uploads.values, clients, place, int(rows[0]), int(rows[-1]),
                self.cover_keys, uploads.cover_scale, uploads.cover.gaussian, values,
            )  # fmt: skip
            place[rows] = -1
            yield rows.astype(np.int32), values

    def table(self, client: int) -> NDArray[np.float32]:
        """(items, k) float32: all that one client sent or, on a real device, would have sent."""
        whole = np.zeros((self.num_items, self.uploads.values.shape[1]), np.float32)
        for rows, values in self.blocks(np.array([client])):
            whole[rows] = values[0]
        return whole


@compiled
def _fill_block(
    rows: Any,
    pointer: Any,
    values: Any,
    clients: Any,
    place: Any,
    first_row: int,
    last_row: int,
    cover_keys: Any,
    cover_scale: float,
    gaussian: bool,
    out: Any,
) -> None:
    k = values.shape[1]
    noise = np.empty(_STREAM_ROWS * k, np.float32)
    for j in range(clients.shape[0]):
        client = clients[j]
        if cover_scale > 0:
            # With cover noise a block is whole stretches of `_STREAM_ROWS` rows; each stretch has a stream of its own.
            for start in range(first_row, last_row + 1, _STREAM_ROWS):
                if gaussian:
                    fill_normal(stream_value(cover_keys[client], np.uint64(start)), noise)
                    noise *= np.float32(cover_scale)
                else:
                    fill_laplace(stream_value(cover_keys[client], np.uint64(start)), cover_scale, noise)
                round_to_grid(noise)
                for t in range(start, min(start + _STREAM_ROWS, last_row + 1)):
                    for c in range(k):
                        out[j, t - first_row, c] = noise[(t - start) * k + c]
        for t in range(pointer[client], pointer[client + 1]):
            here = place[rows[t]]
            if here >= 0:
                for c in range(k):
                    out[j, here, c] = values[t, c]
