"""Real devices in one process: SuperNodes that know of no partitions, each with a file, a catalogue and a state folder."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.messages import row_bytes
from fastpfrec_flwr.server.errors import RunError
from tests.e2e.shop import ITEMS, NUM_ITEMS, write_catalogue


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_they_train_on_their_own_files(deployed, devices, precision, book_of):
    run = deployed(upload_precision=precision, download_precision=precision)
    facts = run.json("config.json")
    assert (facts["super_nodes"], facts["data"]["users"], facts["data"]["items"]) == (3, 18, NUM_ITEMS)
    assert facts["deployed"]
    assert facts["data"]["report"] == {}
    assert run.summary["clients"]["trained"] == 3 * 18
    assert run.summary["clients"]["refused"] == 0
    assert 0 < run.summary["validation"]["hit_rate_user@20"] <= 1
    assert run.summary["bytes"]["down"] == 3 * NUM_ITEMS * row_bytes(precision, 8), (
        "the table goes to each SuperNode once, not to each user"
    )
    epsilon = run.summary["privacy"]["epsilon_per_upload"]
    for config, users in zip(devices, (12, 5, 1), strict=True):
        rows = book_of(config)
        assert [row[:3] for row in rows] == [(user, 3, 3) for user in range(users)]
        assert all(row[3] == pytest.approx(3 * epsilon) for row in rows)
    assert "round 3/3 of train: 18 clients of 3 SuperNodes, 0 refused" in run.log


def test_they_send_rows_drawn_by_lot(deployed, devices):
    run = deployed(upload="sampled", sampled_share=0.25)
    assert run.summary["clients"]["trained"] == 3 * 18
    assert run.summary["clients"]["refused"] == 0
    rows = round(0.25 * NUM_ITEMS)
    assert run.summary["bytes"]["up"] == 18 * rows * (row_bytes("float32", 8) + 4)
    assert 0 < run.summary["privacy"]["epsilon_per_upload"] < float("inf")


def test_nothing_of_a_persons_data_is_in_what_the_server_keeps(deployed, devices):
    run = deployed()
    kept = "".join(
        path.read_text(errors="replace") for path in run.folder.rglob("*") if path.suffix in (".json", ".jsonl", ".txt")
    )
    assert "person-" not in kept
    for config in devices:
        assert config["data-path"] not in kept
        assert config["state-dir"] not in kept


def test_a_new_run_begins_anew_and_the_book_goes_on(deployed, devices, book_of):
    deployed()
    deployed(num_rounds=2, evaluate_every=0)
    assert [row[1] for row in book_of(devices[2])] == [5]
    trainings = [path for path in Path(devices[2]["state-dir"]).iterdir() if path.is_dir()]
    assert len(trainings) == 2


def test_an_owners_limit_ends_the_uploads_not_the_evaluation(deployed, devices, book_of):
    first = deployed(num_rounds=1, evaluate_every=1)
    devices[2]["epsilon-limit"] = 2.5 * first.summary["privacy"]["epsilon_per_upload"]
    run = deployed(num_rounds=4, evaluate_every=4)
    assert [row[1] for row in book_of(devices[2])] == [2]
    assert run.summary["clients"]["trained"] == 4 * 17 + 1
    assert run.summary["clients"]["skipped"] == 3
    assert 0 < run.summary["validation"]["hit_rate_user@20"] <= 1


def test_a_device_with_another_catalogue_or_none_is_left_out_and_told(deployed, devices, tmp_path):
    write_catalogue(tmp_path / "other.json", ITEMS[::-1])
    devices[1]["catalogue"] = str(tmp_path / "other.json")
    del devices[2]["catalogue"]
    run = deployed()
    assert run.json("config.json")["super_nodes"] == 1
    assert "another catalogue" in run.log
    assert "needs catalogue" in run.log
    assert not (Path(devices[2]["state-dir"])).exists()


def test_a_server_with_the_catalogue_asks_no_device_for_it(deployed, tmp_path):
    """A message is seconds there; without a catalogue of its own the server has to ask one of them."""
    from flwr.clientapp import ClientApp

    class Listening(ClientApp):
        def __call__(self, message, context):
            heard.append(message.metadata.message_type)
            return client_app(message, context)

    tables = []
    for own in ("", str(tmp_path / "catalogue.json")):
        heard = []
        run = deployed(Listening(), catalogue=own, num_rounds=1, evaluate_every=0)
        assert heard.count("query.catalogue") == (0 if own else 1)
        with np.load(run.folder / "item_table.npz") as arrays:
            tables.append(arrays["item_ids"].tolist())
    assert tables == [ITEMS, ITEMS]


def test_a_path_that_the_server_names_is_not_read(deployed, devices):
    for config in devices:
        del config["data-path"]
    with pytest.raises(RunError, match="this SuperNode has no data-path"):
        deployed(data_set="/etc/passwd")


def changing(change, server_round):
    """The ClientApp on devices where something happens before a round."""
    done = []

    def call(message, context):
        order = message.content["order"]
        if message.metadata.message_type == "train" and order["server-round"] == server_round and not done:
            done.append(True)
            change()
        return client_app(message, context)

    return call


def test_a_file_that_changes_between_rounds(deployed, devices, book_of):
    """A user more from round 2 on: the device goes on with both, one a round as it is asked; a new run knows of two."""

    def more():
        file = Path(devices[2]["data-path"])
        file.write_text(file.read_text() + "".join(f"a-newcomer,item-{i},{i}\n" for i in range(8)))

    run = deployed(changing(more, 2), clients_per_round=60, num_rounds=3)
    assert sum(row[1] for row in book_of(devices[2])) == 3
    assert run.summary["clients"]["refused"] == 0
    again = deployed()
    assert again.json("config.json")["data"]["users"] == 19


def test_a_file_that_is_half_written_costs_a_round(deployed, devices):
    file = Path(devices[2]["data-path"])
    whole = file.read_text()
    broken = changing(lambda: file.write_text(whole + "person-200,ite"), 2)

    def mended(message, context):
        order = message.content["order"]
        if message.metadata.message_type == "train" and order["server-round"] == 3:
            file.write_text(whole)
        return broken(message, context)

    run = deployed(mended)
    assert run.summary["clients"]["trained"] == 3 * 17 + 2
    assert "round 2: 1 refused" in run.log
    assert "me.csv" in run.log


def test_a_full_disk_costs_the_round_not_the_state(deployed, devices, monkeypatch, book_of):
    from fastpfrec_flwr.client.device import Device

    charge = Device.charge

    def full(self, training, phase, server_round, users, epsilon):
        if server_round == 2 and len(users) == 1:
            raise self._cannot_write(sqlite3.OperationalError("database or disk is full"))
        charge(self, training, phase, server_round, users, epsilon)

    monkeypatch.setattr(Device, "charge", full)
    run = deployed()
    assert "database or disk is full" in run.log
    assert "free some space" in run.log
    assert [row[:3] for row in book_of(devices[2])] == [(0, 2, 3)]
    assert run.summary["clients"]["trained"] == 2 * 18 + 17


def test_the_server_goes_back_and_the_devices_follow(deployed, devices, book_of):
    """With deviations, which belong to a round exactly: devices resume by themselves, one of them without a copy."""
    changes = {
        "blend_weight": 0.5,
        "checkpoint_every": 2,
        "num_rounds": 4,
        "evaluate_every": 4,
        "server_schedule": "constant",
    }
    first = deployed(**{**changes, "num_rounds": 3, "evaluate_every": 3})
    (state,) = Path(devices[1]["state-dir"]).glob("*/train/*.round-2.sqlite3")
    state.unlink()
    checkpoint = str(first.folder / "checkpoints" / "latest.npz")
    again = deployed(**{**changes, "num_rounds": 3, "evaluate_every": 3}, resume_from=checkpoint)
    assert "going on after round 2" in again.log
    assert again.summary["clients"]["refused"] == 0
    assert [row[1] for row in book_of(devices[0])] == [4] * 12, "three rounds, and one again"


def test_its_figures_are_those_of_no_other_user(deployed, devices):
    """Users of one device never move each other's private vectors."""
    run = deployed()
    (state,) = Path(devices[0]["state-dir"]).glob("*/train/0-of-1.sqlite3")
    with sqlite3.connect(state) as connection:
        vectors = [np.frombuffer(blob, np.float32) for (blob,) in connection.execute("SELECT vector FROM users")]
    assert len(vectors) == 12
    assert len({vector.tobytes() for vector in vectors}) == 12
    assert run.summary["rounds"] == 3
