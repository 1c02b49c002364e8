"""Checkpoints: everything the server needs to go on, in one file that is whole or not there."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.steps import Pull, ServerState

FORMAT = 1
# Keys that may differ between the run that wrote a checkpoint and the one that goes on from it.
FREE_KEYS = {
    "data-dir", "output-dir", "state-dir", "device", "threads", "resume-from", "checkpoint-every", "round-timeout",
    "report-loss", "evaluate-every", "early-stop-patience", "strategy-memory", "user-metrics", "trackers",
    "log-format", "metrics-file", "catalogue", "initial-model",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A training as it stood after a round.

    Attributes
    ----------
    state : the server's. best_table : item table of the best evaluated round, (items, k), or None.
    progress : JSON-able record of the phases so far. state_id : names the devices' state. data : fingerprint of the data.
    config : of the run that wrote it, under its run-config keys.
    """

    state: ServerState
    best_table: np.ndarray[Any, np.dtype[np.float32]] | None
    progress: dict[str, Any]
    state_id: str
    data: str
    config: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    state = checkpoint.state
    meta = {
        "format": FORMAT,
        "steps": state.steps,
        "quarantine": state.quarantine,
        "pull": None if state.pull is None else {"steps": state.pull.steps, "found": state.pull.found},
        "progress": checkpoint.progress,
        "state-id": checkpoint.state_id,
        "data": checkpoint.data,
        "config": checkpoint.config,
    }
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        "item_table": state.item_table,
        "first_moment": state.first_moment,
        "second_moment": state.second_moment,
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
    }
    if state.item_counts is not None:
        arrays["item_counts"] = state.item_counts
    if state.pull is not None:
        arrays |= {"pull_mean": state.pull.mean, "pull_square": state.pull.square}
    if checkpoint.best_table is not None:
        arrays["best_table"] = checkpoint.best_table
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path, config: RunConfig) -> Checkpoint:
    """Read a checkpoint and see that this configuration may go on from it.

    Raises
    ------
    ConfigError if the file is missing, broken, or of another configuration (which keys, both values).
    """
    if not path.is_file():
        raise ConfigError(f"resume-from must name a checkpoint, got {str(path)!r}, which is no file")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            meta = json.loads(arrays["meta"].tobytes())
            if meta["format"] != FORMAT:
                raise ConfigError(f"resume-from: {path} has format {meta['format']}, this version reads {FORMAT}")
            state = ServerState(
                arrays["item_table"],
                arrays["first_moment"],
                arrays["second_moment"],
                int(meta["steps"]),
                arrays.get("item_counts"),
                tuple((int(node), int(last)) for node, last in meta.get("quarantine", ())),
                _pull(meta.get("pull"), arrays),
            )
            best = arrays.get("best_table")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"resume-from: {path} is not a readable checkpoint ({error})") from error
    now = config.to_flat_dict()
    differing = [
        f"{key} = {meta['config'].get(key)!r} there, {now[key]!r} here"
        for key in now
        if key not in FREE_KEYS and meta["config"].get(key) != now[key]
    ]
    # What the first part sent without noise stays sent: the ledger of the whole must go on saying so.
    differing += [
        f"{key} = {meta['config'].get(key)!r} there, {now[key]!r} here: what was sent up to there was sent; begin a new run instead"
        for key in ("evaluate-every", "report-loss")
        if meta["config"].get(key) and not now[key]
    ]
    if differing:
        raise ConfigError(f"resume-from: {path} is of another configuration: " + "; ".join(differing))
    return Checkpoint(state, best, meta["progress"], meta["state-id"], meta["data"], meta["config"])


def _pull(meta: dict[str, Any] | None, arrays: Mapping[str, Any]) -> Pull | None:
    if meta is None:
        return None
    found = tuple(int(row) for row in meta["found"])
    return Pull(arrays["pull_mean"], arrays["pull_square"], int(meta["steps"]), found)
