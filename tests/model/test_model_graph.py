"""Local graphs: how many false items, which, and that they never change."""

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.model.graph import build_local_graphs
from fastpfrec_flwr.randomness import user_stream_keys

NUM_ITEMS = 200


def rows_of(*users):
    items = np.concatenate([np.asarray(user, np.int32) for user in users] or [np.empty(0, np.int32)]).astype(np.int32)
    ends = np.cumsum([len(user) for user in users], dtype=np.int64)
    return items, ends - np.array([len(user) for user in users], np.int64), ends


def false_items(graphs, user):
    return graphs.items[graphs.pointer[user] + graphs.own_counts[user] : graphs.pointer[user + 1]]


def own_items(graphs, user):
    return graphs.items[graphs.pointer[user] : graphs.pointer[user] + graphs.own_counts[user]]


def random_users(sizes, num_items=NUM_ITEMS, seed=1):
    generator = np.random.default_rng(seed)
    return [np.sort(generator.choice(num_items, size, replace=False)) for size in sizes]


def build(users, perturbation="relative", probability=0.1, secrets=None, num_items=NUM_ITEMS):
    secrets = user_stream_keys(9, np.arange(len(users))) if secrets is None else secrets
    return build_local_graphs(*rows_of(*users), secrets, num_items, perturbation, probability)


@pytest.mark.parametrize(
    ("own", "probability", "expected"),
    [
        (1, 0.1, 1),
        (9, 0.1, 1),
        (10, 0.1, 1),
        (19, 0.1, 1),
        (20, 0.1, 2),
        (57, 0.1, 5),
        (10, 0.5, 5),
        (10, 0.0, 1),
        (10, 1.0, 10),
    ],
)
def test_relative_count(own, probability, expected):
    graphs = build(random_users([own]), probability=probability)
    assert graphs.degrees[0] - graphs.own_counts[0] == expected


def test_relative_count_leaves_an_item_to_be_a_negative():
    graphs = build(random_users([4, 5, 3, 0], num_items=5), probability=1.0, num_items=5)
    assert (graphs.degrees - graphs.own_counts).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("perturbation", ["relative", "bernoulli", "none"])
def test_own_items_first_false_ones_distinct_and_never_own(perturbation):
    users = random_users([1, 5, 30, 100, 150, 0, 7])
    graphs = build(users, perturbation, 0.3)
    assert graphs.num_users == 7
    assert graphs.own_counts.tolist() == [len(user) for user in users]
    for u, user in enumerate(users):
        false = false_items(graphs, u)
        assert own_items(graphs, u).tolist() == user.tolist()
        assert len(np.unique(false)) == len(false)
        assert not np.intersect1d(false, user).size
        assert ((false >= 0) & (false < NUM_ITEMS)).all()
        if perturbation == "none":
            assert not len(false)


@pytest.mark.parametrize("probability", [0.02, 0.3, 0.9])
def test_bernoulli_rate(probability):
    """Each free item is taken with probability p: the count over users, and each item by itself."""
    users = random_users([20] * 1000)
    graphs = build(users, "bernoulli", probability)
    counts = graphs.degrees - graphs.own_counts
    trials = 180 * len(users)
    assert abs(counts.sum() - trials * probability) < 4 * np.sqrt(trials * probability * (1 - probability))
    assert abs(counts.var() / (180 * probability * (1 - probability)) - 1) < 4 * np.sqrt(2 / len(users))
    taken = np.bincount(np.concatenate([false_items(graphs, u) for u in range(1000)]), minlength=NUM_ITEMS)
    free = 1000 - np.bincount(np.concatenate(users), minlength=NUM_ITEMS)
    z = (taken - free * probability) / np.sqrt(free * probability * (1 - probability))
    assert stats.chi2.sf((z**2).sum(), NUM_ITEMS) > 1e-3


def test_bernoulli_limits():
    users = random_users([5, 20])
    assert (build(users, "bernoulli", 0.0).degrees == [5, 20]).all()
    assert (build(users, "bernoulli", 1.0).degrees == NUM_ITEMS).all()


def test_relative_false_items_are_uniform_over_the_free_ones():
    own = np.arange(0, 40, 2)
    graphs = build([own] * 4000, "relative", 0.5)
    taken = np.bincount(np.concatenate([false_items(graphs, u) for u in range(4000)]), minlength=NUM_ITEMS)
    free = np.setdiff1d(np.arange(NUM_ITEMS), own)
    statistic = ((taken[free] - taken[free].mean()) ** 2 / taken[free].mean()).sum() * 179 / 170
    assert 1e-3 < stats.chi2.sf(statistic, 179) < 1 - 1e-3


