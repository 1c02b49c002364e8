"""The trained central models: their parts by hand, and each on a checkerboard whose right answer is known."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from test_evaluation_central import SMALL, split_of

from fastpfrec_flwr.baselines.central_graph import (
    GraphSettings,
    draw_negatives,
    graph_top_k,
    info_nce,
    normalised_graph,
    train,
)
from fastpfrec_flwr.baselines.central_models import CENTRAL, central_lists, ease_top_k
from fastpfrec_flwr.config import ConfigError

USERS, ITEMS = 40, 30


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads on products this small wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def checkerboard(seed=0):
    """Even users have even items, odd ones odd items; of each row one item is for validation and two for the test."""
    generator = np.random.default_rng(seed)
    parts = ([], [], [])
    for user in range(USERS):
        row = generator.permutation(np.arange(user % 2, ITEMS, 2))
        for part, piece in zip(parts, (row[3:], row[:1], row[1:3]), strict=True):
            part.append(sorted(piece.tolist()))
    return split_of(ITEMS, *parts)


@pytest.mark.parametrize("model", [each for each in CENTRAL if each != "popularity"])
def test_a_model_finds_the_colour_of_the_square(model, monkeypatch):
    if model == "ials":
        pytest.importorskip("implicit")
    if model in ("mf", "lightgcn", "sgl", "xsimgcl"):
        from fastpfrec_flwr.baselines import central_graph

        short = GraphSettings(embedding_dim=16, layers=2, epochs=30, every=5, batch=128, learning_rate=0.05)
        if model == "mf":
            short = replace(short, embedding_dim=8, layers=0, epochs=60, every=20, batch=64, learning_rate=0.02)
        monkeypatch.setattr(central_graph, "default_settings", lambda kind, seed, device: short)
    split = checkerboard()
    lists = central_lists(model, split)
    # What is left of a user's colour: its validation and test items, and of the test alone two.
    for part, left in (("validation", 3), ("test", 2)):
        top = lists.of[part]
        assert top.shape == (USERS, 20)
        right = (top[:, :left] % 2 == np.arange(USERS)[:, None] % 2).mean()
        assert right > 0.95, (model, part, right)


def test_ease_by_its_definition():
    """B minimises |X - X B|^2 + l2 |B|^2 with a zero diagonal: its off-diagonal gradient vanishes."""
    generator = np.random.default_rng(1)
    table = (generator.random((25, 8)) < 0.4).astype(float)
    gram = table.T @ table
    inverse = np.linalg.inv(gram + 3.0 * np.eye(8))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    gradient = gram @ weights - gram + 3.0 * weights
    np.fill_diagonal(gradient, 0.0)
    assert np.abs(gradient).max() < 1e-10
    split = split_of(8, [np.flatnonzero(row).tolist() for row in table])
    scores = np.where(table > 0, -np.inf, table @ weights)
    got = ease_top_k(split, "validation", 3.0, top_k=2)
    for user in range(25):
        left = int((table[user] == 0).sum())
        assert got[user, : min(left, 2)].tolist() == np.argsort(-scores[user])[: min(left, 2)].tolist()


def test_ease_refuses_a_large_catalogue():
    with pytest.raises(ConfigError, match="at most"):
        ease_top_k(split_of(20_000, [[0], [1]]), "validation", 1.0)


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match="must be one of popularity"):
        central_lists("svd", SMALL)


def test_the_graph_by_hand():
    # Users 0 {0, 1} and 1 {1}; degrees: users 2, 1, items 1, 2.
    graph = normalised_graph(np.array([0, 0, 1]), np.array([0, 1, 1]), 2, 2, "cpu").to_dense().numpy()
    expected = np.zeros((4, 4))
    expected[0, 2], expected[0, 3], expected[1, 3] = 1 / math.sqrt(2), 1 / 2, 1 / math.sqrt(2)
    np.testing.assert_allclose(graph, expected + expected.T, atol=1e-7)


def test_a_product_has_the_gradient_of_the_dense_one():
    from fastpfrec_flwr.baselines.central_graph import _Product

    graph = normalised_graph(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), 3, 2, "cpu")
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = []
    for product in (_Product.apply, lambda matrix, dense: matrix.to_dense() @ dense):
        leaf = rows.clone().requires_grad_()
        (product(graph, product(graph, leaf)) ** 2).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


def test_negatives_are_what_the_user_has_not_and_otherwise_uniform():
    generator = np.random.default_rng(0)
    owned = np.sort(np.array([0 * 10 + 3, 0 * 10 + 4, 1 * 10 + 0]))
    users = np.repeat([0, 1], 20_000)
    drawn = draw_negatives(generator, users, owned, 10)
    counts = np.bincount(drawn[:20_000], minlength=10)
    assert counts[[3, 4]].sum() == 0
    # Each of 8 items 2,500 times, standard deviation 47.
    assert np.abs(np.delete(counts, [3, 4]) - 2500).max() < 5 * 47
    assert (drawn[20_000:] != 0).all()


def test_info_nce_by_hand():
    one = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    # Likeness 1 to itself and 0 to the other, temperature 0.5: -log(e^2 / (e^2 + 1)).
    assert info_nce(one, one, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)


@pytest.mark.parametrize("kind", ["mf", "lightgcn", "sgl", "xsimgcl"])
def test_the_same_seed_gives_the_same_model(kind):
    settings = GraphSettings(embedding_dim=4, layers=0 if kind == "mf" else 2, epochs=3, batch=64)
    pairs = sparse.csr_array((np.random.default_rng(2).random((20, 15)) < 0.3).astype(np.float32))
    first, again = (train(pairs, kind, settings) for _ in range(2))
    assert first.users.tobytes() == again.users.tobytes()
    assert first.epochs == 3
    other = train(pairs, kind, GraphSettings(**{**vars(settings), "seed": 2}))
    assert first.users.tobytes() != other.users.tobytes()


def test_epochs_are_chosen_on_validation_and_the_test_learns_from_both():
    split = checkerboard()
    settings = GraphSettings(embedding_dim=4, layers=2, epochs=20, every=5, patience=1, batch=64, learning_rate=0.02)
    lists, epochs = graph_top_k(split, "lightgcn", settings)
    assert epochs in (5, 10, 15, 20)
    for user in range(USERS):
        seen = split.train.items[split.train.indptr[user] : split.train.indptr[user + 1]]
        unseen = split.validation.items[split.validation.indptr[user] : split.validation.indptr[user + 1]]
        assert not set(lists["validation"][user]) & set(seen)
        assert not set(lists["test"][user]) & (set(seen) | set(unseen))
