"""What observers read out of changes: by hand, on uploads whose answer is known, and on pure noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.audit.measuring import Figure, measure, reconstruction_curve
from fastpfrec_flwr.audit.observers import (
    auc,
    interaction_scores,
    node_surprises,
    over_uploads,
    precision_at_truth,
    touched_rows,
)
from fastpfrec_flwr.audit.recording import Seen
from fastpfrec_flwr.privacy.laws import NoiseLaw

ITEMS, K = 500, 16


def upload(generator, own, negatives=100, strength=1.0):
    """A change as one local step makes it: own rows along the user's direction, many negatives a little against it."""
    direction = generator.normal(size=K)
    direction /= np.linalg.norm(direction)
    change = np.zeros((ITEMS, K), np.float32)
    change[own] = strength * generator.uniform(0.5, 1, (len(own), 1)) * direction
    others = np.setdiff1d(np.arange(ITEMS), own)
    drawn = generator.choice(others, negatives, replace=False)
    change[drawn] = -0.1 * strength * generator.uniform(0.5, 1, (negatives, 1)) * direction
    return change


def scores_of(change, moved=None, negatives=100):
    return interaction_scores(change, (change != 0).any(axis=1) if moved is None else moved, negatives)


def truth_of(own):
    truth = np.zeros(ITEMS, np.bool_)
    truth[own] = True
    return truth


def test_auc_by_hand():
    truth = np.array([True, False, True, False])
    assert auc(np.array([4.0, 3.0, 2.0, 1.0]), truth) == 0.75  # pairs: 4>3, 4>1, 2<3, 2>1
    assert auc(np.array([1.0, 1.0, 1.0, 1.0]), truth) == 0.5
    assert math.isnan(auc(np.ones(3), np.ones(3, np.bool_)))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_auc_is_that_of_scipy(seed):
    generator = np.random.default_rng(seed)
    truth = generator.random(40) < 0.3
    truth[:2] = True, False
    scores = generator.integers(0, 8, 40).astype(float)
    u = stats.mannwhitneyu(scores[truth], scores[~truth]).statistic
    assert auc(scores, truth) == pytest.approx(u / (truth.sum() * (~truth).sum()))


def test_precision_by_hand():
    truth = np.array([True, False, True, False])
    assert precision_at_truth(np.array([4.0, 3.0, 2.0, 1.0]), truth) == 0.5
    assert precision_at_truth(np.array([4.0, 0.0, 5.0, 1.0]), truth) == 1.0
    assert math.isnan(precision_at_truth(np.ones(2), np.zeros(2, np.bool_)))


def test_touched_rows_by_hand():
    change = np.zeros((4, 2), np.float32)
    change[1, 0] = 1e-6
    change[2] = 3.0
    np.testing.assert_array_equal(touched_rows(change, NoiseLaw("laplace", 0.0)), [False, True, True, False])
    # Gaussian, sigma 1, two columns: |row|^2 has mean 2 and sd 2; 18 is 8 sd above, the border is 10.
    np.testing.assert_array_equal(touched_rows(change, NoiseLaw("gaussian", 1.0)), [False, False, True, False])
    change[3] = 2.2, 2.2  # 9.68
    assert not touched_rows(change, NoiseLaw("gaussian", 1.0))[3]


@pytest.mark.parametrize(("kind", "draw"), [("laplace", "laplace"), ("gaussian", "normal")])
def test_noise_alone_touches_hardly_anything(kind, draw):
    noise = getattr(np.random.default_rng(1), draw)(0, 0.3, (4000, 64)).astype(np.float32)
    assert touched_rows(noise, NoiseLaw(kind, 0.3)).mean() < 0.004


@pytest.mark.parametrize(("scale", "least"), [(0.0, 1.0), (0.02, 0.99)])
def test_items_are_read_off_an_upload(scale, least):
    generator = np.random.default_rng(2)
    own = generator.choice(ITEMS, 25, replace=False)
    change = upload(generator, own) + generator.laplace(0, max(scale, 1e-12), (ITEMS, K)).astype(np.float32)
    scores = scores_of(change, touched_rows(change, NoiseLaw("laplace", scale + 1e-12)))
    assert auc(scores, truth_of(own)) >= least
    assert precision_at_truth(scores, truth_of(own)) >= least - 0.1


def test_scores_depend_neither_on_size_nor_on_where_the_user_points():
    generator = np.random.default_rng(3)
    change = upload(generator, np.arange(20))
    scores = scores_of(change)
    np.testing.assert_allclose(scores_of(change * np.float32(7)), scores, rtol=1e-4, atol=1e-5)
    turned = np.linalg.qr(generator.normal(size=(K, K)))[0].astype(np.float32)
    np.testing.assert_allclose(scores_of(change @ turned), scores, rtol=1e-3, atol=1e-4)
    assert np.sqrt(np.mean(scores**2)) == pytest.approx(1)


