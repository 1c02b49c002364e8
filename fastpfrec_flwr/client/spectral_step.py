"""The local step of the spectral encoder: a user's code on its own items, see `model.spectral`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.model.spectral import code_factors, fill_codes
from fastpfrec_flwr.parallel import even_pieces, in_parallel
from fastpfrec_flwr.wire import sendable


def spectral_step(
    item_table: NDArray[np.float32], graphs: LocalGraphs, config: RunConfig, threads: int
) -> NDArray[np.float32]:
    """Changes of a cohort, of L2 norm `clip-norm` each: whoever has one item and whoever has hundreds use up the clip.

    Parameters
    ----------
    item_table : (items, k). graphs : stars without false items.

    Returns
    -------
    (edges, k) float32, in the order of the graphs' items.
    """
    factors = code_factors(item_table)
    changes: NDArray[np.float32] = sendable((len(graphs.items), item_table.shape[1]), "float32")
    length = config.clip_norm or 1.0

    def run(piece: tuple[int, int]) -> None:
        fill_codes(factors, graphs.items, graphs.pointer, *piece, config.count_share, length, changes)

    in_parallel(run, even_pieces(graphs.degrees, threads), threads)
    return changes
