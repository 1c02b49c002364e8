"""A SuperNode's round: isolation of users, independence of the number of SuperNodes, state."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import make_node, make_shard, make_table, order
from small_nodes import ITEMS, PARTS, USERS, K, config_of

from fastpfrec_flwr.client.participation import round_users
from fastpfrec_flwr.client.state import StateError
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism, Mechanism
from fastpfrec_flwr.privacy.sampled_rows import SampledRows

CONFIGS = {
    "default": {},
    "sparse": {"upload": "sparse"},
    "sampled": {"upload": "sampled"},
    "per-positive": {"negatives": "per-positive"},
    "adam": {"local_optimizer": "adam"},
    "ccl": {"loss": "ccl", "unit_rows": True},
    "bernoulli": {"perturbation": "bernoulli"},
    "response": {"perturbation": "randomised-response"},
    "blend": {"blend_weight": 0.5},
}


def segments(uploads):
    """Multiset of the uploads, as bytes."""
    return sorted(
        (int(nonce), uploads.rows[start:stop].tobytes(), uploads.values[start:stop].tobytes())
        for nonce, start, stop in zip(uploads.nonces, uploads.pointer[:-1], uploads.pointer[1:], strict=True)
    )


def run(tmp_path, config, num_partitions, rounds=3, poison=None, phase="train", threads=1):
    """All uploads of some rounds, and the private vectors afterwards, over this many SuperNodes."""
    found, vectors = [], {}
    for partition in range(num_partitions):
        shard = make_shard(PARTS, ITEMS, partition, num_partitions, poison)
        mechanism: Mechanism = LaplaceMechanism(Clip(32.0, 0.0), 0.1, config.upload == "dense", threads)
        if config.upload == "sampled":
            mechanism = SampledRows(mechanism, 0.3, threads)
        path = tmp_path / f"{num_partitions}-{poison}-{phase}-{threads}" / f"{partition}.sqlite3"
        node = make_node(path, config, shard, USERS, mechanism, threads=threads)
        for server_round in range(1, rounds + 1):
            uploads, _ = node.train(make_table(ITEMS, K, server_round), order(server_round, 12, phase=phase))
            found += [(server_round, *each) for each in segments(uploads)]
        private = node.state.vectors(shard.users, node._initial_vectors(shard.users))
        vectors |= {int(user): vector.tobytes() for user, vector in zip(shard.users, private, strict=True)}
        node.state.close()
    return sorted(found), vectors


@pytest.mark.parametrize("name", ["default", "sparse", "ccl", "bernoulli"])
def test_uploads_do_not_depend_on_the_number_of_supernodes(tmp_path, name):
    """The same multiset of (nonce, rows, values), bit for bit, and the same private vectors."""
    config = config_of(**CONFIGS[name])
    one = run(tmp_path, config, 1)
    assert len(one[0]) == 3 * 12
    for num_partitions in (2, 5):
        assert run(tmp_path, config, num_partitions) == one
    assert run(tmp_path, config, 1, threads=2) == one


@pytest.mark.parametrize("name", ["per-positive", "adam", "blend"])
def test_autograd_uploads_do_not_depend_on_the_number_of_supernodes(tmp_path, name):
    """Rows and nonces bit for bit; values to what the order of float sums allows, then rounded to the grid."""
    config = config_of(**CONFIGS[name])
    one, _ = run(tmp_path, config, 1)
    other, _ = run(tmp_path, config, 5)
    assert [each[:3] for each in one] == [each[:3] for each in other]
    for (*_, values), (*_, expected) in zip(other, one, strict=True):
        np.testing.assert_allclose(np.frombuffer(values, np.float32), np.frombuffer(expected, np.float32), atol=1e-4)


def test_more_supernodes_than_users(tmp_path):
    """SuperNodes without users, or whose users all rest, answer with nothing."""
    config = config_of()
    assert run(tmp_path, config, 40, rounds=2) == run(tmp_path, config, 1, rounds=2)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_supernode_without_users_this_round(tmp_path, name):
    config = config_of(**CONFIGS[name])
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS, 35, 40), USERS)
    uploads, report = node.train(make_table(ITEMS, K), order(1, 12, report_loss=True))
    assert uploads.values.shape == (0, K)
    assert len(uploads.nonces) == 0
    assert (report.skipped, report.loss_sum, report.positives) == (0, 0, 0)


@pytest.mark.parametrize("phase", ["train", "refit"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("poison", [(-(2**31),), (2**31 - 1, -1, 0, 7)], ids=["lowest", "mixed"])
def test_nobody_elses_rows_reach_an_upload(tmp_path, name, poison, phase):
    """Other users' rows hold ids that no table has, and ids of real items: uploads stay the same, bit for bit."""
    config = config_of(**CONFIGS[name])
    clean = run(tmp_path, config, 5, rounds=2, phase=phase)
    assert run(tmp_path, config, 5, rounds=2, poison=poison, phase=phase) == clean


