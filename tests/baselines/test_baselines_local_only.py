"""Training alone: nothing leaves, and what each user keeps is its own table."""

from dataclasses import replace

import numpy as np

from fastpfrec_flwr.client.build import build_mechanism
from fastpfrec_flwr.client.device import Allowance, Device
from tests.baselines.small_models import ITEMS, USERS, K, node_of
from tests.client.cohorts import make_table, order, run_config


def test_local_only_keeps_its_rows_and_ranks_with_them(tmp_path):
    node = node_of(tmp_path, "local-only")
    table = make_table(ITEMS, K)
    for server_round in (1, 2):
        uploads, _ = node.train(table, order(server_round, USERS))
        assert len(uploads.nonces) == 0
        assert uploads.values.shape == (0, K)
    kept = node.state.deviations(node.shard.users)
    history = node._history("train")
    private = node.state.vectors(node.shard.users, node._initial_vectors(node.shard.users))
    none = node.shard.test
    masks = [type(none)(none.items, none.starts, none.starts)]
    top = node.ranker(table, node.shard.users, history, private, None)(np.arange(USERS), masks)
    for user, own in enumerate(kept):
        assert own.server_round == 2
        mine = table.copy()
        mine[own.rows] += own.values
        one = slice(user, user + 1)
        of_user = type(history)(history.items, history.starts[one], history.ends[one])
        vector = node.encoder.user_vectors(mine, of_user, private[one])[0]
        assert top[user].tolist() == np.argsort(-(mine @ vector), kind="stable")[:20].tolist()


def test_local_only_changes_add_up_over_the_rounds(tmp_path):
    """The second round starts from what the first one left: the same as one user's two steps on its own table."""
    node = node_of(tmp_path, "local-only")
    table = make_table(ITEMS, K)
    node.train(table, order(1, USERS))
    first = node.state.deviations(node.shard.users)
    node.train(table, order(5, USERS))
    second = node.state.deviations(node.shard.users)
    for before, after in zip(first, second, strict=True):
        # The negatives are drawn once, so the rows stay the same.
        assert before.rows.tolist() == after.rows.tolist()
        assert np.abs(after.values - before.values).max() > 0
        assert np.abs(after.values).sum() > np.abs(before.values).sum()


def test_nothing_leaves_so_nothing_is_charged(tmp_path):
    device = Device(tmp_path / "device")
    node = replace(node_of(tmp_path, "local-only"), allowance=Allowance(device, "first", "train", limit=1e-9))
    _, report = node.train(make_table(ITEMS, K), order(1, USERS))
    assert report.skipped == 0
    assert device.spent(node.shard.users).tolist() == [0.0] * USERS


def test_nothing_leaves_so_nothing_is_noised():
    assert build_mechanism(run_config(model="local-only"), 1).noise_scale == 0.0
