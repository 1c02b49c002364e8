"""PerFedRec's centres: what the server knows of communities of items."""

import numpy as np

from fastpfrec_flwr.baselines.federated.layouts import ClusterLayout, directions
from fastpfrec_flwr.data.synthetic import synthetic_interactions
from tests.baselines.small_models import K


def test_the_centres_find_communities_of_items():
    """Items of four communities around four directions: K-means on the rows alone puts each community into one cluster."""
    truth = synthetic_interactions().item_community
    generator = np.random.default_rng(0)
    taste = generator.standard_normal((4, K))
    rows = (taste[truth] + 0.4 * generator.standard_normal((len(truth), K)) + 2.0).astype(np.float32)
    layout = ClusterLayout(4)
    table = layout.start(rows, 3)
    assert len(table) == layout.rows(len(rows))
    assert layout.num_items(len(table)) == len(rows)
    for _ in range(15):
        layout.after_step(table)
    nearest = np.argmax(directions(table[: len(rows)]) @ table[-4:].T, axis=1)
    purity = sum(np.bincount(nearest[truth == community]).max() for community in range(4)) / len(truth)
    assert purity > 0.7
    np.testing.assert_array_equal(table[: len(rows)], rows)


def test_a_step_of_the_centres_by_hand():
    """Four items at the corners of a square about (5, 5), three centres of which the last is nearest to nobody."""
    items = np.array([[6, 6], [6, 4], [4, 6], [4, 4]], np.float32)
    right, left, nobody = [1.0, 0.1], [-1.0, 0.0], [0.0, 0.05]
    table = np.vstack([items, items, items, items, np.array([right, left, nobody], np.float32)])
    ClusterLayout(3).after_step(table)
    # (1, 1) and (1, -1) over sqrt 2 have the mean direction (1, 0), the other two (-1, 0).
    np.testing.assert_allclose(table[-3:], [[1, 0], [-1, 0], nobody], atol=1e-7)


def test_a_step_of_the_centres_is_that_of_lloyds_algorithm():
    generator = np.random.default_rng(2)
    layout, rows = ClusterLayout(5), generator.standard_normal((300, K)).astype(np.float32)
    table = layout.start(rows, 1)
    unit, before = directions(rows), table[-5:].copy()
    nearest = np.argmax(unit @ before.T, axis=1)
    means = np.array([unit[nearest == cluster].mean(axis=0) for cluster in range(5)])
    layout.after_step(table)
    np.testing.assert_allclose(table[-5:], means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)
