"""The sparse deviation equals the literal dense form of Algorithm 1, step 4."""

import numpy as np
import pytest
from cohorts import Cohort, make_node, make_parts, make_shard, make_table, order, random_cohort, run_config

from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.deviation import Deviation, add_change, after_round, local_rows, no_deviation
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import train_cohort
from fastpfrec_flwr.model.fastgnn import norm_weights
from fastpfrec_flwr.privacy.mechanism import Clip, NoNoise
from fastpfrec_flwr.randomness import stream_key, user_stream_keys

ROUNDS = 6


def deviation(rows, values, server_round):
    return Deviation(np.array(rows, np.int32), np.array(values, np.float32).reshape(len(rows), -1), server_round)


def test_rested_rounds_by_hand():
    kept = deviation([2, 5], [[8, 16], [-4, 0]], 3)
    assert (kept.at_start_of(4, 0.5).values == kept.values).all()
    rested = kept.at_start_of(6, 0.5)
    assert rested.values.tolist() == [[2, 4], [-1, 0]]
    assert rested.server_round == 5
    assert (rested.at_start_of(7, 0.5).values == kept.at_start_of(7, 0.5).values).all()


@pytest.mark.parametrize("server_round", [3, 2, 0])
def test_a_round_that_is_over_cannot_begin_again(server_round):
    with pytest.raises(ValueError, match="deviation is of round 3"):
        deviation([1], [[1]], 3).at_start_of(server_round, 0.5)


def test_add_change_and_after_round_by_hand():
    start = deviation([2, 5], [[8], [-4]], 3)
    trained = add_change(start, np.array([1, 5, 9], np.int32), np.array([[1], [2], [3]], np.float32))
    assert trained.rows.tolist() == [1, 2, 5, 9]
    assert trained.rows.dtype == np.int32
    assert trained.values.tolist() == [[1], [8], [-2], [3]]
    assert start.values.tolist() == [[8], [-4]]
    kept = after_round(trained, 4, 0.25)
    assert kept.values.tolist() == [[0.75], [6], [-1.5], [2.25]]
    assert kept.server_round == 4


def test_local_rows_by_hand():
    table = np.arange(10, dtype=np.float32)[:, None]
    rows = np.array([1, 3, 5, 0, 3], np.int32)
    deviations = [deviation([0, 3, 5, 7], [[100], [10], [20], [100]], 1), no_deviation(1)]
    got = local_rows(table, rows, np.array([0, 3, 5]), deviations)
    assert got[:, 0].tolist() == [1, 13, 25, 0, 3]
    assert (table[:, 0] == np.arange(10)).all()


def participants(server_round, num_users):
    """Different users each round; user 0 trains in the first and the last only."""
    some = [u for u in range(1, num_users) if (u + server_round) % 3 == 0]
    return ([0] if server_round in (1, ROUNDS) else []) + some


def pick(cohort: Cohort, users):
    """The sub-cohort of these users."""
    from cohorts import end_to_end

    from fastpfrec_flwr.model.graph import build_local_graphs

    lists = [cohort.lists[u] for u in users]
    return build_local_graphs(
        *end_to_end(lists), cohort.secrets[users], len(cohort.table), cohort.perturbation, cohort.probability
    )


