"""What a device keeps over all trainings: one secret, one number per user, and a book that is never rolled back."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from fastpfrec_flwr.client.device import Allowance, Device, forget
from fastpfrec_flwr.client.state import ClientState, StateError


def charge(device, training, server_round, users, epsilon, phase="train"):
    device.charge(training, phase, server_round, np.array(users), np.full(len(users), epsilon))


def test_the_secret_is_drawn_once_and_for_this_device(tmp_path):
    first = Device(tmp_path / "one")
    assert 0 <= first.secret < 2**64
    first.close()
    assert Device(tmp_path / "one").secret == first.secret
    assert Device(tmp_path / "other").secret != first.secret
    assert (tmp_path / "one" / "device.sqlite3").stat().st_mode & 0o077 == 0


def test_the_secret_file_of_an_older_version_goes_on_to_be_it(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    assert Device(tmp_path).secret == int.from_bytes(bytes(range(8)), "little")


def test_numbers_stay_whatever_the_file_holds(tmp_path):
    device = Device(tmp_path)
    assert device.numbers(["b", "a"]).tolist() == [0, 1]
    device.close()
    device = Device(tmp_path)
    assert device.numbers(["a", "0", "c"]).tolist() == [1, 2, 3]
    assert device.numbers(["c"]).tolist() == [3]
    assert device.numbers([]).tolist() == []
    assert device.num_users() == 4


def test_the_book_adds_up_over_trainings(tmp_path):
    device = Device(tmp_path)
    charge(device, "first", 1, [0, 1], 2.0)
    charge(device, "first", 2, [1], 2.0)
    charge(device, "first", 1, [1], 2.0, "refit")
    charge(device, "second", 1, [1], 0.5)
    assert device.spent(np.array([1, 0, 7])).tolist() == [6.5, 2.0, 0.0]
    assert [(each["training"], each["phase"], each["uploads"], each["epsilon"]) for each in device.trainings()] == [
        ("first", "train", 3, 4.0), ("first", "refit", 1, 2.0), ("second", "train", 1, 0.5),
    ]  # fmt: skip
    charge(device, "third", 1, [0], math.inf)
    assert device.spent(np.array([0]))[0] == math.inf


def test_an_owners_limit_holds_over_trainings(tmp_path):
    device = Device(tmp_path)
    users = np.array([0, 1])
    first = Allowance(device, "first", "train", limit=3.0)
    assert first.allows(users, np.array([1.0, 3.5])).tolist() == [True, False]
    first.charge(1, users[:1], np.array([2.0]))
    second = Allowance(device, "second", "train", limit=3.0)
    assert second.allows(users, np.array([1.5, 1.5])).tolist() == [False, True]
    assert second.allows(users, np.array([1.0, 3.0])).tolist() == [True, True]
    assert Allowance(device, "second", "train").allows(users, np.array([1e9, math.inf])).all()


def test_a_newer_file_is_refused(tmp_path):
    Device(tmp_path).close()
    with sqlite3.connect(tmp_path / "device.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(StateError, match="schema 9, this app knows 1; upgrade the app"):
        Device(tmp_path)


CHARGE_FOR_EVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from fastpfrec_flwr.client.device import Device

    device = Device(Path(sys.argv[1]))
    users = device.numbers([f"user {i}" for i in range(200)])
    server_round = int(sys.argv[2])
    while True:
        device.charge("training", "train", server_round, users, np.ones(200))
        print(server_round, flush=True)
        server_round += 1
"""


def test_kill_at_any_time_charges_a_round_for_everybody_or_nobody(tmp_path):
    begin, device = 1, None
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHARGE_FOR_EVER), str(tmp_path), str(begin)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert int(child.stdout.readline()) == begin
        time.sleep(0.03 + 0.029 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        told = [int(line) for line in child.stdout.read().split("\n") if line.strip()]
        child.wait()
        device = Device(tmp_path)
        spent = device.spent(np.arange(200))
        assert (spent == spent[0]).all()
        assert spent[0] >= max([begin, *told]), "an upload that may have left is not in the book"
        assert device.num_users() == 200
        device.close()
        begin = int(spent[0]) + 1


def test_nothing_is_charged_where_nothing_can_be_written(tmp_path):
    """A full disk, as SQLite sees it."""
    device = Device(tmp_path)
    device.numbers(["a"])
    charge(device, "first", 1, [0], 1.0)
    (pages,) = device._connection.execute("PRAGMA page_count").fetchone()
    device._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateError, match="free some space"):
        charge(device, "x" * 5000, 1, [0], 1.0)
    with pytest.raises(StateError, match="free some space"):
        device.numbers(["y" * 5000])
    assert device.spent(np.array([0])).tolist() == [1.0]
    charge(device, "first", 2, [0], 1.0)
    assert device.spent(np.array([0])).tolist() == [2.0]


def a_used_folder(root):
    device = Device(root)
    device.numbers(["a"])
    charge(device, "0123abcd", 1, [0], 1.0)
    charge(device, "4567abcd", 1, [0], 1.0)
    device.close()
    for training in ("0123abcd", "4567abcd"):
        state = ClientState(root / training / "train" / "0-of-1.sqlite3", 4, durable=True)
        state.save(1, np.array([0]), np.full((1, 4), 7, np.float32))
        state.snapshot(1)
        state.close()
    (root / "of somebody else.txt").write_text("mine")
    (root / "photos").mkdir()
    (root / "photos" / "cat.txt").write_text("cat")


def test_forgetting_wipes_what_is_the_devices_and_nothing_else(tmp_path):
    a_used_folder(tmp_path)
    before = Device(tmp_path)
    removed = forget(tmp_path)
    assert {path.name for path in removed} >= {"0123abcd", "4567abcd", "device.sqlite3"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of somebody else.txt", "photos"]
    assert (tmp_path / "photos" / "cat.txt").read_text() == "cat"
    after = Device(tmp_path)
    assert after.secret != before.secret
    assert after.spent(np.array([0])).tolist() == [0.0]
    assert forget(tmp_path / "nowhere") == []


def test_forgetting_one_training_keeps_the_book(tmp_path):
    a_used_folder(tmp_path)
    assert forget(tmp_path, "0123abcd") == [tmp_path / "0123abcd"]
    assert forget(tmp_path, "0123abcd") == []
    device = Device(tmp_path)
    assert device.spent(np.array([0])).tolist() == [2.0]
    assert [each["kept"] for each in device.trainings()] == [False, True]


def test_wiped_content_is_overwritten(tmp_path, monkeypatch):
    """What the file's blocks hold when it goes are zeros."""
    from fastpfrec_flwr.client import device as module

    a_used_folder(tmp_path)
    seen = []
    real = module.shutil.rmtree
    monkeypatch.setattr(
        module.shutil, "rmtree", lambda path: (seen.extend(f.read_bytes() for f in path.rglob("*.sqlite3")), real(path))
    )
    forget(tmp_path, "0123abcd")
    assert len(seen) == 2
    assert all(content and not any(content) for content in seen)
