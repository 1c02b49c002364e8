"""Who trains: distinct users, everyone equally often, the same whatever the number of SuperNodes."""

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.client.participation import device_users, round_users


@pytest.mark.parametrize(("clients", "num_users"), [(10, 100), (7, 30), (1, 5), (30, 30), (99, 30)])
def test_a_round_has_distinct_users_in_range(clients, num_users):
    for server_round in range(1, 50):
        users = round_users(1, "train", server_round, clients, num_users)
        assert len(users) == min(clients, num_users)
        assert (np.diff(users) > 0).all()
        assert users[0] >= 0
        assert users[-1] < num_users
        assert users.dtype == np.int64


def test_everyone_trains_once_in_a_walk():
    for walk in range(5):
        rounds = range(walk * 10 + 1, walk * 10 + 11)
        together = np.concatenate([round_users(1, "train", r, 10, 100) for r in rounds])
        assert (np.sort(together) == np.arange(100)).all()


def test_leftover_users_have_the_same_chance():
    """30 users, 7 a round: 28 of them train in a walk of four rounds, and no one is left out more than chance has it."""
    counts = np.zeros(30, int)
    for server_round in range(1, 4 * 600 + 1):
        counts[round_users(1, "train", server_round, 7, 30)] += 1
    assert counts.max() <= 600
    rested = 600 - counts
    statistic = ((rested - 40) ** 2 / 40).sum() * 29 / 28
    assert 1e-3 < stats.chi2.sf(statistic, 29) < 1 - 1e-3


def test_seed_phase_and_round_each_change_the_users():
    base = round_users(1, "train", 1, 20, 1000)
    for other in (
        round_users(2, "train", 1, 20, 1000),
        round_users(1, "refit", 1, 20, 1000),
        round_users(1, "train", 2, 20, 1000),
    ):
        assert not np.array_equal(base, other)
    assert np.array_equal(base, round_users(1, "train", 1, 20, 1000))


def test_nobody():
    assert round_users(1, "train", 1, 0, 10).size == 0
    assert round_users(1, "train", 1, 5, 0).size == 0


def test_device_users_are_distinct_and_not_seeded():
    draws = [device_users(20, 1000) for _ in range(5)]
    for users in draws:
        assert len(np.unique(users)) == 20
        assert (np.diff(users) > 0).all()
    assert len({tuple(users) for users in draws}) == 5
    assert device_users(1, 1).tolist() == [0]
    assert device_users(256, 3).tolist() == [0, 1, 2]
