"""A privacy budget on the device: what is spent stays known, and whose next upload would exceed it does not train."""

import sqlite3

import numpy as np
import pytest
from cohorts import make_node, make_parts, make_shard, make_table, order, run_config

from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import SCHEMA_VERSION, ClientState
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism
from fastpfrec_flwr.privacy.upload_costs import upload_epsilons

USERS, ITEMS, K = 6, 40, 4
PARTS = make_parts(USERS, ITEMS)
ALL = np.arange(USERS)


def config_of(uploads, **changes):
    """A configuration whose budget is enough for so many uploads, and their epsilon."""
    changes = {"embedding_dim": K, "num_negatives": 4, "num_trusted_nodes": 1, **changes}
    each, _ = upload_epsilons(run_config(**changes), ITEMS)
    return run_config(**changes, epsilon_budget=uploads * each), each


def trained_and_skipped(node, rounds, clients=USERS, phase="train"):
    found = []
    for server_round in rounds:
        uploads, report = node.train(make_table(ITEMS, K, server_round), order(server_round, clients, phase=phase))
        found.append((len(uploads.nonces), report.skipped))
    return found


def test_a_user_trains_until_its_budget_is_used_up(tmp_path):
    config, each = config_of(3)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    assert trained_and_skipped(node, range(1, 4)) == [(USERS, 0)] * 3
    np.testing.assert_allclose(node.state.spent(ALL), 3 * each)
    before = node.state.vectors(ALL, node._initial_vectors(ALL))
    assert trained_and_skipped(node, range(4, 6)) == [(0, USERS)] * 2
    assert (node.state.vectors(ALL, node._initial_vectors(ALL)) == before).all()
    np.testing.assert_allclose(node.state.spent(ALL), 3 * each)


def test_every_user_has_its_own_budget(tmp_path):
    config, each = config_of(2)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    counts = np.zeros(USERS, int)
    for server_round in range(1, 12):
        drawn = node.shard.users[node._positions(order(server_round, 4))]
        able = counts[drawn] < 2
        uploads, report = node.train(make_table(ITEMS, K), order(server_round, 4))
        assert (len(uploads.nonces), report.skipped) == (able.sum(), (~able).sum())
        counts[drawn[able]] += 1
        np.testing.assert_allclose(node.state.spent(ALL), counts * each)
    assert (counts == 2).all()


def test_just_below_is_not_enough(tmp_path):
    config, _ = config_of(1.999)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    assert trained_and_skipped(node, (1, 2)) == [(USERS, 0), (0, USERS)]


def test_a_refit_gets_half(tmp_path):
    config, _ = config_of(4, refit=True)
    for phase in ("train", "refit"):
        node = make_node(tmp_path / f"{phase}.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
        assert trained_and_skipped(node, (1, 2, 3), phase=phase) == [(USERS, 0), (USERS, 0), (0, USERS)]


def test_counts_are_paid_in_the_first_round_alone(tmp_path):
    changes = {"embedding_dim": K, "num_negatives": 4, "num_trusted_nodes": 1, "popularity_weight": 0.1}
    each, first = upload_epsilons(run_config(**changes), ITEMS)
    assert first > 0
    config = run_config(**changes, epsilon_budget=first + 2 * each)
    mechanism = LaplaceMechanism(Clip(config.row_clip, config.clip_norm, counted=True), 0.1, True)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS, mechanism)
    assert trained_and_skipped(node, (1, 2, 3)) == [(USERS, 0), (USERS, 0), (0, USERS)]
    np.testing.assert_allclose(node.state.spent(ALL), first + 2 * each)


def test_without_a_budget_nothing_is_counted(tmp_path):
    config = run_config(embedding_dim=K, num_negatives=4, num_trusted_nodes=1)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    assert trained_and_skipped(node, range(1, 4)) == [(USERS, 0)] * 3
    assert (node.state.spent(ALL) == 0).all()


