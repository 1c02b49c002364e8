"""What a SuperNode draws: once for ever, or anew in each round; on a real device from its own secret."""

import numpy as np
from cohorts import make_node, make_shard, make_table, order
from small_nodes import ITEMS, PARTS, USERS, K, config_of

from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism, NoNoise


def test_false_items_stay_the_same_over_the_rounds(tmp_path):
    """What a sparse upload always touches must not narrow down to the true items."""
    config = config_of(upload="sparse", noise="none", noise_scale=0.0, perturbation_prob=0.5)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS, NoNoise(Clip(0.0, 0.0)))
    always = [set(range(ITEMS)) for _ in range(USERS)]
    for server_round in range(1, 40):
        uploads, _ = node.train(make_table(ITEMS, K), order(server_round, USERS))
        for user in range(USERS):
            always[user] &= set(uploads.rows[uploads.pointer[user] : uploads.pointer[user + 1]].tolist())
    for user in range(USERS):
        own = set(PARTS[0][user].tolist())
        assert own < always[user]
        assert len(always[user]) == len(own) + max(1, len(own) // 2)


def test_nonces_noise_and_negatives_are_fresh_every_round(tmp_path):
    node = make_node(tmp_path / "s.sqlite3", config_of(), make_shard(PARTS, ITEMS), USERS)
    users = np.arange(USERS)
    keys = [
        node._keys(purpose, order(server_round, 1, phase=phase), users)
        for purpose in ("negatives", "nonce", "noise")
        for server_round in (1, 2)
        for phase in ("train", "refit")
    ]
    assert len(np.unique(np.concatenate(keys))) == 12 * USERS


def deployed(tmp_path, name, secret, mechanism):
    shard = make_shard(PARTS, ITEMS)
    state = ClientState(tmp_path / f"{name}.sqlite3", K)
    return Node(config_of(), shard, state, mechanism, USERS, secret, "cpu", 1)


def test_a_real_device_sends_whole_tables_with_fresh_noise(tmp_path):
    mechanism = LaplaceMechanism(Clip(32.0, 0.0), 0.1, True)
    uploads = [deployed(tmp_path, name, 5, mechanism).train(make_table(ITEMS, K), order(1, 3))[0] for name in "ab"]
    for each in uploads:
        assert each.cover_scale == 0
        assert (each.rows == np.tile(np.arange(ITEMS), 3)).all()
        assert each.values.all(axis=1).mean() > 0.99
    assert not np.array_equal(uploads[0].values, uploads[1].values)


def test_a_real_devices_draws_come_from_its_secret_not_from_the_seed(tmp_path):
    mechanism = NoNoise(Clip(0.0, 0.0))
    found = [deployed(tmp_path, str(secret), secret, mechanism) for secret in (5, 6)]
    simulated = make_node(tmp_path / "s.sqlite3", config_of(), make_shard(PARTS, ITEMS), USERS)
    users = np.arange(USERS)
    for purpose in ("negatives", "nonce"):
        keys = [node._keys(purpose, order(1, 3), users) for node in (*found, simulated)]
        assert len(np.unique(np.concatenate(keys))) == 3 * USERS
    graphs = [node._graphs(node._history("train"), users) for node in (*found, simulated)]
    assert not np.array_equal(graphs[0].items, graphs[1].items)
    assert not np.array_equal(graphs[0].items, graphs[2].items)
    vectors = [node._initial_vectors(users) for node in (*found, simulated)]
    assert not np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
