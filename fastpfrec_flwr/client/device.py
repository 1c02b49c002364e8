"""What a real device keeps for good, over all trainings: its secret, its users' numbers, and what their uploads have cost.

One SQLite file, `device.sqlite3`, in the state folder, beside the folders of the single trainings. A training can be gone back
to an earlier round; this file never goes back: uploads that have left cannot be called back. Commits wait for the disk
(`synchronous = FULL`), because what is charged here is charged before an upload leaves.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.state import StateError

FILE = "device.sqlite3"
SCHEMA_VERSION = 1


class Device:
    """A device's own file.

    Parameters
    ----------
    root : the state folder; made if missing.

    Raises
    ------
    StateError if it cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / FILE
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = not self._path.exists()
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30.0)
            if fresh:
                self._path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")
            with self._transaction():
                self._create()
                self.secret = self._secret()
        except (OSError, sqlite3.Error) as error:
            raise StateError(
                f"{self._path}: the device's own file cannot be opened ({error}); make its folder writable, free some space"
            ) from error

    def _create(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StateError(f"{self._path}: of schema {version}, this app knows {SCHEMA_VERSION}; upgrade the app")
        for table in (
            "meta (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "people (user TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE)",
            "uploads (training TEXT NOT NULL, phase TEXT NOT NULL, user INTEGER NOT NULL, uploads INTEGER NOT NULL, "
            "epsilon REAL NOT NULL, round INTEGER NOT NULL, at REAL NOT NULL, PRIMARY KEY (training, phase, user))",
        ):
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _secret(self) -> int:
        """The 64-bit secret behind the false items and first vectors, drawn from the operating system once.

        It must outlast every training: fresh false items in each would intersect to the truth. Versions before this file kept it
        in a file of its own, whose content goes on to be it.
        """
        row = self._connection.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
        if row is None:
            old = self.root / "secret"
            drawn = old.read_bytes() if old.is_file() else os.urandom(32)
            self._connection.execute("INSERT INTO meta VALUES ('secret', ?)", (drawn,))
            row = (drawn,)
        return int.from_bytes(row[0][:8], "little")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def numbers(self, users: Sequence[str]) -> NDArray[np.int64]:
        """(users,) a number for each user id, the same for ever; unknown ones get the next free.

        State and false items go by these numbers, so a user that leaves the file or joins it changes nothing for the others.
        """
        try:
            with self._transaction():
                known = dict(self._connection.execute("SELECT user, number FROM people").fetchall())
                fresh = [user for user in dict.fromkeys(users) if user not in known]
                first = max(known.values(), default=-1) + 1
                for number, user in enumerate(fresh, first):
                    self._connection.execute("INSERT INTO people VALUES (?, ?)", (user, number))
                    known[user] = number
        except sqlite3.Error as error:
            raise self._cannot_write(error) from error
        return np.array([known[user] for user in users], np.int64)

    def charge(
        self, training: str, phase: str, server_round: int, users: NDArray[np.int64], epsilon: NDArray[np.float64]
    ) -> None:
        """Write down that each of `users` uploads once more, at its `epsilon` ((users,), infinite where nothing bounds it).

        Call it before the upload leaves: a crash between the two leaves an upload counted that was never sent, never the
        other way round.

        Raises
        ------
        StateError if it cannot be written; then nothing may leave.
        """
        try:
            with self._transaction():
                self._connection.executemany(
                    "INSERT INTO uploads VALUES (?, ?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "uploads = uploads + 1, epsilon = epsilon + excluded.epsilon, round = excluded.round, at = excluded.at",
                    [
                        (training, phase, int(user), float(each), server_round, time.time())
                        for user, each in zip(users, epsilon, strict=True)
                    ],
                )
        except sqlite3.Error as error:
            raise self._cannot_write(error) from error

    def spent(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """(users,) epsilon of all uploads of all trainings, by plain addition."""
        found = dict(self._connection.execute("SELECT user, SUM(epsilon) FROM uploads GROUP BY user").fetchall())
        return np.array([found.get(int(user), 0.0) for user in users], np.float64)

    def _cannot_write(self, error: sqlite3.Error) -> StateError:
        return StateError(
            f"{self._path}: cannot be written ({error}); free some space or make it writable. Nothing was uploaded, and what "
            "was there is still there"
        )

    # ---- for its owner -----------------------------------------------------------------------------------------------

    def trainings(self) -> list[dict[str, Any]]:
        """What each training has cost, oldest first: name, phase, uploads, users, epsilon (largest of a user), last round, when."""
        rows = self._connection.execute(
            "SELECT training, phase, COUNT(*), SUM(uploads), MAX(epsilon), MAX(round), MAX(at) FROM uploads "
            "GROUP BY training, phase ORDER BY MAX(at)"
        ).fetchall()
        names = ("training", "phase", "users", "uploads", "epsilon", "round", "at")
        return [{**dict(zip(names, row, strict=True)), "kept": (self.root / row[0] / row[1]).is_dir()} for row in rows]

    def num_users(self) -> int:
        """Users that this device has ever held."""
        (count,) = self._connection.execute("SELECT COUNT(*) FROM people").fetchone()
        return int(count)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class Allowance:
    """What a device's owner allows its users to spend in their life (`epsilon-limit` in node-config), and the book of it.

    Parameters
    ----------
    device : whose book. training, phase : what is charged for. limit : epsilon of one user over all trainings.
    """

    def __init__(self, device: Device, training: str, phase: str, limit: float = math.inf) -> None:
        self._device = device
        self._training = training
        self._phase = phase
        self._limit = limit

    def allows(self, users: NDArray[np.int64], epsilon: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(users,) who may upload once more at `epsilon` ((users,))."""
        if math.isinf(self._limit):
            return np.ones(len(users), np.bool_)
        allowed: NDArray[np.bool_] = self._device.spent(users) + epsilon <= self._limit * (1 + 1e-9)
        return allowed

    def charge(self, server_round: int, users: NDArray[np.int64], epsilon: NDArray[np.float64]) -> None:
        """See `Device.charge`."""
        self._device.charge(self._training, self._phase, server_round, users, epsilon)


def forget(root: Path, training: str = "") -> list[Path]:
    """Wipe what a device keeps: everything, or one training's vectors and deviations.

    The book of uploads stays when one training is forgotten: they have been sent.

    Returns
    -------
    What was removed.

    Raises
    ------
    StateError if something cannot be removed; naming it.
    """
    if training and Path(training).name != training:
        raise StateError(f"{training!r} is no name of a training; `fastpfrec device show` lists them")
    if not root.is_dir():
        return []
    if training:
        targets = [path for path in (root / training,) if path.is_dir()]
    else:
        targets = [path for path in sorted(root.iterdir()) if _is_ours(path)]
    for path in targets:
        try:
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if file.is_file():
                    _overwrite(file)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise StateError(f"{path}: cannot be removed ({error}); stop the SuperNode and try again") from error
    return targets


def _is_ours(path: Path) -> bool:
    """Whether a device made this: nothing else in the folder is touched."""
    if path.is_file():
        return path.name in ("secret", "model.npz") or path.name.startswith(FILE)
    return path.is_dir() and any(path.rglob("*-of-*.sqlite3*"))


def _overwrite(path: Path) -> None:
    """Zeros over a file's content before it goes; on flash storage and on file systems that copy on write old blocks may remain."""
    with path.open("r+b") as file:
        left = path.stat().st_size
        while left > 0:
            left -= file.write(b"\0" * min(left, 1 << 20))
        file.flush()
        os.fsync(file.fileno())
