"""Uploads of rows drawn by lot: few bytes, and which rows travel says nothing of the user.

A sparse upload is the touched rows, and names them. Here each upload carries the same number of rows, drawn uniformly from the
whole table by its nonce, which is public and knows no data: the change where the client has touched the row, zero elsewhere, and
noise on all of them. With a share f of the rows a round costs f of the bytes of dense uploads. Each row then has the changes of f
of its clients, so the server divides the average by f; its noise is that of f n clients, so sqrt(1 / f) times as large beside the
change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import draw_unmarked
from fastpfrec_flwr.parallel import even_pieces, in_parallel
from fastpfrec_flwr.privacy.mechanism import Changes, Mechanism, PrivatizedUploads
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.wire import sendable


def rows_in_upload(upload: str, sampled_share: float, num_items: int) -> int:
    """How many rows of a table of `num_items` carry noise in one upload, at most."""
    return max(round(sampled_share * num_items), 1) if upload == "sampled" else num_items


class _Drawn(NamedTuple):
    rows: NDArray[np.int32]
    pointer: NDArray[np.int64]
    changes: NDArray[np.float32]


@dataclass(frozen=True)
class SampledRows:
    """Another mechanism on rows drawn by lot.

    Attributes
    ----------
    mechanism : clips and noises the rows that it is given, and no others. share : of the table's rows, in (0, 1].
    """

    mechanism: Mechanism
    share: float
    threads: int = 1

    @property
    def noise_scale(self) -> float:
        """Of the other mechanism."""
        return self.mechanism.noise_scale

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`."""
        count = rows_in_upload("sampled", self.share, num_items)
        draws = user_stream_keys(stream_key(0, "sampled-rows"), nonces.view(np.int64))
        rows = np.empty(len(nonces) * count, np.int32)
        values = sendable((len(rows), changes.changes.shape[1]), "float32")

        def run(piece: tuple[int, int]) -> None:
            _draw_rows(draws, count, num_items, changes.rows, changes.pointer, changes.changes, *piece, rows, values)

        in_parallel(run, even_pieces(np.ones(len(nonces)), self.threads), self.threads)
        pointer = np.arange(len(nonces) + 1, dtype=np.int64) * count
        return self.mechanism.privatize(_Drawn(rows, pointer, values), nonces, keys, num_items)


@compiled
def _draw_rows(
    draws: Any,
    count: int,
    num_items: int,
    touched: Any,
    pointer: Any,
    changes: Any,
    first: int,
    last: int,
    rows: Any,
    values: Any,
) -> None:
    """`count` distinct rows of each client, ascending, with its change or zero; `draws` are the clients' streams."""
    marks, drawn = np.empty(num_items, np.uint8), np.empty(count, np.int64)
    for u in range(first, last):
        marks[:] = 0
        draw_unmarked(draws[u], marks, num_items, 1, drawn)
        position, t, stop = u * count, pointer[u], pointer[u + 1]
        for row in range(num_items):
            if marks[row] == 0:
                continue
            while t < stop and touched[t] < row:
                t += 1
            rows[position] = row
            if t < stop and touched[t] == row:
                for c in range(values.shape[1]):
                    values[position, c] = changes[t, c]
            else:
                for c in range(values.shape[1]):
                    values[position, c] = np.float32(0.0)
            position += 1
