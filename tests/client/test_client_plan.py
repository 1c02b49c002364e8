"""What a cohort touches: rows, slots and negatives."""

import numpy as np
import pytest
from cohorts import Cohort, end_to_end, make_node, make_parts, make_shard, make_table, order, random_cohort, run_config
from scipy import stats

from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.model.graph import build_local_graphs
from fastpfrec_flwr.randomness import stream_key, user_stream_keys


def neighbourhood(cohort: Cohort, user):
    return cohort.graphs.items[cohort.graphs.pointer[user] : cohort.graphs.pointer[user + 1]]


def negatives_of(cohort: Cohort, plan, shared, user):
    if shared:
        slots = plan.negative_slots[user]
    else:
        first = cohort.graphs.own_counts[:user].sum()
        slots = plan.negative_slots[first : first + cohort.graphs.own_counts[user]]
    return plan.rows[slots[slots >= 0]]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("num_negatives", [1, 8, 500])
@pytest.mark.parametrize("num_items", [60, 61, 64])
def test_rows_and_slots(shared, num_negatives, num_items):
    cohort = random_cohort(num_items=num_items)
    graphs = cohort.graphs
    plan = plan_cohort(graphs, cohort.keys, shared, num_negatives)
    assert plan.pointer[0] == 0
    assert plan.pointer[-1] == len(plan.rows)
    assert (plan.rows[plan.edge_slots] == graphs.items).all()
    for u in range(graphs.num_users):
        mine = plan.rows[plan.pointer[u] : plan.pointer[u + 1]]
        assert (np.diff(mine) > 0).all()
        drawn = negatives_of(cohort, plan, shared, u)
        assert not np.intersect1d(drawn, neighbourhood(cohort, u)).size
        assert (mine == np.union1d(drawn, neighbourhood(cohort, u))).all()
        edges = plan.edge_slots[graphs.pointer[u] : graphs.pointer[u + 1]]
        assert ((edges >= plan.pointer[u]) & (edges < plan.pointer[u + 1])).all()
        if shared:
            slots = plan.negative_slots[u]
            free = num_items - graphs.degrees[u]
            assert len(np.unique(drawn)) == len(drawn) == min(num_negatives, free)
            assert (slots[: len(drawn)] >= plan.pointer[u]).all()
            assert (slots[len(drawn) :] == -1).all()
        else:
            assert len(drawn) == num_negatives * graphs.own_counts[u]


@pytest.mark.parametrize("shared", [True, False])
def test_a_user_is_planned_as_it_would_be_alone(shared):
    cohort = random_cohort()
    plan = plan_cohort(cohort.graphs, cohort.keys, shared, 9)
    target = 0
    for u in range(cohort.graphs.num_users):
        one = cohort.alone(u)
        alone = plan_cohort(one.graphs, one.keys, shared, 9)
        start, stop = plan.pointer[u], plan.pointer[u + 1]
        assert (alone.rows == plan.rows[start:stop]).all()
        edges = plan.edge_slots[cohort.graphs.pointer[u] : cohort.graphs.pointer[u + 1]]
        assert (alone.edge_slots == edges - start).all()
        width = 1 if shared else len(cohort.lists[u])
        first = u if shared else target
        slots = plan.negative_slots[first : first + width]
        assert (alone.negative_slots == np.where(slots < 0, -1, slots - start)).all()
        target += len(cohort.lists[u])


def test_other_keys_other_negatives():
    cohort = random_cohort()
    one = plan_cohort(cohort.graphs, cohort.keys, True, 8)
    other = plan_cohort(cohort.graphs, cohort.keys + np.uint64(1), True, 8)
    for u in range(cohort.graphs.num_users):
        assert set(negatives_of(cohort, one, True, u)) != set(negatives_of(cohort, other, True, u))


def test_no_users():
    graphs = build_local_graphs(*end_to_end([]), np.empty(0, np.uint64), 10, "relative", 0.1)
    for shared in (True, False):
        plan = plan_cohort(graphs, np.empty(0, np.uint64), shared, 4)
        assert len(plan.rows) == 0
        assert plan.pointer.tolist() == [0]


@pytest.mark.parametrize("shared", [True, False])
def test_negatives_are_uniform_outside_the_neighbourhood(shared):
    """Over 3,000 rounds each item outside N' is drawn equally often, per-positive draws with replacement."""
    rounds = 3000
    own = np.array([3, 10, 11, 12])
    lists = [own] * rounds
    secrets = np.full(rounds, 77, np.uint64)
    graphs = build_local_graphs(*end_to_end(lists), secrets, 40, "relative", 0.5)
    keys = user_stream_keys(stream_key(4, "negatives"), np.arange(rounds))
    plan = plan_cohort(graphs, keys, shared, 5)
    drawn = plan.rows[plan.negative_slots[plan.negative_slots >= 0]]
    counts = np.bincount(drawn, minlength=40)
    taken = graphs.items[: graphs.pointer[1]]
    assert not counts[taken].any()
    free = np.setdiff1d(np.arange(40), taken)
    statistic = ((counts[free] - counts[free].mean()) ** 2 / counts[free].mean()).sum()
    if shared:
        statistic *= (len(free) - 1) / (len(free) - 5)
    assert 1e-3 < stats.chi2.sf(statistic, len(free) - 1) < 1 - 1e-3


def test_held_out_items_are_negatives_like_any_other(tmp_path, monkeypatch):
    """The leak test: leaving test or validation items out of the negatives would tell the model the answer.

    All that a node plans is recorded over many rounds; the draws of held-out items are compared with those of the items
    that nobody touched.
    """
    parts = make_parts(num_users=20, num_items=60)
    config = run_config(embedding_dim=4, num_negatives=6, perturbation="none", num_trusted_nodes=1)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(parts, 60), 20)
    plans = []

    def recording(graphs, *rest):
        plans.append((graphs, plan_cohort(graphs, *rest)))
        return plans[-1][1]

    monkeypatch.setattr("fastpfrec_flwr.client.training.plan_cohort", recording)
    rounds = 400
    for server_round in range(1, rounds + 1):
        node.train(make_table(60, 4), order(server_round, 20))
    drawn = np.zeros((20, 60))
    for _, plan in plans:
        for u in range(20):
            drawn[u, plan.rows[plan.negative_slots[u]]] += 1
    held_out, rest, expected_held_out, expected_rest = 0.0, 0.0, 0.0, 0.0
    for u in range(20):
        train, validation, test = (part[u] for part in parts)
        assert not drawn[u, train].any()
        hidden = np.union1d(validation, test)
        rate = 6 / (60 - len(train))
        held_out += drawn[u, hidden].sum()
        expected_held_out += rounds * len(hidden) * rate
        others = np.setdiff1d(np.arange(60), np.union1d(train, hidden))
        rest += drawn[u, others].sum()
        expected_rest += rounds * len(others) * rate
    assert abs(held_out - expected_held_out) < 4 * np.sqrt(expected_held_out)
    assert held_out + rest == pytest.approx(expected_held_out + expected_rest)
