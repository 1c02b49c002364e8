"""A SuperNode evaluates: its own users alone, by full ranking, and at chance where there is nothing to know."""

import numpy as np
import pytest
from cohorts import make_node, make_parts, make_shard, make_table, order
from small_nodes import ITEMS, PARTS, USERS, K, config_of


def test_nobody_elses_rows_reach_an_evaluation(tmp_path):
    config = config_of()
    sums = []
    for poison in (None, (-(2**31), 2**31 - 1)):
        shard = make_shard(PARTS, ITEMS, 1, 3, poison)
        node = make_node(tmp_path / f"{poison}.sqlite3", config, shard, USERS)
        sums.append(node.evaluate(make_table(ITEMS, K), order(0, 12), ["validation", "test"]))
    assert sums[0] == sums[1]


def test_evaluation_sums_add_up_over_supernodes(tmp_path):
    config = config_of()
    table = make_table(ITEMS, K)
    whole = make_node(tmp_path / "w.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    expected = whole.evaluate(table, order(0, 12), ["validation", "test"])
    shares = [
        make_node(tmp_path / f"{p}.sqlite3", config, make_shard(PARTS, ITEMS, p, 3), USERS).evaluate(
            table, order(0, 12), ["validation", "test"]
        )
        for p in range(3)
    ]
    for part in ("validation", "test"):
        total = shares[0][part]
        for share in shares[1:]:
            total = total + share[part]
        assert total == expected[part]


def test_evaluation_by_plain_sorting(tmp_path):
    """Full ranking in float64, what was seen before masked, against the node's own figures."""
    from fastpfrec_flwr.evaluation.metrics import metrics
    from fastpfrec_flwr.model.fastgnn import norm_weights

    config = config_of(popularity_weight=0.0)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(PARTS, ITEMS), USERS)
    table = make_table(ITEMS, K)
    sums = node.evaluate(table, order(0, 12), ["validation", "test"])
    private = node._initial_vectors(np.arange(USERS)).astype(np.float64)
    weighted = norm_weights(table, config.norm_exponent)[:, None] * table.astype(np.float64)
    for part, truth, seen in (("validation", PARTS[1], PARTS[:1]), ("test", PARTS[2], PARTS[:2])):
        hits = 0
        for user in range(USERS):
            own = PARTS[0][user]
            vector = (
                config.user_weight * private[user] + config.neighbour_weight * weighted[own].sum(0) / len(own) ** 0.5
            )
            scores = table.astype(np.float64) @ vector
            for rows in seen:
                scores[rows[user]] = -np.inf
            hits += len(np.intersect1d(np.argsort(-scores, kind="stable")[:20], truth[user]))
        assert metrics(sums[part])["hit_ratio_micro@20"] == pytest.approx(hits / (2 * USERS))


def test_random_tables_evaluate_at_chance(tmp_path):
    """Users and items without structure: a list of 20 finds 20 of the unseen items' share of the truth, no more."""
    from fastpfrec_flwr.evaluation.metrics import metrics

    parts = make_parts(num_users=1500, num_items=300, largest=30)
    config = config_of(user_weight=1.0, neighbour_weight=0.0)
    node = make_node(tmp_path / "s.sqlite3", config, make_shard(parts, 300), 1500)
    found = metrics(node.evaluate(make_table(300, K), order(0, 12), ["test"])["test"])["hit_ratio_micro@20"]
    unseen = 300 - np.array([len(train) + len(validation) for train, validation in zip(*parts[:2], strict=True)])
    chance = np.mean(20 / unseen)
    assert abs(found - chance) < 4 * np.sqrt(chance / 3000)
