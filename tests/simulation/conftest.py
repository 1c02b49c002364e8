"""Real devices in one process: SuperNodes that know of no partitions, each with a file, a catalogue and a state folder."""

import sqlite3
from pathlib import Path

import pytest

from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.simulation import grid
from tests.e2e.shop import write_catalogue, write_history

SETTINGS = {
    "data_set": "whatever the server says", "num_trusted_nodes": 1, "embedding_dim": 8, "num_negatives": 16,
    "clients_per_round": 30, "num_rounds": 3, "evaluate_every": 3, "threads": 1,
}  # fmt: skip


@pytest.fixture
def devices(tmp_path):
    """Three devices: 12 users, 5 users, one."""
    write_catalogue(tmp_path / "catalogue.json")
    configs = []
    for number, users in enumerate((12, 5, 1)):
        home = tmp_path / f"device-{number}"
        home.mkdir()
        write_history(home / "me.csv", users, seed=number, begin=100 * number)
        configs.append(
            {
                "data-path": str(home / "me.csv"),
                "catalogue": str(tmp_path / "catalogue.json"),
                "state-dir": str(home / "state"),
            }
        )
    return configs


@pytest.fixture
def deployed(finished, devices, monkeypatch):
    """`deployed(**settings)`: a whole run on the devices."""

    def run(client_app=client_app, **changes):
        class Deployed(grid.InProcessGrid):
            def __init__(self, *arguments, **named):
                super().__init__(*arguments, **named)
                for context, config in zip(self.contexts.values(), devices, strict=True):
                    context.node_config = dict(config)

        with monkeypatch.context() as patch:
            patch.setattr("fastpfrec_flwr.simulation.run.InProcessGrid", Deployed)
            return finished(len(devices), client_app, **{**SETTINGS, **changes})

    return run


@pytest.fixture
def book_of():
    """What a device's book says: (user, uploads, last round, epsilon)."""
    return read_book


def read_book(config):
    with sqlite3.connect(Path(config["state-dir"]) / "device.sqlite3") as book:
        return book.execute("SELECT user, SUM(uploads), MAX(round), SUM(epsilon) FROM uploads GROUP BY user").fetchall()
