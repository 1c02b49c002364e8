"""What stays on the device: whole or not at all, readable by the next process."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.device import Device
from fastpfrec_flwr.client.state import ClientState, StateError
from tests.client.private_vectors import K, filled, nothing


def test_users_without_state_get_the_initial_vectors(tmp_path):
    state = ClientState(tmp_path / "deep" / "er" / "s.sqlite3", K)
    users = np.array([3, 9])
    initial = np.arange(8, dtype=np.float32).reshape(2, K)
    found = state.vectors(users, initial)
    assert (found == initial).all()
    found[:] = 0
    assert initial.any(), "the result must be a copy"
    for deviation in state.deviations(users):
        assert deviation.rows.shape == (0,)
        assert deviation.values.shape == (0, K)
        assert deviation.server_round == 0


@pytest.mark.parametrize("count", [1, 5, 499, 500, 501, 1000, 1001, 2500])
def test_round_trip_over_processes_for_any_number_of_users(tmp_path, count):
    users = np.random.default_rng(1).permutation(5000)[:count].astype(np.int64)
    vectors = np.random.default_rng(2).standard_normal((count, K)).astype(np.float32)
    first = ClientState(tmp_path / "s.sqlite3", K)
    first.save(1, users, vectors)
    first.close()
    second = ClientState(tmp_path / "s.sqlite3", K)
    assert (second.vectors(users, nothing(users)) == vectors).all()
    other = np.setdiff1d(np.arange(6000), users)[:5]
    assert (second.vectors(np.concatenate([other, users[:1]]), nothing(range(6)))[:5] == -1).all()


def test_later_rounds_replace_their_users_only(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    state.save(1, np.array([1, 2]), filled([1, 2], 1))
    state.save(2, np.array([2, 3]), filled([2, 3], 2))
    assert state.vectors(np.array([3, 1, 2, 4]), nothing(range(4)))[:, 0].tolist() == [2, 1, 2, -1]


def test_deviations_round_trip(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.array([4, 7])
    kept = [
        Deviation(np.array([1, 5], np.int32), np.arange(8, dtype=np.float32).reshape(2, K), 3),
        Deviation(np.empty(0, np.int32), np.empty((0, K), np.float32), 3),
    ]
    state.save(3, users, filled(users, 1), kept)
    state.close()
    found = ClientState(tmp_path / "s.sqlite3", K).deviations(np.array([7, 4, 1]))
    for got, expected in zip(found[:2], kept[::-1], strict=True):
        assert (got.rows == expected.rows).all()
        assert (got.values == expected.values).all()
        assert got.server_round == 3
    assert found[2].server_round == 0


@pytest.mark.parametrize("count", [300, 1500])
def test_vectors_come_back_to_their_users_in_whatever_order_they_are_asked_for(tmp_path, count):
    """Both ways to read: by users' numbers, and, for many, all that there is."""
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.arange(0, 3 * count, 3)
    vectors = np.random.default_rng(1).standard_normal((count, K)).astype(np.float32)
    state.save(1, users, vectors)
    asked = np.random.default_rng(2).permutation(3 * count)[: count + 200]
    initial = np.full((len(asked), K), 9.0, np.float32)
    found = state.vectors(asked, initial)
    expected = initial.copy()
    known = asked % 3 == 0
    expected[known] = vectors[asked[known] // 3]
    np.testing.assert_array_equal(found, expected)


def test_what_another_process_has_written_is_seen(tmp_path):
    """Workers of a simulation take turns with a SuperNode: what one keeps in memory ends when another writes."""
    one, other = (ClientState(tmp_path / "s.sqlite3", K) for _ in range(2))
    users = np.array([1, 2, 3])
    one.save(1, users, filled(users, 1))
    assert (one.vectors(users, nothing(users)) == 1).all()
    other.save(2, users[:2], filled(users[:2], 2))
    assert one.vectors(users, nothing(users))[:, 0].tolist() == [2, 2, 1]
    one.save(3, users[1:], filled(users[1:], 3))
    assert other.vectors(users, nothing(users))[:, 0].tolist() == [2, 3, 3]
    assert one.vectors(users[::-1], nothing(users))[:, 0].tolist() == [3, 3, 2]


def test_vectors_beyond_what_stays_in_memory_come_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("fastpfrec_flwr.client.state._MOST_READ", 10)
    state = ClientState(tmp_path / "s.sqlite3", K)
    for first in (0, 6, 12):
        users = np.arange(first, first + 6)
        state.save(1, users, filled(users, first + 1))
    users = np.arange(18)
    for _ in range(2):
        assert state.vectors(users, nothing(users))[:, 0].tolist() == [1.0] * 6 + [7.0] * 6 + [13.0] * 6


def test_a_save_that_fails_leaves_what_was_there(tmp_path):
    """Three users but two deviations, the second of which cannot be written: nothing of the round may stay."""
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.array([1, 2, 3])
    state.save(1, users, filled(users, 1))
    with pytest.raises(ValueError, match=r"vectors must be float32 of shape \(3, 4\), got float32 \(2, 4\)"):
        state.save(2, users, filled(users[:2], 2))
    with pytest.raises(ValueError, match="got float64"):
        state.save(2, users, filled(users, 2).astype(np.float64))
    good = Deviation(np.array([1], np.int32), np.ones((1, K), np.float32), 2)
    with pytest.raises(AttributeError):
        state.save(2, users, filled(users, 2), [good, None, good])  # type: ignore[list-item]
    assert (state.vectors(users, nothing(users)) == 1).all()
    assert all(each.server_round == 0 for each in state.deviations(users))
    state.save(2, users, filled(users, 2))
    assert (state.vectors(users, nothing(users)) == 2).all()


SAVE_FOR_EVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from fastpfrec_flwr.client.deviation import Deviation
    from fastpfrec_flwr.client.state import ClientState

    state = ClientState(Path(sys.argv[1]), 4)
    users = np.arange(300)
    server_round = int(sys.argv[2])
    while True:
        values = np.full((300, 4), server_round, np.float32)
        rows = np.arange(20, dtype=np.int32)
        deviations = [Deviation(rows, np.full((20, 4), server_round, np.float32), server_round)] * 300
        state.save(server_round, users, values, deviations)
        print(server_round, flush=True)
        server_round += 1
"""


def test_kill_at_any_time_leaves_one_round_entirely(tmp_path):
    path, begin = tmp_path / "s.sqlite3", 1
    users = np.arange(300)
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVE_FOR_EVER), str(path), str(begin)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert int(child.stdout.readline()) == begin
        time.sleep(0.05 + 0.037 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        told = [int(line) for line in child.stdout.read().split("\n") if line.strip()]
        child.wait()
        state = ClientState(path, K)
        vectors = state.vectors(users, nothing(users))
        server_round = int(vectors[0, 0])
        assert (vectors == server_round).all()
        assert server_round >= max([begin, *told]), "a round that was reported as saved is gone"
        for deviation in state.deviations(users):
            assert deviation.server_round == server_round
            assert (deviation.values == server_round).all()
        assert state._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        state.close()
        begin = server_round + 1


def test_another_dimension_is_refused(tmp_path):
    users = np.array([1, 2])
    state = ClientState(tmp_path / "s.sqlite3", K)
    state.save(1, users, filled(users, 1))
    state.close()
    other = ClientState(tmp_path / "s.sqlite3", 8)
    with pytest.raises(StateError, match=r"user 1 has a vector of 4 dimensions, not 8"):
        other.vectors(users, np.zeros((2, 8), np.float32))


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "s.sqlite3"
    ClientState(path, K).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateError, match="schema 99"):
        ClientState(path, K)


def test_a_file_that_is_no_state_is_refused(tmp_path):
    path = tmp_path / "s.sqlite3"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(StateError, match="cannot be opened"):
        ClientState(path, K)


def test_a_place_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match="cannot be opened"):
        ClientState(tmp_path / "file" / "s.sqlite3", K)
    with pytest.raises(StateError, match="cannot be opened"):
        Device(tmp_path / "file")


def test_a_read_only_folder_is_refused(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        (folder / "probe").write_text("x")
    except OSError:
        pass
    else:
        folder.chmod(0o700)
        pytest.skip("this user may write everywhere")
    try:
        with pytest.raises(StateError, match="make its folder writable"):
            ClientState(folder / "s.sqlite3", K)
        with pytest.raises(StateError, match="make its folder writable"):
            Device(folder)
    finally:
        folder.chmod(0o700)


def test_a_device_waits_for_the_disk_and_a_simulation_does_not(tmp_path):
    for durable, level in ((True, 2), (False, 1)):
        state = ClientState(tmp_path / f"{durable}.sqlite3", K, durable)
        assert state._connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert state._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