def test_upload_depends_on_the_users_own_rows_only(tmp_path):
    """Changing one user's items changes that user's upload and no other one."""
    config = config_of()
    changed = [list(part) for part in PARTS]
    changed[0][4] = np.setdiff1d(np.arange(ITEMS), PARTS[0][4])[:9]
    found = []
    for name, parts in (("a", PARTS), ("b", changed)):
        node = make_node(tmp_path / f"{name}.sqlite3", config, make_shard(parts, ITEMS), USERS)
        found.append(node.train(make_table(ITEMS, K), order(1, USERS))[0])
    assert (found[0].nonces == found[1].nonces).all()
    differ = {
        user
        for user, (one, other) in enumerate(zip(*([u.pointer for u in found]), strict=True))
        if user < USERS
        and found[0].values[one : found[0].pointer[user + 1]].tobytes()
        != found[1].values[other : found[1].pointer[user + 1]].tobytes()
    }
    assert differ == {4}


def test_the_union_of_a_round_is_the_servers_number(tmp_path):
    config = config_of()
    expected = round_users(config.seed, "train", 1, 12, USERS)
    taken = []
    for partition in range(4):
        shard = make_shard(PARTS, ITEMS, partition, 4)
        node = make_node(tmp_path / f"{partition}.sqlite3", config, shard, USERS)
        taken.append(shard.users[node._positions(order(1, 12))])
    assert sorted(np.concatenate(taken).tolist()) == expected.tolist()


def test_users_that_cannot_train_are_left_out_and_counted(tmp_path):
    train = [np.array([1, 2]), np.array([], int), np.arange(10), np.array([3])]
    none = [np.array([], int)] * 4
    config = config_of(num_trusted_nodes=1)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard((train, none, none), 10), 4)
    uploads, report = node.train(make_table(10, K), order(1, 4))
    assert len(uploads.nonces) == 2
    assert report.skipped == 2
    initial = node._initial_vectors(np.arange(4))
    moved = (node.state.vectors(np.arange(4), initial) != initial).any(axis=1)
    assert moved.tolist() == [True, False, False, True]


def test_private_vectors_move_on_and_others_rest(tmp_path):
    config = config_of()
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    users = np.arange(USERS)
    initial = node._initial_vectors(users)
    assert abs(initial.std() - config.init_scale) < 0.01
    node.train(make_table(ITEMS, K), order(1, 12))
    after = node.state.vectors(users, initial)
    drawn = round_users(config.seed, "train", 1, 12, USERS)
    assert np.flatnonzero((after != initial).any(axis=1)).tolist() == drawn.tolist()


