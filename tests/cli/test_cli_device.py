"""`fastpfrec device`: look at what a device keeps, and wipe it."""

import json

import numpy as np
from typer.testing import CliRunner

from fastpfrec_flwr.cli import app
from fastpfrec_flwr.client.device import Device
from fastpfrec_flwr.client.state import ClientState


def call(*arguments, **named):
    return CliRunner().invoke(app, ["device", *arguments], **named)


def used(root):
    device = Device(root)
    device.numbers(["ann", "bea"])
    device.charge("abc123", "train", 1, np.array([0, 1]), np.array([2.0, np.inf]))
    device.close()
    state = ClientState(root / "abc123" / "train" / "0-of-1.sqlite3", 4)
    state.save(1, np.array([0]), np.ones((1, 4), np.float32))
    state.close()
    return root


def test_show(tmp_path):
    used(tmp_path)
    told = json.loads(call("show", "--state-dir", str(tmp_path), "--json").stdout)
    (training,) = told["trainings"]
    assert told["users"] == 2
    assert (training["training"], training["uploads"], training["round"], training["kept"]) == ("abc123", 2, 1, True)
    assert training["epsilon"] == "infinity"
    printed = call("show", "--state-dir", str(tmp_path))
    assert printed.exit_code == 0
    assert "abc123" in printed.stdout
    assert "ann" not in printed.stdout.replace("training", ""), "no names on the screen"
    nothing = call("show", "--state-dir", str(tmp_path / "nowhere"))
    assert nothing.exit_code == 1
    assert not (tmp_path / "nowhere").exists(), "looking makes nothing"


def test_forget_asks_wipes_and_says_what_stays(tmp_path):
    used(tmp_path)
    refused = call("forget", "--state-dir", str(tmp_path), input="n\n")
    assert refused.exit_code == 1
    assert (tmp_path / "abc123").is_dir()
    done = call("forget", "--state-dir", str(tmp_path), "--yes")
    assert done.exit_code == 0
    assert "What cannot be taken back" in done.stdout
    assert list(tmp_path.iterdir()) == []
    again = call("forget", "--state-dir", str(tmp_path), "--yes")
    assert "nothing of a device is there" in again.stdout


def test_forget_one_training_and_no_path_out_of_the_folder(tmp_path):
    used(tmp_path / "state")
    (tmp_path / "mine").mkdir()
    wrong = call("forget", "--state-dir", str(tmp_path / "state"), "--training", "../mine", "--yes")
    assert wrong.exit_code == 2
    assert "no name of a training" in wrong.stderr
    assert (tmp_path / "mine").is_dir()
    assert call("forget", "--state-dir", str(tmp_path / "state"), "--training", "abc123", "--yes").exit_code == 0
    told = json.loads(call("show", "--state-dir", str(tmp_path / "state"), "--json").stdout)
    assert told["trainings"][0]["kept"] is False