def test_pure_noise_tells_nothing_and_more_uploads_tell_more():
    generator = np.random.default_rng(4)
    blind, one, all_of_them = [], [], []
    for _ in range(60):
        own = generator.choice(ITEMS, 25, replace=False)
        truth = truth_of(own)
        noise = generator.normal(0, 0.15, (9, ITEMS, K)).astype(np.float32)
        blind.append(auc(scores_of(noise[8], np.zeros(ITEMS, np.bool_)), truth))
        changes = [upload(generator, own) + each for each in noise[:8]]
        noisy = [scores_of(change, touched_rows(change, NoiseLaw("gaussian", 0.15))) for change in changes]
        sums = over_uploads(noisy)
        one.append(auc(sums[0], truth))
        all_of_them.append(auc(sums[-1], truth))
    assert abs(np.mean(blind) - 0.5) < 4 * np.std(blind) / np.sqrt(60)
    assert 0.55 < np.mean(one) < np.mean(all_of_them)


def test_many_items_moved_as_far_as_the_negatives_are_told_by_their_number():
    """Sixty items against 100 negatives that move just as far: nothing but the count says which end is which."""
    generator = np.random.default_rng(5)
    own = generator.choice(ITEMS, 60, replace=False)
    change = upload(generator, own)
    change /= np.maximum(np.linalg.norm(change, axis=1, keepdims=True), 1e-9)
    assert auc(scores_of(change), truth_of(own)) == 1.0
    assert auc(scores_of(-change), truth_of(own)) == 1.0
    assert auc(scores_of(change, negatives=60), truth_of(own)) < 0.1


def test_where_noise_hides_the_negatives_what_stands_out_are_the_positives():
    generator = np.random.default_rng(6)
    found = []
    for _ in range(10):
        own = generator.choice(ITEMS, 20, replace=False)
        change = upload(generator, own, strength=4.0) + generator.normal(0, 0.4, (ITEMS, K)).astype(np.float32)
        moved = touched_rows(change, NoiseLaw("gaussian", 0.4))
        assert moved.sum() < 40
        found.append(auc(scores_of(change, moved), truth_of(own)))
    assert min(found) > 0.9


def test_an_empty_upload_scores_nothing():
    np.testing.assert_array_equal(scores_of(np.zeros((5, 3), np.float32)), np.zeros(5))


def test_what_is_popular_everywhere_is_no_surprise():
    scores = np.ones((5, 3)) + np.random.default_rng(1).normal(0, 0.01, (5, 3))
    scores[:, 0] += 9.0
    scores[2, 1] += 5.0
    surprises = node_surprises(scores)
    assert np.abs(surprises[:, 0]).max() < 4
    assert surprises[2, 1] > 50


def test_surprises_by_hand():
    """Three nodes: the others of the first have 1 and 3, mean 2, variance 1; of the second 5 and 3; of the third 5 and 1."""
    found = node_surprises(np.array([[5.0], [1.0], [3.0]]))
    variances = np.array([1.0, 1.0, 4.0])
    np.testing.assert_allclose(found[:, 0], np.array([3.0, -3.0, 0.0]) / np.sqrt(variances + 1.0))


def test_figures_by_hand():
    assert Figure.of([0.5, math.nan, 0.7], [0.1, 0.9, 0.3]).value == pytest.approx(0.6)
    assert Figure.of([0.5, math.nan, 0.7], [0.1, 0.9, 0.3]).chance == pytest.approx(0.2)
    assert Figure.of([0.5, 0.7], [0, 0]).margin == pytest.approx(1.96 * math.sqrt(0.02) / math.sqrt(2))
    assert Figure.of([math.nan], [0.1]).to_dict() == {"value": None, "margin": None, "chance": None}


def test_measures_by_hand():
    """Four items, of which 0 and 1 are the user's; rows 0, 1, 2 move first, then 0 and 1."""
    truth = {7: np.array([True, True, False, False]), 8: np.zeros(4, np.bool_)}
    seen = {
        7: Seen(
            [np.array([True, True, True, False]), np.array([True, True, False, False])],
            [np.array([3.0, 1.0, 2.0, 0.0]), np.array([3.0, 2.0, 0.0, 0.0])],
            [np.array([1.0, 0.0, 0.0, 0.0])],
        ),
        8: Seen(),
    }
    found = measure(seen, truth)
    values = {name: figure.value for name, figure in found.items()}
    assert values["touched_precision_one"] == pytest.approx(2 / 3)
    assert values["touched_precision_all"] == values["touched_recall_one"] == values["touched_recall_all"] == 1
    assert found["touched_recall_one"].chance == 0.75
    assert found["touched_precision_one"].chance == 0.5
    assert values["node_auc_one"] == 0.75
    assert values["node_auc_all"] == 1
    assert values["reconstructed_one"] == 0.5
    assert values["reconstructed_all"] == 1
    assert values["server_auc_one"] == values["server_auc_all"] == 0.75
    assert [figure.value for figure in reconstruction_curve(seen, truth)] == [0.5, 1.0]