@pytest.mark.parametrize("counted", [False, True])
def test_with_randomised_response_nothing_but_the_drawn_star_reaches_an_upload(tmp_path, counted):
    """Two users whose stars come out the same send the same, whatever their true items are; a refit draws anew."""
    config = config_of(perturbation="randomised-response", popularity_weight=0.1 if counted else 0.0)
    node = make_node(tmp_path / "a.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    drawn = node._graphs(node._history("train"), np.arange(USERS))
    stars = [drawn.items[a:b] for a, b in zip(drawn.pointer[:-1], drawn.pointer[1:], strict=True)]
    # With keep-prob 1 and perturbation-prob 0 the star is the truth: here the truth is what the other drew.
    plain = config_of(
        perturbation="randomised-response",
        keep_prob=1.0,
        perturbation_prob=0.0,
        popularity_weight=config.popularity_weight,
    )
    mechanism = LaplaceMechanism(Clip(32.0, 0.0, counted=counted), 0.1, True)
    found = []
    for name, each, parts in (("b", config, PARTS), ("c", plain, [stars, *PARTS[1:]])):
        one = make_node(tmp_path / f"{name}.sqlite3", each, make_shard(parts, ITEMS), USERS, mechanism)
        found.append([segments(one.train(make_table(ITEMS, K), order(r, USERS))[0]) for r in (1, 2)])
    assert found[0] == found[1]
    refit = node._graphs(node._history("train"), np.arange(USERS), "refit")
    assert not np.array_equal(refit.items, drawn.items)


def test_another_cut_of_a_devices_file_is_answered_anew(tmp_path):
    """With the same draws an item of one star only would be a true one for certain, once the server has cut the file twice."""
    config = config_of(perturbation="randomised-response", keep_prob=0.9, perturbation_prob=0.1)
    whole = PARTS[0]
    fewer = [row[: max(len(row) - 1, 1)] for row in whole]

    def stars(name, rows, secret):
        parts = [rows, *PARTS[1:]]
        node = make_node(tmp_path / f"{name}.sqlite3", config, make_shard(parts, ITEMS), USERS, secret=secret)
        graphs = node._graphs(node._history("train"), np.arange(USERS))
        return [set(graphs.items[a:b].tolist()) for a, b in zip(graphs.pointer[:-1], graphs.pointer[1:], strict=True)]

    first, again, cut = stars("a", whole, 7), stars("b", whole, 7), stars("c", fewer, 7)
    assert first == again
    lies = [one - other - set(true.tolist()) for one, other, true in zip(first, cut, whole, strict=True)]
    assert sum(map(len, lies)) > USERS  # what only one star has is not true for certain
    same_draws = [one - other for one, other in zip(stars("d", whole, None), stars("e", fewer, None), strict=True)]
    assert all(found <= set(true.tolist()) for found, true in zip(same_draws, whole, strict=True))


def test_refresh_comes_every_interval(tmp_path):
    table = make_table(ITEMS, K)
    for server_round, same in ((1, True), (2, False), (3, True), (4, False)):
        found = []
        for interval in (0, 2):
            config = config_of(item_refresh_interval=interval)
            node = make_node(tmp_path / f"{server_round}-{interval}.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
            found.append(segments(node.train(table, order(server_round, 12))[0]))
        assert (found[0] == found[1]) == same


def test_loss_is_reported_only_when_asked(tmp_path):
    reports = []
    for asked in (False, True):
        node = make_node(tmp_path / f"{asked}.sqlite3", config_of(), make_shard(PARTS, ITEMS), USERS)
        reports.append(node.train(make_table(ITEMS, K), order(1, USERS, report_loss=asked))[1])
    assert reports[0] == replace(reports[1], loss_sum=0.0, positives=0)
    assert reports[1].positives == sum(len(row) for row in PARTS[0])
    # Near a table of small rows each positive costs about ln 2.
    assert 0.4 < reports[1].loss_sum / reports[1].positives < 1.2


def test_snapshot_restore_replays_a_round(tmp_path):
    """A resume from the server's checkpoint gives what the first run gave."""
    config = config_of(blend_weight=0.5)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    node.train(make_table(ITEMS, K, 1), order(1, USERS))
    node.train(make_table(ITEMS, K, 2), order(2, USERS, snapshot=True))
    first = segments(node.train(make_table(ITEMS, K, 3), order(3, USERS))[0])
    node.train(make_table(ITEMS, K, 4), order(4, USERS))
    again = segments(node.train(make_table(ITEMS, K, 3), order(3, USERS, restore=2))[0])
    assert again == first
    with pytest.raises(StateError, match="no copy"):
        node.train(make_table(ITEMS, K, 3), order(3, USERS, restore=1))


def test_refit_learns_from_validation_items_too(tmp_path):
    node = make_node(tmp_path / "s.sqlite3", config_of(), make_shard(PARTS, ITEMS), USERS)
    history = node._history("refit")
    for user in range(USERS):
        row = history.items[history.starts[user] : history.ends[user]]
        assert row.tolist() == np.union1d(PARTS[0][user], PARTS[1][user]).tolist()
    train = node._history("train")
    assert train.items[train.starts[3] : train.ends[3]].tolist() == PARTS[0][3].tolist()
