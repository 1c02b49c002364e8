"""What stays on the device between the rounds of one training: private vectors, deviations and spent privacy.

One SQLite file for the users of a SuperNode. A save is one transaction: a crash leaves the state before it or after it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.deviation import Deviation, no_deviation
from fastpfrec_flwr.foreseen import Foreseen

# 1: users and deviations. 2: what each user has spent of its privacy; an older file gets the table when it is opened.
SCHEMA_VERSION = 2
# Copies kept for checkpoints: the newest may belong to a checkpoint that the server did not live to write.
SNAPSHOTS_KEPT = 2
_MAX_PARAMETERS = 500
# A round writes its users' pages, a few among thousands: pages of some rows each are half as long to write as SQLite's own 4,096.
_PAGE_BYTES = 1024
# Private vectors that stay in memory once read or written: 20 MB at k = 64.
_MOST_READ = 50_000


class StateError(Foreseen, RuntimeError):
    """State that cannot be read or written; it costs the round, never the state."""


class ClientState:
    """State of one SuperNode's users in one training.

    Parameters
    ----------
    path : the SQLite file; made if missing. embedding_dim : k.
    durable : whether each save waits until it is on the disk. A real device does: after a power cut it must not believe that it
        has spent less than has left it. A simulation only guards against killed processes, which the log of writes does alone.
    """

    def __init__(self, path: Path, embedding_dim: int, durable: bool = False) -> None:
        self._path = path
        self._k = embedding_dim
        self._read: dict[int, bytes] = {}  # vectors as they stand in the file
        self._version = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = not path.exists()
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            if fresh:  # an older file keeps its own
                self._connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            # A round writes a page per user: folding the log back after every few hundred of them would cost as much again.
            self._connection.execute("PRAGMA wal_autocheckpoint = 8000")
            with self._transaction():
                self._create()
        except (OSError, sqlite3.Error) as error:
            raise StateError(
                f"{path}: the device's state cannot be opened ({error}); make its folder writable"
            ) from error

    def _create(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StateError(
                f"{self._path}: state of schema {version}, this app knows {SCHEMA_VERSION}; upgrade the app"
            )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS users (user INTEGER PRIMARY KEY, round INTEGER NOT NULL, vector BLOB NOT NULL)"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS deviations "
            "(user INTEGER PRIMARY KEY, round INTEGER NOT NULL, rows BLOB NOT NULL, deltas BLOB NOT NULL)"
        )
        self._connection.execute("CREATE TABLE IF NOT EXISTS budgets (user INTEGER PRIMARY KEY, epsilon REAL NOT NULL)")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def vectors(self, users: NDArray[np.int64], initial: NDArray[np.float32]) -> NDArray[np.float32]:
        """Private vectors of `users`, those of `initial` ((users, k)) where a user has not trained yet.

        Returns
        -------
        (users, k) float32, a copy.
        """
        found = initial.copy()
        self._forget_if_others_wrote()
        unread = np.array([user for user in users.tolist() if user not in self._read], np.int64)
        if len(unread) > 2 * _MAX_PARAMETERS:
            rows = self._connection.execute("SELECT user, vector FROM users").fetchall()
        else:
            rows = list(self._of(unread, "SELECT user, vector FROM users WHERE user IN"))
        for user, vector in rows:
            if len(vector) != 4 * self._k:
                raise StateError(
                    f"{self._path}: user {user} has a vector of {len(vector) // 4} dimensions, not {self._k}"
                )
        fresh = dict(rows)
        stored = [self._read.get(user) or fresh.get(user) for user in users.tolist()]
        there = np.array([vector is not None for vector in stored], np.bool_)
        known = b"".join([vector for vector in stored if vector is not None])
        found[there] = np.frombuffer(known, np.float32).reshape(-1, self._k)
        self._remember(fresh)
        return found

    def _remember(self, vectors: dict[int, bytes]) -> None:
        if len(self._read) + len(vectors) > _MOST_READ:
            self._read.clear()
        if len(vectors) <= _MOST_READ:
            self._read |= vectors

    def _forget_if_others_wrote(self) -> None:
        # SQLite's number changes when another connection has written, and only then.
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._read.clear()
            self._version = version

    def known(self, users: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(users,) whether a user has trained before."""
        found = {user for (user,) in self._of(users, "SELECT user FROM users WHERE user IN")}
        return np.array([int(user) in found for user in users], np.bool_)

    def _of(self, users: NDArray[np.int64], select: str) -> Iterator[tuple[Any, ...]]:
        for first in range(0, len(users), _MAX_PARAMETERS):
            part = users[first : first + _MAX_PARAMETERS].tolist()
            yield from self._connection.execute(f"{select} ({','.join('?' * len(part))})", part)

    def deviations(self, users: NDArray[np.int64]) -> list[Deviation]:
        """D_i of each user as last kept; none where a user has not trained yet."""
        found = []
        for user in users:
            row = self._connection.execute(
                "SELECT round, rows, deltas FROM deviations WHERE user = ?", (int(user),)
            ).fetchone()
            if row is None:
                found.append(no_deviation(self._k))
            else:
                deltas = np.frombuffer(row[2], np.float32).reshape(-1, self._k)
                found.append(Deviation(np.frombuffer(row[1], np.int32), deltas, row[0]))
        return found

    def spent(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """(users,) epsilon that each user's uploads have cost so far."""
        found = dict(self._of(users, "SELECT user, epsilon FROM budgets WHERE user IN"))
        return np.array([found.get(int(user), 0.0) for user in users], np.float64)

    def save(
        self,
        server_round: int,
        users: NDArray[np.int64],
        vectors: NDArray[np.float32],
        deviations: list[Deviation] | None = None,
        spent: NDArray[np.float64] | None = None,
    ) -> None:
        """Keep what `users` have after `server_round`, all of it or nothing.

        Parameters
        ----------
        vectors : (users, k) float32. spent : (users,) epsilon of each user's uploads with this one; None where nobody counts.
        """
        if vectors.dtype != np.float32 or vectors.shape != (len(users), self._k):
            raise ValueError(
                f"vectors must be float32 of shape {(len(users), self._k)}, got {vectors.dtype} {vectors.shape}"
            )
        written = vectors.tobytes()
        try:
            with self._transaction():
                # One statement for all rows: SQLite then works without the interpreter's lock, which others wait for.
                self._connection.execute(
                    "INSERT OR REPLACE INTO users SELECT value, ?1, substr(?2, 1 + ?3 * key, ?3) FROM json_each(?4)",
                    (server_round, written, 4 * self._k, json.dumps(users.tolist())),
                )
                for user, deviation in zip(users, deviations or [], strict=False):
                    self._connection.execute(
                        "INSERT OR REPLACE INTO deviations VALUES (?, ?, ?, ?)",
                        (int(user), deviation.server_round, deviation.rows.tobytes(), deviation.values.tobytes()),
                    )
                if spent is not None:
                    self._connection.executemany(
                        "INSERT OR REPLACE INTO budgets VALUES (?, ?)",
                        ((int(user), float(epsilon)) for user, epsilon in zip(users, spent, strict=True)),
                    )
        except sqlite3.Error as error:
            raise StateError(
                f"{self._path}: the device's state cannot be saved ({error}); free some space. The state before the "
                f"round is still there"
            ) from error
        size = 4 * self._k
        self._remember({user: written[i * size : (i + 1) * size] for i, user in enumerate(users.tolist())})

    def _snapshot_path(self, server_round: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.round-{server_round}{self._path.suffix}")

    def snapshot(self, server_round: int) -> None:
        """Keep a copy of the state as it is after `server_round`, for a resume from the server's checkpoint."""
        target = self._snapshot_path(server_round)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            self._connection.execute("VACUUM INTO ?", (str(temporary),))
            os.replace(temporary, target)
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"{target}: no copy of the state can be kept ({error}); free some space") from error
        finally:
            temporary.unlink(missing_ok=True)
        for old in self._snapshots()[:-SNAPSHOTS_KEPT]:
            self._snapshot_path(old).unlink(missing_ok=True)

    def _snapshots(self) -> list[int]:
        pattern = f"{self._path.stem}.round-*{self._path.suffix}"
        return sorted(int(path.stem.rsplit("-", 1)[1]) for path in self._path.parent.glob(pattern))

    def restore(self, server_round: int, keep_spent: bool = False) -> None:
        """Go back to the copy of `server_round`.

        Parameters
        ----------
        keep_spent : leave the spent epsilon as it is: uploads that have left cannot be taken back. A simulation repeats the very
            same uploads, which costs nothing again.

        Raises
        ------
        StateError if there is none.
        """
        source = self._snapshot_path(server_round)
        if not source.is_file():
            raise StateError(f"{source}: no copy of the state after round {server_round} on this device")
        kept = self._connection.execute("SELECT user, epsilon FROM budgets").fetchall() if keep_spent else []
        self._read.clear()
        try:
            with closing(sqlite3.connect(source)) as copy:
                self._take(copy)
            with self._transaction():
                self._create()  # the copy may be older than the table of budgets
                self._connection.executemany("INSERT OR REPLACE INTO budgets VALUES (?, ?)", kept)
        except sqlite3.Error as error:
            raise StateError(f"{source}: this copy of the state cannot be read ({error})") from error
        # What was kept after that round belongs to a course that is being left.
        for later in self._snapshots():
            if later > server_round:
                self._snapshot_path(later).unlink(missing_ok=True)

    def _take(self, copy: sqlite3.Connection) -> None:
        """Take over all that another file holds. SQLite copies pages, so they must have one size; an older version's do not."""
        (own,), (theirs,) = (each.execute("PRAGMA page_size").fetchone() for each in (self._connection, copy))
        if own == theirs:
            copy.backup(self._connection)
            return
        repaged = self._path.with_name(f"{self._path.stem}.{os.getpid()}.tmp")
        repaged.unlink(missing_ok=True)
        try:
            copy.execute(f"PRAGMA page_size = {own}")
            copy.execute("VACUUM INTO ?", (str(repaged),))
            with closing(sqlite3.connect(repaged)) as same:
                same.backup(self._connection)
        finally:
            repaged.unlink(missing_ok=True)

    def last_round(self) -> int:
        """The last round in which anybody trained; 0 before the first."""
        (last,) = self._connection.execute("SELECT COALESCE(MAX(round), 0) FROM users").fetchone()
        return int(last)

    def go_back(self, server_round: int) -> None:
        """Go back to `server_round` as well as a real device can: it may have missed the round of the copy, or joined later.

        With a copy as in `restore`. Without one, state that is not newer stays; of newer state the private vectors stay, which
        suit a table of a few rounds earlier well enough, and the deviations go, which belong to one round exactly. What was spent
        stays spent.
        """
        if self._snapshot_path(server_round).is_file():
            self.restore(server_round, keep_spent=True)
        elif self.last_round() > server_round:
            with self._transaction():
                self._connection.execute("DELETE FROM deviations")
                self._connection.execute("UPDATE users SET round = ?", (server_round,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
