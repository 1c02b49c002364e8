"""The graph of the central models, its layers, BPR, noise and negatives: by hand, and against torch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from fastpfrec_flwr.baselines.propagation import (
    Graph,
    add_noise,
    bpr,
    draw_negatives,
    mean_of_layers,
    noisy_layers,
    product,
    torch_bpr,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(seed=3, users=12, items=9, share=0.4):
    table = np.random.default_rng(seed).random((users, items)) < share
    table[:, 0] |= ~table.any(axis=1)
    return Graph.of(sparse.csr_array(table.astype(np.float32)), "cpu")


def dense_of(graph):
    return graph.as_torch("cpu").to_dense()


def rows_of(graph, width=16, seed=1):
    return torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(seed))


def test_the_graph_by_hand():
    # Users 0 {0, 1} and 1 {1}; degrees: users 2, 1, items 1, 2.
    graph = Graph.of(sparse.csr_array(np.array([[1.0, 1.0], [0.0, 1.0]])), "cpu")
    expected = np.zeros((4, 4))
    expected[0, 2], expected[0, 3], expected[1, 3] = 1 / math.sqrt(2), 1 / 2, 1 / math.sqrt(2)
    np.testing.assert_allclose(dense_of(graph).numpy(), expected + expected.T, atol=1e-7)
    # Without the pair (0, 1) everybody has one neighbour at most.
    thinned = graph.thinned(np.array([True, False, True]), "cpu")
    expected = np.zeros((4, 4))
    expected[0, 2] = expected[1, 3] = 1.0
    np.testing.assert_allclose(dense_of(thinned).numpy(), expected + expected.T, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [3, 16, 40])
def test_products_are_those_of_torch(threads, width):
    torch.set_num_threads(threads)
    graph = graph_of(users=300, items=200, share=0.1)
    by_torch = replace(graph, matrix=graph.as_torch("cpu"))
    rows, start = rows_of(graph, width), rows_of(graph, width, seed=2)
    before = start.clone()
    torch.testing.assert_close(product(graph, rows), product(by_torch, rows))
    torch.testing.assert_close(product(graph, rows, start), product(by_torch, rows) + start)
    assert torch.equal(start, before)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_the_mean_of_layers_and_its_gradient(layers):
    graph, found = graph_of(), []
    matrix = dense_of(graph)

    def by_definition(table):
        current, total = table, table
        for _ in range(layers):
            current = matrix @ current
            total = total + current
        return total / (layers + 1)

    for mean in (lambda table: mean_of_layers(table, graph, layers), by_definition):
        leaf = rows_of(graph).requires_grad_()
        final = mean(leaf)
        (final**2 * rows_of(graph, seed=5)).sum().backward()
        found.append((final.detach(), leaf.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_noisy_layers_and_their_gradient(kept):
    """Without noise by autograd; with it, what it adds has no gradient."""
    graph, found = graph_of(), []
    matrix = dense_of(graph)

    def by_definition(table):
        layers = [matrix @ table, matrix @ matrix @ table, matrix @ matrix @ matrix @ table]
        return sum(layers) / 3, layers[kept - 1]

    for noise, both in (
        (0.0, by_definition),
        (0.0, lambda table: noisy_layers(table, graph, 3, kept, 0.0, [1, 2, 3])),
        (0.3, lambda table: noisy_layers(table, graph, 3, kept, 0.3, [1, 2, 3])),
    ):
        leaf = rows_of(graph).requires_grad_()
        final, middle = both(leaf)
        ((final + 2 * middle) * rows_of(graph, seed=5)).sum().backward()
        found.append((final.detach(), middle.detach(), leaf.grad))
        assert noise == 0.0 or not torch.allclose(final, found[0][0], atol=0.05)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0][2], found[2][2])


def test_noise_has_a_length_and_the_signs_of_its_row():
    rows = torch.randn(1000, 20, generator=torch.Generator().manual_seed(1))
    rows[0] = 0.0
    noisy, again, other = rows.clone(), rows.clone(), rows.clone()
    add_noise(noisy, 0.2, 7)
    torch.set_num_threads(2)
    add_noise(again, 0.2, 7)
    add_noise(other, 0.2, 8)
    added = noisy - rows
    assert torch.equal(noisy, again)
    assert not torch.equal(noisy, other)
    assert (added[0] == 0).all()
    assert (torch.sign(added[1:]) == torch.sign(rows[1:])).all()
    torch.testing.assert_close(added[1:].norm(dim=1), torch.full((999,), 0.2), rtol=1e-4, atol=1e-5)
    # Coordinates before scaling are uniform: mean |x| over root mean x^2 is sqrt(3) / 2.
    assert (added[1:].abs().mean() / added[1:].square().mean().sqrt()).item() == pytest.approx(
        math.sqrt(3) / 2, rel=0.01
    )


@pytest.mark.parametrize("width", [5, 64])
def test_bpr_and_its_gradient_are_those_of_torch(width):
    graph, generator, found = graph_of(users=40, items=30), np.random.default_rng(1), []
    users = np.sort(generator.integers(40, size=500)).astype(np.int32)
    items, negatives = ((40 + generator.integers(30, size=500)).astype(np.int32) for _ in range(2))
    triples = [torch.from_numpy(each) for each in (users, items, negatives)]
    for threads, function in ((1, torch_bpr), (1, bpr), (2, bpr)):
        torch.set_num_threads(threads)
        leaf = (3 * rows_of(graph, width)).requires_grad_()
        loss = function(leaf, *triples)
        (2 * loss).backward()
        found.append((loss.detach(), leaf.grad))
    torch.testing.assert_close(found[0], found[1])
    assert torch.equal(found[1][1], found[2][1])


def test_negatives_are_what_the_user_has_not_and_otherwise_uniform():
    table = np.zeros((3, 10))
    table[0, [3, 4]] = table[1, 0] = 1.0
    table[2] = 1.0
    graph = Graph.of(sparse.csr_array(table), "cpu")
    users = np.repeat(np.array([0, 1, 2], np.int32), [20_000, 20_000, 5])
    drawn = draw_negatives(graph, users, 11) - 3
    counts = np.bincount(drawn[:20_000], minlength=10)
    assert counts[[3, 4]].sum() == 0
    # Each of 8 items 2,500 times, standard deviation 47.
    assert np.abs(np.delete(counts, [3, 4]) - 2500).max() < 5 * 47
    assert (drawn[20_000:40_000] != 0).all()
    assert ((drawn[40_000:] >= 0) & (drawn[40_000:] < 10)).all()
    torch.set_num_threads(2)
    assert (draw_negatives(graph, users, 11) - 3 == drawn).all()
    assert (draw_negatives(graph, users, 12) - 3 != drawn).any()
