"""Files of interactions to the shard that a SuperNode holds: files -> Interactions -> Split -> Shard.

`prepare` finds, reads and splits a data set once; `open_shard` opens one SuperNode's part of it in milliseconds.
"""

from __future__ import annotations

from fastpfrec_flwr.data.cache import open_shard
from fastpfrec_flwr.data.catalogue import DATA_SET_NAMES
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.preparation import PreparedSplit, prepare
from fastpfrec_flwr.data.types import Csr, Shard, ShardRows, Split, SplitSettings

__all__ = [
    "DATA_SET_NAMES",
    "Csr",
    "DataError",
    "PreparedSplit",
    "Shard",
    "ShardRows",
    "Split",
    "SplitSettings",
    "open_shard",
    "prepare",
]