@pytest.mark.parametrize("perturbation", ["relative", "bernoulli"])
def test_false_items_are_a_function_of_the_secret_alone(perturbation):
    """Not of the call, the company, or the place in the cohort: fresh draws would intersect to the truth."""
    users = random_users([10, 20, 30])
    secrets = user_stream_keys(9, np.arange(3))
    together = build(users, perturbation, 0.3, secrets)
    again = build(users, perturbation, 0.3, secrets)
    assert (together.items == again.items).all()
    backwards = build(users[::-1], perturbation, 0.3, secrets[::-1].copy())
    for u in range(3):
        alone = build([users[u]], perturbation, 0.3, secrets[u : u + 1])
        assert (false_items(alone, 0) == false_items(together, u)).all()
        assert (false_items(backwards, 2 - u) == false_items(together, u)).all()


@pytest.mark.parametrize("perturbation", ["relative", "bernoulli"])
def test_other_secrets_other_false_items(perturbation):
    users = [random_users([40])[0]] * 50
    graphs = build(users, perturbation, 0.3)
    assert len({tuple(sorted(false_items(graphs, u).tolist())) for u in range(50)}) == 50


def respond(users, keep, add, secrets=None, num_items=NUM_ITEMS):
    secrets = user_stream_keys(9, np.arange(len(users))) if secrets is None else secrets
    return build_local_graphs(*rows_of(*users), secrets, num_items, "randomised-response", add, keep)


@pytest.mark.parametrize(("keep", "add"), [(0.9, 0.1), (0.6, 0.02), (0.99, 0.5)])
def test_randomised_response_rates(keep, add):
    """Own items are kept with q and others added with p: over all users, and item by item."""
    users = random_users([20] * 1000)
    graphs = respond(users, keep, add)
    assert (graphs.own_counts == graphs.degrees).all(), "nothing in the star tells true from false"
    true = np.zeros((1000, NUM_ITEMS), bool)
    drawn = np.zeros((1000, NUM_ITEMS), bool)
    for u, user in enumerate(users):
        mine = own_items(graphs, u)
        assert (np.diff(mine) > 0).all()
        true[u, user] = True
        drawn[u, mine] = True
    for where, probability in ((true, keep), (~true, add)):
        trials = where.sum()
        sd = np.sqrt(trials * probability * (1 - probability))
        assert abs(drawn[where].sum() - trials * probability) < 4 * sd
    expected = true * keep + ~true * add
    z = (drawn - expected).sum(axis=0) / np.sqrt((expected * (1 - expected)).sum(axis=0))
    assert 1e-3 < stats.chi2.sf((z**2).sum(), NUM_ITEMS) < 1 - 1e-3
    # The number of drawn items of a user: independent draws, no more and no less spread.
    variance = 20 * keep * (1 - keep) + 180 * add * (1 - add)
    assert abs(graphs.degrees.var() / variance - 1) < 4 * np.sqrt(2 / 1000)


def test_randomised_response_limits():
    users = random_users([5, 20])
    assert respond(users, 1.0, 0.0).items.tolist() == np.concatenate(users).tolist()
    assert (respond(users, 1.0, 1.0).degrees == NUM_ITEMS).all()
    assert respond(users, 0.0, 0.0).items.tolist() == []
    assert respond([], 0.9, 0.1).num_users == 0


def test_randomised_response_is_a_function_of_secret_and_items_alone():
    users = random_users([10, 20, 30])
    secrets = user_stream_keys(9, np.arange(3))
    together, again = respond(users, 0.8, 0.2, secrets), respond(users, 0.8, 0.2, secrets)
    assert (together.items == again.items).all()
    for u in range(3):
        alone = respond([users[u]], 0.8, 0.2, secrets[u : u + 1])
        assert own_items(alone, 0).tolist() == own_items(together, u).tolist()
    # One interaction more changes the draw of that item at most.
    more = np.union1d(users[0], [np.setdiff1d(np.arange(NUM_ITEMS), users[0])[0]])
    changed = set(own_items(respond([more], 0.8, 0.2, secrets[:1]), 0)) ^ set(own_items(together, 0))
    assert changed <= set(more) - set(users[0])


def test_only_the_users_own_rows_are_read():
    users = random_users([10, 20])
    items, starts, ends = rows_of(*users)
    poisoned = items.copy()
    poisoned[: ends[0]] = -(2**31)
    secret = user_stream_keys(9, np.arange(1, 2))
    clean = build_local_graphs(items, starts[1:], ends[1:], secret, NUM_ITEMS, "relative", 0.2)
    dirty = build_local_graphs(poisoned, starts[1:], ends[1:], secret, NUM_ITEMS, "relative", 0.2)
    assert (clean.items == dirty.items).all()


def test_no_users_and_unknown_names():
    empty = build([])
    assert empty.num_users == 0
    assert empty.pointer.tolist() == [0]
    with pytest.raises(ValueError, match=r"relative, bernoulli, randomised-response or none, got 'x'"):
        build([[1]], "x")
