"""LightGCN on the star: by hand and against the propagation that it stands for; the schedule of FastGNN."""

import numpy as np
import pytest
import torch

from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.encoders import FastGNN, LightGCN, Stars, build_encoder
from fastpfrec_flwr.model.lightgcn import star_item_vectors, star_user_vectors
from fastpfrec_flwr.model.linear import layer_weights

ROOT_2 = np.sqrt(2.0)
LIGHT = {"encoder": "lightgcn", "leave-one-out": False, "norm-exponent": 0.0, "item-refresh-interval": 1}


def config_of(**changes):
    return parse_run_config({**default_values(), **changes})


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_two_layers_by_hand():
    """p = (1, 0), items (0, 2) and (2, 0), d = 2, a = 1 / sqrt 2, S = (2, 2).

    User: p, a S, p -> ((2 + sqrt 2) / 3, sqrt 2 / 3). Item 1: (0, 2), a p, S / 2 -> ((1 / sqrt 2 + 1) / 3, 1).
    Item 2: ((2 + 1 / sqrt 2 + 1) / 3, 1 / 3).
    """
    private, sums, degrees = tensor([[1, 0]]), tensor([[2, 2]]), torch.tensor([2])
    rows, owner = tensor([[0, 2], [2, 0]]), torch.tensor([0, 0])
    users = star_user_vectors(private, sums, degrees, 2)
    np.testing.assert_allclose(users.numpy(), [[(2 + ROOT_2) / 3, ROOT_2 / 3]])
    items = star_item_vectors(rows, owner, private, sums, degrees, 2)
    np.testing.assert_allclose(items.numpy(), [[(1 / ROOT_2 + 1) / 3, 1], [(3 + 1 / ROOT_2) / 3, 1 / 3]])


def test_layer_weights_by_hand():
    assert layer_weights(1) == (1 / 2, 1 / 2, 0)
    assert layer_weights(2) == (2 / 3, 1 / 3, 1 / 3)
    assert layer_weights(3) == (2 / 4, 2 / 4, 1 / 4)
    assert layer_weights(4) == (3 / 5, 2 / 5, 2 / 5)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("degree", [1, 2, 5])
def test_equals_propagation_over_the_normalised_adjacency(layers, degree):
    """Dense LightGCN on a graph of the user, its items and one item that nobody is joined to."""
    generator = np.random.default_rng(degree)
    embeddings = generator.normal(size=(degree + 2, 3))
    adjacency = np.zeros((degree + 2, degree + 2))
    adjacency[0, 1 : degree + 1] = adjacency[1 : degree + 1, 0] = 1
    root = np.sqrt(np.maximum(adjacency.sum(axis=1), 1))
    layer, total = embeddings, embeddings.copy()
    for _ in range(layers):
        layer = adjacency / root[:, None] / root @ layer
        total += layer
    total /= layers + 1
    private, rows = tensor(embeddings[:1]), tensor(embeddings[1 : degree + 1])
    stars = Stars(
        torch.zeros(degree, dtype=torch.long), torch.arange(degree), torch.zeros(degree, dtype=torch.long),
        torch.tensor([degree]),
    )  # fmt: skip
    encoded = LightGCN(layers).encode(private, rows, torch.ones(degree, dtype=torch.float64), stars, True)
    np.testing.assert_allclose(encoded.users.numpy(), np.tile(total[0], (degree, 1)), atol=1e-12)
    np.testing.assert_allclose(encoded.targets.numpy(), total[1 : degree + 1], atol=1e-12)
    np.testing.assert_allclose(encoded.scale * embeddings[-1], total[-1], atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_ranking_vectors_give_lightgcns_scores(layers):
    generator = np.random.default_rng(0)
    table = generator.normal(size=(6, 4)).astype(np.float32)
    private = generator.normal(size=(2, 4)).astype(np.float32)
    history = Rows(np.array([0, 2, 3, 1], np.int32), np.array([0, 3]), np.array([3, 4]))
    vectors = LightGCN(layers).user_vectors(table, history, private)
    for u, items in enumerate(([0, 2, 3], [1])):
        sums = tensor(table[items].sum(axis=0, keepdims=True))
        whole = star_user_vectors(tensor(private[u : u + 1]), sums, torch.tensor([len(items)]), layers)
        expected = whole.numpy() @ (table.T / (layers + 1))
        np.testing.assert_allclose(vectors[u] @ table.T, expected[0], rtol=1e-4, atol=1e-6)


def test_the_schedule_of_item_convolutions():
    """Every h rounds, in every round, never; LightGCN always."""

    def rounds(interval):
        encoder = build_encoder(config_of(**{"item-refresh-interval": interval}))
        return [t for t in range(1, 41) if encoder.refreshes(t)]

    assert rounds(20) == [20, 40]
    assert rounds(15) == [15, 30]
    assert rounds(1) == list(range(1, 41))
    assert rounds(0) == []
    assert all(build_encoder(config_of(**LIGHT)).refreshes(t) for t in range(1, 41))


def test_build_encoder_takes_its_keys():
    assert build_encoder(config_of()) == FastGNN(0.25, 0.75, True, 1.0, 20)
    assert build_encoder(config_of(**LIGHT, **{"num-layers": 3})) == LightGCN(3)