@pytest.mark.parametrize("beta", [0.5, 0.1, 0.9])
@pytest.mark.parametrize("local_optimizer", ["sgd", "adam"])
def test_sparse_form_equals_the_dense_one(beta, local_optimizer):
    """Dense: every client holds a whole Theta_i, trains it, and all blend with W_s every round, whether they trained or not."""
    config = run_config(
        num_negatives=6, item_learning_rate=3.0 if local_optimizer == "sgd" else 0.3, blend_weight=beta,
        local_optimizer=local_optimizer,
    )  # fmt: skip
    cohort = random_cohort(sizes=(5, 1, 8, 3, 12, 7, 2), num_items=40, k=4)
    num_users = len(cohort.lists)

    theta = np.repeat(cohort.table[None], num_users, axis=0).astype(np.float64)  # (users, items, k)
    dense_table = cohort.table.astype(np.float64)
    table = cohort.table.copy()
    kept = [no_deviation(4) for _ in range(num_users)]
    private = cohort.private.copy()

    for server_round in range(1, ROUNDS + 1):
        users = np.array(participants(server_round, num_users))
        graphs = pick(cohort, users)
        keys = user_stream_keys(stream_key(1, "negatives", server_round), users)
        weights = np.ones(len(table), np.float32)

        # Dense and literal.
        plan = plan_cohort(graphs, keys, True, config.num_negatives)
        owner = np.repeat(users, np.diff(plan.pointer))
        own_copy = theta[owner, plan.rows].astype(np.float32)
        result = autograd_step(own_copy, weights, private[users], graphs, plan, config, False, "cpu")
        theta[owner, plan.rows] += result.changes
        average = theta[users].mean(axis=0)  # W_s
        theta = (1 - beta) * theta + beta * average
        dense_table = (1 - beta) * dense_table + beta * average

        # Sparse.
        current = [kept[u].at_start_of(server_round, beta) for u in users]
        updates = train_cohort(table, weights, graphs, private[users], keys, config, deviations=current)
        total = np.zeros(table.shape)
        for place, u in enumerate(users):
            mine = slice(updates.pointer[place], updates.pointer[place + 1])
            trained = add_change(current[place], updates.rows[mine], updates.changes[mine])
            total[trained.rows] += trained.values
            kept[u] = after_round(trained, server_round, beta)
        table = (table + beta * total / len(users)).astype(np.float32)
        private[users] = updates.private
        np.testing.assert_allclose(result.private, updates.private, atol=1e-5)
        np.testing.assert_allclose(table, dense_table, atol=1e-5)

    for u in range(num_users):
        whole = table.astype(np.float64)
        current = kept[u].at_start_of(ROUNDS + 1, beta)
        whole[current.rows] += current.values
        np.testing.assert_allclose(whole, theta[u], atol=1e-5)
    assert np.abs(theta - theta.mean(axis=0)).max() > 0.01, "the clients should differ, or this shows nothing"


def test_node_keeps_deviations_and_uploads_theta_minus_the_table(tmp_path):
    """Two rounds through `Node.train`, state on disk in between, against the parts put together by hand."""
    beta, k, num_items = 0.5, 4, 80
    parts = make_parts(num_users=6, num_items=num_items)
    config = run_config(
        embedding_dim=k, num_negatives=6, blend_weight=beta, item_learning_rate=2.0, item_refresh_interval=0,
        num_trusted_nodes=1, row_clip=0.0, clip_norm=0.0,
    )  # fmt: skip
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(parts, num_items), 6, NoNoise(Clip(0.0, 0.0)))
    first_table, second_table = make_table(num_items, k, 1), make_table(num_items, k, 2)
    one, _ = node.train(first_table, order(1, 6))
    kept = node.state.deviations(np.arange(6))
    for user in range(6):
        mine = slice(one.pointer[user], one.pointer[user + 1])
        assert (kept[user].rows == one.rows[mine]).all()
        assert kept[user].server_round == 1
        np.testing.assert_allclose(kept[user].values, (1 - beta) * one.values[mine], atol=1e-6)
    # Rounds 2 and 3 go by without them: D shrinks by (1 - beta)^2.
    graphs = node._graphs(node._history("train"), np.arange(6))
    vectors = node.state.vectors(np.arange(6), np.zeros((6, k), np.float32))
    current = [each.at_start_of(4, beta) for each in kept]
    updates = train_cohort(
        second_table, norm_weights(second_table, config.norm_exponent), graphs, vectors,
        node._keys("negatives", order(4, 6), np.arange(6)), config, deviations=current,
    )  # fmt: skip
    two, _ = node.train(second_table, order(4, 6))
    for user in range(6):
        mine = slice(updates.pointer[user], updates.pointer[user + 1])
        expected = add_change(current[user], updates.rows[mine], updates.changes[mine])
        got = slice(two.pointer[user], two.pointer[user + 1])
        assert (two.rows[got] == expected.rows).all()
        np.testing.assert_allclose(two.values[got], expected.values, atol=2e-6)
        np.testing.assert_allclose(kept[user].values / 4, current[user].values, atol=1e-7)
