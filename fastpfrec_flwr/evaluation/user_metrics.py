"""Metrics of each user, for tests that pair users between runs. Only who holds the users' data can have them.

A file is one `.npz`: `users` (users,) int64, ascending, and for each of `NAMES` one (users,) float32 array. Only users with truth
are in it. `truth` and `hits@k` are counts, so sum(hits@k) / sum(truth) is `hit_ratio_micro@k` exactly.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.evaluation.metrics import CUTOFFS
from fastpfrec_flwr.files import write_atomically

NAMES = ("truth", *(f"{name}@{k}" for name in ("hits", "recall", "ndcg") for k in CUTOFFS))


@dataclass(frozen=True)
class UserMetrics:
    """Metrics of some users.

    Attributes
    ----------
    users : (users,) int64 numbers in the data set, ascending. values : one (users,) float32 array for each of `NAMES`.
    """

    users: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float32]]

    @classmethod
    def of(cls, users: NDArray[np.int64], per_user: Mapping[str, NDArray[np.float64]]) -> UserMetrics:
        """Keep what `evaluation.metrics.per_user_metrics` found for `users`, those without truth left out."""
        known = np.flatnonzero(per_user["truth"] > 0)
        order = known[np.argsort(users[known], kind="stable")]
        return cls(users[order].astype(np.int64), {name: per_user[name][order].astype(np.float32) for name in NAMES})

    @classmethod
    def merged(cls, parts: Iterable[UserMetrics]) -> UserMetrics:
        """Put the users of several devices together.

        Raises
        ------
        ValueError if a user stands in two of them.
        """
        found = list(parts)
        users = np.concatenate([np.empty(0, np.int64), *(part.users for part in found)])
        order = np.argsort(users, kind="stable")
        if (np.diff(users[order]) == 0).any():
            raise ValueError("user metrics: a user stands in two parts")
        empty = np.empty(0, np.float32)
        values = {name: np.concatenate([empty, *(part.values[name] for part in found)])[order] for name in NAMES}
        return cls(users[order], values)

    def hit_ratio_micro(self, k: int) -> float:
        """Hits among the first k over all truth items; NaN without users."""
        truth = int(self.values["truth"].sum(dtype=np.float64))
        return int(self.values[f"hits@{k}"].sum(dtype=np.float64)) / truth if truth else float("nan")

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        buffer = io.BytesIO()
        arrays: dict[str, NDArray[np.int64] | NDArray[np.float32]] = {"users": self.users, **self.values}
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> UserMetrics:
        """Read what `save` wrote.

        Raises
        ------
        ValueError naming the file if it is no such file. OSError if it cannot be read.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(arrays["users"], {name: arrays[name] for name in NAMES})
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: is no file of user metrics ({error})") from error
