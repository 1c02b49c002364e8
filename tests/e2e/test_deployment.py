"""The path of docs/deploy.md with real processes: TLS, keys, three SuperNodes with a file each."""

import json
import sqlite3

import numpy as np
import pytest

from tests.e2e.deployment import federation
from tests.e2e.shop import ITEMS, NUM_ITEMS, write_history
from tests.whole_runs import Finished


@pytest.fixture(scope="module")
def field(tmp_path_factory, warm_kernels):
    """A SuperLink and three SuperNodes: many users, few, one."""
    with federation(tmp_path_factory.mktemp("field")) as found:
        found.start_superlink()
        for name, users, begin in (("alice", 12, 0), ("bob", 5, 100), ("carol", 1, 200)):
            write_history(found.home(name) / "me.csv", users, seed=begin, begin=begin)
            found.start_node(name)
        yield found


def test_three_supernodes_with_tls_and_keys_train_on_their_own_files(field, tmp_path):
    write_history(field.home("mallory") / "me.csv", 3, seed=9)
    stranger = field.start_node("mallory", register=False)
    run = field.run(tmp_path / "out", num_rounds=2, evaluate_every=2, upload_precision="int8")
    summary = run.wait(240)  # some 15 s on an idle machine; other tests run beside this one
    found = Finished(run.output)
    facts = found.json("config.json")
    assert facts["deployed"] is True
    assert facts["super_nodes"] == 3
    assert facts["data"]["users"] == 18
    assert facts["data"]["items"] == NUM_ITEMS
    assert facts["data"]["report"] == {}, "what a device read is its owner's business"
    assert facts["data"]["fingerprint"] == facts["data"]["catalogue"], "no hash of a person's data"
    assert summary["clients"]["trained"] == 36
    assert summary["clients"]["refused"] == 0
    assert summary["privacy"]["randomness"] == "operating system"
    assert 0 < summary["validation"]["hit_rate_user@20"] <= 1
    with np.load(run.output / "item_table.npz") as arrays:
        assert arrays["item_ids"].tolist() == ITEMS, "the catalogue's own order"
    # An unregistered key is turned away: its process ends, and nothing of it is read.
    assert stranger.process is not None
    field.wait_for(lambda: stranger.process.poll() is not None, 20, "the end of the SuperNode with an unknown key")
    assert stranger.process.returncode != 0, stranger.log
    assert not stranger.state.exists()
    for name, users in (("alice", 12), ("bob", 5), ("carol", 1)):
        node = field.nodes[name]
        with sqlite3.connect(node.state / "device.sqlite3") as book:
            assert book.execute("SELECT COUNT(*) FROM people").fetchone() == (users,)
            assert book.execute("SELECT SUM(uploads), MAX(round) FROM uploads").fetchone() == (2 * users, 2)
        assert "Traceback" not in node.log
    recommended = field.fastpfrec(
        "recommend", "--model", str(field.nodes["carol"].state / "model.npz"), "--history", str(field.nodes["carol"].data),
        "--state-dir", str(field.nodes["carol"].state), "--top", "5", "--format", "json",
    )  # fmt: skip
    assert recommended.count("item-") == 5, recommended
    shown = field.fastpfrec("device", "show", "--state-dir", str(field.nodes["carol"].state), "--json")
    assert json.loads(shown)["trainings"][0]["uploads"] == 2
