"""The local step in a plain loop learns what there is to learn, and nothing where there is nothing."""

import numpy as np
import pytest
from cohorts import end_to_end, run_config
from step_forms import CCL

from fastpfrec_flwr.client.training import train_cohort
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.fastgnn import norm_weights
from fastpfrec_flwr.model.graph import build_local_graphs
from fastpfrec_flwr.model.scoring import inference_user_vectors
from fastpfrec_flwr.randomness import stream_key, user_stream_keys


@pytest.mark.parametrize(
    "changes",
    [
        {"item_learning_rate": 1.0},
        {"item_learning_rate": 1.0, "item_refresh_interval": 5},
        {"item_learning_rate": 1.0, "negatives": "per-positive", "num_negatives": 4},
        {"item_learning_rate": 0.2, "user_learning_rate": 0.02, "local_optimizer": "adam"},
        {"item_learning_rate": 0.2, **CCL, "l2": 0.0, "user_weight": 0.0, "neighbour_weight": 1.0},
    ],
    ids=["default", "refresh", "per-positive", "adam", "ccl"],
)
def test_the_plain_loop_learns_a_checkerboard(changes):
    """Users and items of two groups: after some rounds of train, mean, add, each user's held-out items of its own group
    stand above every item of the other one.
    """
    config = run_config(**{"num_negatives": 12, "item_refresh_interval": 0, "embedding_dim": 8, **changes})
    generator = np.random.default_rng(2)
    num_users, num_items, k = 40, 40, 8
    lists, held_out = [], []
    for user in range(num_users):
        group = np.arange(user % 2, num_items, 2)
        mine = generator.permutation(group)
        lists.append(np.sort(mine[:14]))
        held_out.append(np.sort(mine[14:]))
    items, starts, ends = end_to_end(lists)
    secrets = user_stream_keys(stream_key(1, "secret"), np.arange(num_users))
    graphs = build_local_graphs(items, starts, ends, secrets, num_items, "relative", 0.1)
    table = (0.05 * generator.standard_normal((num_items, k))).astype(np.float32)
    if config.unit_rows:
        table /= np.linalg.norm(table, axis=1, keepdims=True)
    private = (0.05 * generator.standard_normal((num_users, k))).astype(np.float32)

    def share_on_top():
        weights = norm_weights(table, config.norm_exponent)
        vectors = inference_user_vectors(
            table, weights, items, starts, ends, private, config.user_weight, config.neighbour_weight
        )
        top = rank_top_k(vectors, table, Rows(items, starts, ends), top_k=6)
        return np.mean([np.isin(top[u], held_out[u]).mean() for u in range(num_users)])

    before = share_on_top()
    losses = []
    for server_round in range(1, 31):
        keys = user_stream_keys(stream_key(1, "negatives", server_round), np.arange(num_users))
        interval = config.item_refresh_interval
        updates = train_cohort(
            table, norm_weights(table, config.norm_exponent), graphs, private, keys, config,
            refresh=interval > 0 and server_round % interval == 0, report_loss=True,
        )  # fmt: skip
        total = np.zeros_like(table)
        np.add.at(total, updates.rows, updates.changes)
        table = table + total / num_users
        if config.unit_rows:
            table /= np.linalg.norm(table, axis=1, keepdims=True)
        private = updates.private
        losses.append(updates.losses.sum())
    assert before < 0.5  # chance: 6 of 26 unseen items
    assert share_on_top() == 1.0
    assert np.mean(losses[-5:]) < losses[0]


def test_random_embeddings_rank_at_chance():
    """Full ranking, train items masked: a list of 20 holds 20 / (free items) of the truth, and the leak would show here."""
    generator = np.random.default_rng(7)
    num_users, num_items = 600, 400
    all_items = [generator.permutation(num_items)[:40] for _ in range(num_users)]
    train = end_to_end([np.sort(mine[:30]) for mine in all_items])
    truth = [set(mine[30:].tolist()) for mine in all_items]
    table = generator.standard_normal((num_items, 16)).astype(np.float32)
    vectors = generator.standard_normal((num_users, 16)).astype(np.float32)
    top = rank_top_k(vectors, table, Rows(*train), top_k=20)
    hits = sum(len(truth[u] & set(top[u].tolist())) for u in range(num_users))
    expected = num_users * 10 * 20 / (num_items - 30)
    assert abs(hits - expected) < 4 * np.sqrt(expected)
