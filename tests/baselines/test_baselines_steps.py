"""The local steps of the federated baselines against gradients by autograd, and what else each of them promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastpfrec_flwr.baselines.federated.contrast_step import NOISE, noisy_view
from fastpfrec_flwr.baselines.federated.fedgnn import without_false_items
from fastpfrec_flwr.baselines.federated.layouts import WEIGHT_UNIT, MlpLayout
from fastpfrec_flwr.client.build import build_mechanism
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.lightgcn import layer_weights
from fastpfrec_flwr.model.named import build_layout
from tests.baselines.small_models import ITEMS, USERS, K, bpr, cohort_of, node_of, stars_of
from tests.client.cohorts import make_table, run_config


def test_fedmf_is_matrix_factorisation(tmp_path):
    node = node_of(tmp_path, "fedmf")
    graphs, private, users, of_round = cohort_of(node)
    table = make_table(ITEMS, K)
    updates = node.local_updates(table, graphs, private, users, of_round, None)
    plan = node.plan(graphs, users, of_round)
    for user in range(USERS):
        own, _, negatives = stars_of(graphs, plan, user)
        rows = torch.tensor(table[plan.rows], dtype=torch.float64, requires_grad=True)
        p = torch.tensor(private[user], dtype=torch.float64, requires_grad=True)
        loss = bpr(rows[own] @ p, rows[negatives] @ p)
        n, gamma = len(own), node.config.l2
        whole = (
            loss + gamma / 2 * (rows[own] ** 2).sum() + gamma * n / len(negatives) / 2 * (rows[negatives] ** 2).sum()
        )
        whole = whole + node.config.user_l2 / 2 * (p**2).sum()
        whole.backward()
        mine = slice(plan.pointer[user], plan.pointer[user + 1])
        np.testing.assert_allclose(updates.changes[mine], -rows.grad[mine], atol=2e-5)
        np.testing.assert_allclose(updates.private[user], (p - p.grad).detach(), atol=2e-5)
        assert updates.losses[user] == pytest.approx(loss.item(), abs=1e-5)


def network_of(table):
    weights = table[ITEMS:] * WEIGHT_UNIT
    return weights[:K], weights[K : 2 * K], weights[2 * K], weights[2 * K + 1], weights[2 * K + 2]


def score(rows, p, table):
    """The formula of `MlpLayout`, as torch."""
    user, item, bias, output, product = network_of(table)
    return rows @ (product * p) + torch.relu(rows @ item.T + user @ p + bias) @ output


def test_fedncf_equals_autograd(tmp_path):
    node = node_of(tmp_path, "fedncf")
    graphs, private, users, of_round = cohort_of(node)
    table = MlpLayout(K).start(make_table(ITEMS, K), 1)
    table[ITEMS:] += make_table(len(table) - ITEMS, K, 3) / WEIGHT_UNIT
    updates = node.local_updates(table, graphs, private, users, of_round, None)
    plan = node_of(tmp_path, "fedmf").plan(graphs, users, of_round)
    extra = len(table) - ITEMS
    for user in range(USERS):
        own, _, negatives = stars_of(graphs, plan, user)
        whole = torch.tensor(table, dtype=torch.float64, requires_grad=True)
        p = torch.tensor(private[user], dtype=torch.float64, requires_grad=True)
        positives, others = whole[plan.rows[own]], whole[plan.rows[negatives]]
        loss = bpr(score(positives, p, whole), score(others, p, whole))
        n, gamma = len(own), node.config.l2
        (
            loss + gamma / 2 * (positives**2).sum() + gamma * n / len(negatives) / 2 * (others**2).sum()
            + node.config.user_l2 / 2 * (p**2).sum()
        ).backward()  # fmt: skip
        mine = slice(updates.pointer[user], updates.pointer[user + 1])
        rows = updates.rows[mine]
        assert (np.diff(rows) > 0).all()
        assert rows[-extra:].tolist() == list(range(ITEMS, ITEMS + extra))
        np.testing.assert_allclose(updates.changes[mine], -whole.grad[rows], atol=5e-5)
        np.testing.assert_allclose(updates.private[user], (p - p.grad).detach(), atol=5e-5)
        assert updates.losses[user] == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("model", ["fedmf", "fedncf", "fedgnn", "lightgcn", "local-only", "perfedrec", "perfedrec++"])
def test_rows_that_are_reserved_are_recommended_to_nobody(tmp_path, model):
    node = node_of(tmp_path, model)
    node = replace(node, shard=replace(node.shard, num_reserved=4))
    table = build_layout(node.config).start(make_table(ITEMS, K), 1)
    table[ITEMS - 4 : ITEMS] *= 50.0  # whoever looked would see them first, for half of the users
    masks = [Rows(np.empty(0, np.int32), np.zeros(USERS, np.int64), np.zeros(USERS, np.int64))]
    history = node._history("train")
    top = node.ranker(table, node.shard.users, history, make_table(USERS, K, 4), None)(np.arange(USERS), masks)
    assert top.shape == (USERS, 20)
    assert 0 <= top.min() <= top.max() < ITEMS - 4


def test_fedncf_ranks_by_its_score(tmp_path):
    node = node_of(tmp_path, "fedncf")
    table = MlpLayout(K).start(make_table(ITEMS, K), 1)
    table[ITEMS:] += make_table(len(table) - ITEMS, K, 3) / WEIGHT_UNIT
    private = make_table(USERS, K, 4)
    none = node.shard.test
    masks = [type(none)(none.items, none.starts, none.starts)]
    top = node.ranker(table, node.shard.users, node._history("train"), private, None)(np.arange(USERS), masks)
    whole = torch.tensor(table, dtype=torch.float64)
    for user in range(USERS):
        scores = score(whole[:ITEMS], torch.tensor(private[user], dtype=torch.float64), whole)
        assert top[user].tolist() == torch.argsort(scores, descending=True)[:20].tolist()


def test_fedgnn_true_rows_are_lightgcn_without_false_items(tmp_path):
    node, bare = node_of(tmp_path, "fedgnn"), node_of(tmp_path / "b", "lightgcn", perturbation="none")
    graphs, private, users, of_round = cohort_of(node)
    table = make_table(ITEMS, K)
    updates = node.local_updates(table, graphs, private, users, of_round, None)
    plan = node.plan(graphs, users, of_round)
    own_graphs, own_plan = without_false_items(graphs, plan)
    alone = bare._stepped(table, own_graphs, own_plan, private, True, plan.rows)
    assert own_graphs.degrees.tolist() == graphs.own_counts.tolist()
    for user in range(USERS):
        own, star, negatives = stars_of(graphs, plan, user)
        true_rows = np.concatenate([own, negatives])
        assert updates.changes[true_rows].tobytes() == alone.changes[true_rows].tobytes()
        assert updates.private[user].tobytes() == alone.private[user].tobytes()
        assert len(star) > len(own)


def test_fedgnn_pseudo_gradients_have_mean_and_variance_of_the_true_ones(tmp_path):
    """One user with 10 items and 40 false ones, 300 rounds: 12,000 draws per coordinate."""
    parts = ([np.arange(10)], [np.array([], int)], [np.array([], int)])
    node = node_of(tmp_path, "fedgnn", parts, perturbation_prob=4.0 / 4, num_negatives=5)
    table = make_table(ITEMS, K)
    ratios = []
    for server_round in range(1, 301):
        graphs, private, users, of_round = cohort_of(node, server_round)
        updates = node.local_updates(table, graphs, private, users, of_round, None)
        own, star, _ = stars_of(graphs, node.plan(graphs, users, of_round), 0)
        true_rows, false_rows = updates.changes[own], updates.changes[star[len(own) :]]
        assert len(false_rows) == 10
        ratios.append((false_rows - true_rows.mean(axis=0)) / true_rows.std(axis=0))
    draws = np.concatenate(ratios)
    # 3,000 standard normal draws per coordinate: mean within 5 sigma of 0, variance of 1.
    assert np.abs(draws.mean(axis=0)).max() < 5 / np.sqrt(3000)
    assert np.abs(draws.var(axis=0) - 1).max() < 5 * np.sqrt(2 / 3000)


def test_contrast_step_equals_autograd(tmp_path):
    node = node_of(tmp_path, "perfedrec++", num_layers=2, num_rounds=20)
    graphs, private, users, of_round = cohort_of(node)
    plan = node.plan(graphs, users, of_round)
    local = make_table(ITEMS, K)[plan.rows]
    updates = node.local_step(local, graphs, plan, private, users, of_round)
    keys = node._keys("views", of_round, users)
    _, odd, above = layer_weights(2)
    for user in range(USERS):
        own, star, negatives = stars_of(graphs, plan, user)
        rows = torch.tensor(local, dtype=torch.float64, requires_grad=True)
        p = torch.tensor(private[user], dtype=torch.float64, requires_grad=True)
        shared = odd * len(star) ** -0.5 * p + above * rows[star].mean(dim=0)
        inside, outside = rows[own] / 3 + shared, rows[negatives] / 3

        def view(vectors, places, key=keys[user]):
            """Unit vectors of vectors + noise; the noise is what the compiled view adds, and has no gradient."""
            found = []
            for vector, place in zip(vectors, places, strict=True):
                plain, out = vector.detach().numpy().astype(np.float32), np.empty(K, np.float32)
                length = noisy_view(plain, key, place, out)
                noise = torch.tensor(out.astype(np.float64) * length - plain)
                assert noise.norm().item() == pytest.approx(NOISE * np.linalg.norm(plain), rel=1e-3)
                found.append((vector + noise) / (vector + noise).norm())
            return torch.stack(found)

        n = len(own)
        one, other = view(inside, range(0, 2 * n, 2)), view(inside, range(1, 2 * n, 2))
        away = view(outside, range(2 * n, 2 * n + len(negatives)))
        logits = (
            torch.cat([(one * other).sum(dim=1, keepdim=True), one @ away.T], dim=1) / node.config.contrast_temperature
        )
        loss = -torch.log_softmax(logits, dim=1)[:, 0].sum()
        loss.backward()
        mine = slice(plan.pointer[user], plan.pointer[user + 1])
        np.testing.assert_allclose(updates.changes[mine], -rows.grad[mine], atol=2e-4)
        np.testing.assert_allclose(updates.private[user], (p - p.grad).detach(), atol=2e-4)
        assert updates.losses[user] == pytest.approx(loss.item(), rel=1e-4)


def test_perfedrec_works_with_the_mixture_and_sends_its_change_twice(tmp_path):
    node = node_of(tmp_path, "perfedrec", num_clusters=3, cluster_weight=0.25)
    graphs, private, users, of_round = cohort_of(node)
    table = build_layout(node.config).start(make_table(ITEMS, K), 1)
    for cluster in range(3):
        table[ITEMS * (1 + cluster) : ITEMS * (2 + cluster)] = make_table(ITEMS, K, 20 + cluster)
    updates = node.local_updates(table, graphs, private, users, of_round, None)
    plan = node.plan(graphs, users, of_round)
    star = node_of(tmp_path / "b", "lightgcn")
    seen = set()
    for user in range(USERS):
        mine = slice(updates.pointer[user], updates.pointer[user + 1])
        rows, changes = updates.rows[mine], updates.changes[mine]
        half = len(rows) // 2
        assert (np.diff(rows) > 0).all()
        offset = rows[half] - rows[0]
        cluster = offset // ITEMS - 1
        assert (rows[half:] - rows[:half] == ITEMS * (1 + cluster)).all()
        np.testing.assert_array_equal(changes[:half], changes[half:])
        seen.add(int(cluster))
        mixed = 0.75 * table[:ITEMS] + 0.25 * table[ITEMS * (1 + cluster) : ITEMS * (2 + cluster)]
        alone = star.local_updates(mixed, graphs, private, users, of_round, None)
        touched = slice(plan.pointer[user], plan.pointer[user + 1])
        np.testing.assert_allclose(changes[:half], alone.changes[touched], atol=1e-6)
        np.testing.assert_allclose(updates.private[user], alone.private[user], atol=1e-6)
    assert len(seen) > 1


def test_what_leaves_goes_through_the_configured_mechanism():
    assert build_mechanism(run_config(model="fedmf"), 1).noise_scale == 0.1
