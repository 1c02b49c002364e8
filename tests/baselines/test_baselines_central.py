"""The trained central models, each on a checkerboard whose right answer is known, and how they are trained."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from fastpfrec_flwr.baselines.central_graph import Training, best_on_validation, graph_top_k, info_nce, train
from fastpfrec_flwr.baselines.central_models import CENTRAL, central_lists, ease_top_k
from fastpfrec_flwr.baselines.central_settings import GraphSettings, graph_settings
from fastpfrec_flwr.baselines.propagation import (
    Graph,
    torch_bpr,
)
from fastpfrec_flwr.baselines.row_adam import RowAdam
from fastpfrec_flwr.config import ConfigError
from tests.evaluation.test_evaluation_central import SMALL, split_of

USERS, ITEMS = 40, 30


pytestmark = pytest.mark.usefixtures("one_thread")


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
        from fastpfrec_flwr.baselines import central_models

        short = GraphSettings(embedding_dim=16, layers=2, epochs=30, every=5, batches=4, learning_rate=0.05)
        if model == "mf":
            short = replace(short, embedding_dim=8, layers=0, epochs=60, every=20, batches=8, learning_rate=0.05)
        monkeypatch.setattr(central_models, "graph_settings", lambda *arguments: short)
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


def test_info_nce_by_hand():
    one = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    # Likeness 1 to itself and 0 to the other, temperature 0.5: -log(e^2 / (e^2 + 1)).
    assert info_nce(one, one, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)


@pytest.mark.parametrize("kind", ["mf", "lightgcn", "sgl", "xsimgcl"])
def test_the_same_seed_gives_the_same_model(kind):
    settings = GraphSettings(embedding_dim=4, layers=0 if kind == "mf" else 2, epochs=3)
    pairs = sparse.csr_array((np.random.default_rng(2).random((20, 15)) < 0.3).astype(np.float32))
    first = train(pairs, kind, settings)
    torch.set_num_threads(2)
    again = train(pairs, kind, settings)
    assert first.users.tobytes() == again.users.tobytes()
    assert first.epochs == 3
    other = train(pairs, kind, GraphSettings(**{**vars(settings), "seed": 2}))
    assert first.users.tobytes() != other.users.tobytes()


def test_sampling_by_user_draws_everybody_alike():
    """Three users with 1, 2 and 5 items and one with none; of 30,000 pairs each of the three has a third, shared out evenly."""
    table = np.zeros((4, 6), np.float32)
    table[0, 2] = table[1, [0, 5]] = table[3, 1:] = 1
    training = Training(sparse.csr_array(table), "mf", GraphSettings(embedding_dim=2, layers=0, sampling="users"))
    drawn = training._by_user(30_000)
    assert (np.diff(drawn) >= 0).all()
    expected = 10_000 / np.array([1, 2, 2, 5, 5, 5, 5, 5])
    # Five standard deviations of each count.
    assert (np.abs(np.bincount(drawn, minlength=8) - expected) < 5 * np.sqrt(expected)).all()


def test_a_training_by_users_learns():
    settings = GraphSettings(embedding_dim=8, layers=2, epochs=40, every=10, learning_rate=0.05, sampling="users")
    assert best_on_validation(checkerboard(), "lightgcn", settings)[0] > 0.3


def test_row_adam_by_hand():
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    optimiser = RowAdam([table], lr=0.5, betas=(0.5, 0.75))
    # Mean squares 12.5 and 0.5. The first step is as long as lr whatever the gradient: lr g / sqrt(mean square).
    table.grad = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    optimiser.step()
    first = [[1 - 1.5 / 12.5**0.5, 2 - 2 / 12.5**0.5], [3.0, 4 - 0.5 / 0.5**0.5]]
    np.testing.assert_allclose(table.detach().numpy(), first, rtol=1e-6)
    # m = (0.25 g + 0) / (1 - 0.25), v = (0.1875 mean square) / (1 - 0.5625) in the second.
    table.grad = torch.zeros(2, 2)
    optimiser.step()
    ratio = 0.5 * (0.25 / 0.75) / (0.1875 / 0.4375) ** 0.5
    second = [
        [first[0][0] - ratio * 3 / 12.5**0.5, first[0][1] - ratio * 4 / 12.5**0.5],
        [3.0, first[1][1] - ratio / 0.5**0.5],
    ]
    np.testing.assert_allclose(table.detach().numpy(), second, rtol=1e-6)


def test_row_adam_of_rows_of_one_is_adam():
    generator = np.random.default_rng(4)
    ours, theirs = (torch.ones(7, 1, requires_grad=True) for _ in range(2))
    optimisers = RowAdam([ours], lr=0.1, eps=1e-8), torch.optim.Adam([theirs], lr=0.1, eps=1e-8)
    for _ in range(20):
        gradient = torch.tensor(generator.normal(size=(7, 1)), dtype=torch.float32)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for each in optimisers:
            each.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_training_by_rows_is_another_one_and_learns():
    split = checkerboard()
    settings = GraphSettings(embedding_dim=8, layers=2, epochs=40, every=10, learning_rate=0.05)
    by_rows, by_coordinates = (
        best_on_validation(split, "lightgcn", replace(settings, moment=moment)) for moment in ("row", "coordinate")
    )
    assert by_rows[0] > 0.9 * by_coordinates[0] > 0.3
    assert by_rows[0] != by_coordinates[0] or not np.array_equal(by_rows[2], by_coordinates[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moment": "rows"}, "moment of a central model must be one of coordinate, row, got 'rows'"),
        ({"sampling": "items"}, "sampling of a central model must be one of pairs, users, got 'items'"),
        ({"moment-memory": 1.0}, r"moment-memory of a central model must be in \[0, 1\), got 1.0"),
        ({"negatives": 0}, "negatives of a central model must be a whole number >= 1, got 0"),
        ({"epochs": 2.5}, "epochs of a central model must be a whole number >= 1, got 2.5"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ConfigError, match=message):
        graph_settings("lightgcn", changes)


@pytest.mark.parametrize("kind", ["mf", "lightgcn"])
def test_more_negatives_a_pair_are_a_mean_over_them(kind):
    """Where each user lacks one item alone all draws are the same, and their mean, L2 included, is that of one."""
    table = np.ones((6, 5), np.float32)
    table[np.arange(6), np.arange(6) % 5] = 0
    settings = GraphSettings(embedding_dim=4, layers=0 if kind == "mf" else 2, epochs=4, batches=2, l2=0.05)
    one, three = (train(sparse.csr_array(table), kind, replace(settings, negatives=number)) for number in (1, 3))
    np.testing.assert_allclose(three.users, one.users, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(three.items, one.items, rtol=1e-3, atol=1e-5)


def test_epochs_are_chosen_on_validation_and_the_test_learns_from_both():
    split = checkerboard()
    settings = GraphSettings(embedding_dim=4, layers=2, epochs=20, every=5, patience=1, learning_rate=0.02)
    lists, epochs = graph_top_k(split, "lightgcn", settings)
    assert epochs in (5, 10, 15, 20)
    for user in range(USERS):
        seen = split.train.items[split.train.indptr[user] : split.train.indptr[user + 1]]
        unseen = split.validation.items[split.validation.indptr[user] : split.validation.indptr[user + 1]]
        assert not set(lists["validation"][user]) & set(seen)
        assert not set(lists["test"][user]) & (set(seen) | set(unseen))


@pytest.mark.parametrize("kind", ["mf", "lightgcn", "sgl"])
def test_a_training_by_torch_alone_goes_the_same_way(kind, monkeypatch):
    """What runs on an accelerator: sparse products and BPR of torch (XSimGCL's noise is drawn by the device there)."""
    from fastpfrec_flwr.baselines import central_graph

    settings = GraphSettings(embedding_dim=8, layers=0 if kind == "mf" else 2, epochs=3)
    pairs = sparse.csr_array((np.random.default_rng(2).random((20, 15)) < 0.3).astype(np.float32))
    ours = train(pairs, kind, settings)
    thinned = Graph.thinned
    monkeypatch.setattr(central_graph, "bpr", torch_bpr)

    def with_matrix(graph, kept, device):
        found = thinned(graph, kept, device)
        return replace(found, matrix=found.as_torch("cpu"))

    monkeypatch.setattr(Graph, "thinned", with_matrix)
    theirs = train(pairs, kind, settings)
    np.testing.assert_allclose(ours.users, theirs.users, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.items, theirs.items, rtol=1e-3, atol=1e-4)