@pytest.mark.parametrize("secret", [None, 5])
def test_a_resume_takes_uploads_back_only_where_they_repeat(tmp_path, secret):
    """A simulation sends the very same bits again; a real device has sent something and sends something else."""
    config, each = config_of(4)
    state = ClientState(tmp_path / "s.sqlite3", K)
    mechanism = LaplaceMechanism(Clip(config.row_clip, config.clip_norm), 0.1, True)
    node = Node(config, make_shard(PARTS, ITEMS), state, mechanism, USERS, secret, "cpu", 1)
    node.train(make_table(ITEMS, K), order(1, USERS, snapshot=True))
    node.train(make_table(ITEMS, K), order(2, USERS))
    node.train(make_table(ITEMS, K), order(3, USERS))
    node.train(make_table(ITEMS, K), order(2, USERS, restore=1))
    np.testing.assert_allclose(state.spent(ALL), (2 if secret is None else 4) * each)
    skipped = node.train(make_table(ITEMS, K), order(3, USERS))[1].skipped
    assert skipped == (0 if secret is None else USERS)


# ---- the file --------------------------------------------------------------------------------------------------------


def make_first_schema(path):
    """A file as the first schema wrote it."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (user INTEGER PRIMARY KEY, round INTEGER NOT NULL, vector BLOB NOT NULL)")
    connection.execute(
        "CREATE TABLE deviations "
        "(user INTEGER PRIMARY KEY, round INTEGER NOT NULL, rows BLOB NOT NULL, deltas BLOB NOT NULL)"
    )
    connection.execute("INSERT INTO users VALUES (2, 7, ?)", (np.full(K, 1.5, np.float32).tobytes(),))
    rows, deltas = np.array([3], np.int32), np.full((1, K), 0.5, np.float32)
    connection.execute("INSERT INTO deviations VALUES (2, 7, ?, ?)", (rows.tobytes(), deltas.tobytes()))
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()


def check_migrated(state):
    users = np.array([1, 2])
    assert state.vectors(users, np.zeros((2, K), np.float32))[:, 0].tolist() == [0, 1.5]
    found = state.deviations(users)
    assert (found[1].server_round, found[1].rows.tolist(), found[1].values[0, 0]) == (7, [3], 0.5)
    assert state.spent(users).tolist() == [0, 0]
    assert state._connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    state.save(8, users, np.ones((2, K), np.float32), spent=np.array([0.25, 3.0]))
    assert state.spent(np.array([2, 1, 9])).tolist() == [3.0, 0.25, 0]


def test_a_file_of_the_first_schema_is_taken_over(tmp_path):
    path = tmp_path / "s.sqlite3"
    make_first_schema(path)
    state = ClientState(path, K)
    check_migrated(state)
    state.close()
    again = ClientState(path, K)
    assert again.spent(np.array([1, 2])).tolist() == [0.25, 3.0]


def test_a_copy_of_the_first_schema_is_restored(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    make_first_schema(tmp_path / "s.round-7.sqlite3")
    state.restore(7)
    check_migrated(state)
    state.save(9, np.array([4]), np.ones((1, K), np.float32), spent=np.array([2.0]))
    state.restore(7, keep_spent=True)
    assert state.spent(np.array([1, 2, 4])).tolist() == [0.25, 3.0, 2.0]


def test_spent_and_vectors_are_saved_together_or_not_at_all(tmp_path):
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.array([1, 2])
    state.save(1, users, np.ones((2, K), np.float32), spent=np.array([1.0, 1.0]))
    kept = [Deviation(np.array([1], np.int32), np.ones((1, K), np.float32), 2)] * 2
    with pytest.raises(ValueError, match="zip"):
        state.save(2, users, np.zeros((2, K), np.float32), kept, np.array([2.0]))
    assert state.spent(users).tolist() == [1, 1]
    assert (state.vectors(users, np.zeros((2, K), np.float32)) == 1).all()
    assert state.deviations(users)[0].server_round == 0


@pytest.mark.parametrize("count", [1, 500, 501, 1200])
def test_spent_of_any_number_of_users(tmp_path, count):
    state = ClientState(tmp_path / "s.sqlite3", K)
    users = np.random.default_rng(1).permutation(5000)[:count].astype(np.int64)
    state.save(1, users, np.ones((count, K), np.float32), spent=users / 7)
    assert (state.spent(users[::-1]) == users[::-1] / 7).all()
