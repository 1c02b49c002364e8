"""ER@10: the share of honest users who have the promoted item in their top 10, of those who have not got it already.

Who runs the simulation may look at every device; nothing of this crosses the wire.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.messages import Order

TOP = 10


def exposed_users(
    node: Node, table: NDArray[np.float32], order: Order, item: int, liars: NDArray[np.int64]
) -> tuple[int, int]:
    """(users with `item` in their top 10, users counted) of a SuperNode, train and validation items masked."""
    shard = node.shard
    has = np.array(
        [
            item in part.row(position)
            for position in range(len(shard.users))
            for part in (shard.train, shard.validation)
        ],
        np.bool_,
    ).reshape(-1, 2)
    asked = np.flatnonzero(~has.any(axis=1) & ~np.isin(shard.users, liars, assume_unique=True))
    if len(asked) == 0:
        return 0, 0
    masks = [_rows_of(part.items, part.starts[asked], part.ends[asked]) for part in (shard.train, shard.validation)]
    top = node.ranker_for_all(table, order.phase)(asked, masks)[:, :TOP]
    return int((top == item).any(axis=1).sum()), len(asked)


def _rows_of(items: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Rows:
    lengths = ends - starts
    chosen = [items[start:end] for start, end in zip(starts, ends, strict=True)]
    bounds = np.cumsum(lengths)
    return Rows(np.concatenate([*chosen, np.empty(0, np.int32)]).astype(np.int32), bounds - lengths, bounds)


def exposure_folder(state_root: Path, state_id: str) -> Path:
    """Where simulated SuperNodes leave their counts, beside the state that a release removes."""
    return state_root / f"{state_id}-exposure"


def write_exposure(folder: Path, partition: int, num_partitions: int, item: int, exposed: int, users: int) -> None:
    """Keep one SuperNode's counts; a later evaluation replaces them."""
    text = json.dumps({"item": item, "exposed": exposed, "users": users})
    write_atomically(folder / f"{partition}-of-{num_partitions}.json", text.encode())


def read_exposure(folder: Path) -> dict[str, float | int] | None:
    """Add up what all SuperNodes left: item, users, exposed and `er@10`; None where nobody left anything. Removes the files."""
    found = []
    for path in sorted(folder.glob("*-of-*.json")) if folder.is_dir() else []:
        found.append(json.loads(path.read_text(encoding="utf-8")))
        path.unlink()
    if not found:
        return None
    folder.rmdir()
    users, exposed = sum(each["users"] for each in found), sum(each["exposed"] for each in found)
    return {"item": found[0]["item"], "users": users, "exposed": exposed, "er@10": exposed / max(users, 1)}
