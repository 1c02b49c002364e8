"""What the device adds to the public table: its user's private vector, from the state that training keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.recommend.errors import ModelError


def private_vector(state_dir: Path, state_id: str, user: int | None = None) -> NDArray[np.float32]:
    """(k,) p_u as the device last trained it. The file is opened for reading only, also while a round runs.

    Parameters
    ----------
    state_dir : the device's. state_id : of the training (in a model's manifest). user : its number; None where there is one only.

    Raises
    ------
    ModelError if there is no such state or user, or several users and no number.
    """
    folder = state_dir.expanduser() / state_id
    # A refit is a second training, from the start: what came of it is what belongs to the final table.
    for phase in ("refit", "train"):
        files = sorted((folder / phase).glob("*-of-*.sqlite3"))
        files = [path for path in files if ".round-" not in path.name]
        if not files:
            continue
        found: dict[int, bytes] = {}
        for path in files:
            try:
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                    chosen = ("", ()) if user is None else (" WHERE user = ?", (user,))
                    found |= dict(connection.execute(f"SELECT user, vector FROM users{chosen[0]}", chosen[1]))
            except sqlite3.Error as error:
                raise ModelError(
                    f"{path}: the device's state cannot be read ({error}); recommend without it"
                ) from error
        if len(found) == 1:
            return np.frombuffer(next(iter(found.values())), np.float32)
        if not found:
            raise ModelError(
                f"{folder}: {'no user' if user is None else f'user {user}'} has trained here yet; recommend without the state"
            )
        raise ModelError(f"{folder}: holds {len(found)} users; say which with --user-number")
    raise ModelError(f"{folder}: no state of this training; give the device's state-dir, or recommend without it")
