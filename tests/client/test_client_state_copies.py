"""Copies of what a device keeps: made for checkpoints, restored, gone back to."""

import os
import sqlite3

import numpy as np
import pytest

from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.state import SNAPSHOTS_KEPT, ClientState, StateError
from tests.client.private_vectors import K, filled, nothing


def test_snapshot_and_restore(tmp_path):
    state = ClientState(tmp_path / "0-of-1.sqlite3", K)
    users = np.array([1, 2])
    for server_round in range(1, 6):
        kept = [Deviation(np.array([1], np.int32), filled([1], server_round), server_round)] * 2
        state.save(server_round, users, filled(users, server_round), kept)
        state.snapshot(server_round)
    state.save(6, np.array([1, 2, 3]), filled(range(3), 6))
    assert len(list(tmp_path.glob("*.round-*"))) == SNAPSHOTS_KEPT
    state.restore(4)
    assert state.vectors(np.array([1, 2, 3]), nothing(range(3)))[:, 0].tolist() == [4, 4, -1]
    assert state.deviations(users)[0].server_round == 4
    state.save(5, users, filled(users, 50))
    state.close()
    again = ClientState(tmp_path / "0-of-1.sqlite3", K)
    assert (again.vectors(users, nothing(users)) == 50).all()
    again.restore(4)
    assert (again.vectors(users, nothing(users)) == 4).all(), "a copy must survive being restored"
    with pytest.raises(StateError, match=r"no copy of the state after round 1"):
        again.restore(1)
    assert (again.vectors(users, nothing(users)) == 4).all()


@pytest.mark.parametrize("page_bytes", [None, 4096])
def test_new_files_have_small_pages_and_older_ones_go_on_with_theirs(tmp_path, page_bytes):
    path, users = tmp_path / "0-of-1.sqlite3", np.array([1, 2])
    if page_bytes:  # a file of a version before
        older = sqlite3.connect(path)
        older.executescript(f"PRAGMA page_size = {page_bytes}; PRAGMA journal_mode = WAL; CREATE TABLE old (a)")
        older.close()
    state = ClientState(path, K)
    state.save(1, users, filled(users, 1))
    state.snapshot(1)
    state.save(2, users, filled(users, 2))
    state.close()
    again = ClientState(path, K)
    again.restore(1)
    assert (again.vectors(users, nothing(users)) == 1).all()
    for file in (path, *tmp_path.glob("*.round-1*")):
        (found,) = sqlite3.connect(file).execute("PRAGMA page_size").fetchone()
        assert found == (page_bytes or 1024)


@pytest.mark.parametrize(("own", "theirs"), [(1024, 4096), (4096, 1024)])
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_copy_with_pages_of_another_size_is_restored(tmp_path, own, theirs, journal):
    """A device that upgrades the app, or goes back, between a copy and its restore."""
    users = np.array([1, 2])
    for name, page_bytes, mode in (("a", own, "WAL"), ("b", theirs, journal)):
        raw = sqlite3.connect(tmp_path / f"{name}.sqlite3")
        raw.executescript(f"PRAGMA page_size = {page_bytes}; PRAGMA journal_mode = WAL; CREATE TABLE old (a)")
        raw.close()
        state = ClientState(tmp_path / f"{name}.sqlite3", K)
        state.save(1, users, filled(users, 1 if name == "b" else 7))
        state.close()
        raw = sqlite3.connect(tmp_path / f"{name}.sqlite3")
        raw.execute(f"PRAGMA journal_mode = {mode}")
        raw.close()
    os.replace(tmp_path / "b.sqlite3", tmp_path / "a.round-1.sqlite3")
    state = ClientState(tmp_path / "a.sqlite3", K)
    state.restore(1)
    assert (state.vectors(users, nothing(users)) == 1).all()
    state.save(2, users, filled(users, 2))
    state.close()
    assert (ClientState(tmp_path / "a.sqlite3", K).vectors(users, nothing(users)) == 2).all()
    assert sqlite3.connect(tmp_path / "a.sqlite3").execute("PRAGMA page_size").fetchone() == (own,)
    assert not list(tmp_path.glob("*.tmp"))


def test_snapshots_of_other_partitions_are_left_alone(tmp_path):
    one, ten = ClientState(tmp_path / "1-of-20.sqlite3", K), ClientState(tmp_path / "11-of-20.sqlite3", K)
    ten.snapshot(1)
    for server_round in range(1, 8):
        one.snapshot(server_round)
    ten.restore(1)


def test_a_repeated_snapshot_replaces_the_first(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.array([1])
    for value in (1, 2):
        state.save(1, users, filled(users, value))
        state.snapshot(1)
    state.save(2, users, filled(users, 9))
    state.restore(1)
    assert (state.vectors(users, nothing(users)) == 2).all()


def test_a_device_goes_back_to_its_copy_and_keeps_what_it_has_spent(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K, durable=True)
    users = np.array([1, 2])
    for server_round in (1, 2, 3):
        state.save(server_round, users, filled(users, server_round), None, np.full(2, 1.5 * server_round))
        if server_round < 3:
            state.snapshot(server_round)
    assert state.last_round() == 3
    state.go_back(2)
    assert (state.vectors(users, nothing(users)) == 2).all()
    assert state.spent(users).tolist() == [4.5, 4.5]
    assert state.last_round() == 2


def test_a_device_without_the_copy_keeps_its_vectors_and_drops_deviations(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.array([1])
    kept = [Deviation(np.array([3], np.int32), np.ones((1, K), np.float32), 5)]
    state.save(5, users, filled(users, 5), kept)
    state.go_back(9)
    assert state.deviations(users)[0].server_round == 5, "older than round 9: nothing to go back on"
    state.go_back(4)
    assert (state.vectors(users, nothing(users)) == 5).all()
    assert len(state.deviations(users)[0].rows) == 0
    assert state.last_round() == 4
    state.go_back(4)
    assert ClientState(tmp_path / "fresh.sqlite3", K).last_round() == 0


def test_a_copy_that_finds_no_room_leaves_nothing_behind(tmp_path, monkeypatch):
    state = ClientState(tmp_path / "s.sqlite3", K)
    state.save(1, np.array([1]), filled([1], 1))

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StateError, match=r"no copy of the state can be kept.*free some space"):
        state.snapshot(1)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.tmp"))
    state.snapshot(1)
    state.save(2, np.array([1]), filled([1], 2))
    state.go_back(1)
    assert state.vectors(np.array([1]), nothing([1]))[0, 0] == 1
