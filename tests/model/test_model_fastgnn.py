"""Propagation on a star against figures worked out by hand."""

import math

import numpy as np
import pytest
import torch

from fastpfrec_flwr.model.fastgnn import (
    neighbourhood_sums,
    norm_weights,
    refresh_rows,
    target_user_vectors,
    user_vectors,
)
from fastpfrec_flwr.model.linear import NORM_FLOOR

# User 0 has three neighbours, user 1 has one, user 2 none.
ROWS = torch.tensor([[1.0, 0.0], [2.0, 4.0], [0.0, -1.0], [5.0, 6.0]])
OWNER = torch.tensor([0, 0, 0, 1])
PRIVATE = torch.tensor([[4.0, 8.0], [-4.0, 0.0], [1.0, 1.0]])
DEGREES = torch.tensor([3, 1, 0])
SUMS = torch.tensor([[3.0, 3.0], [5.0, 6.0], [0.0, 0.0]])


def test_sums_by_hand():
    assert torch.equal(neighbourhood_sums(ROWS, OWNER, 3), SUMS)


def test_user_vectors_by_hand():
    # 0.25 p + 0.75 d^(-1/2) sum
    got = user_vectors(PRIVATE, SUMS, DEGREES, 0.25, 0.75)
    r3 = math.sqrt(3)
    expected = [[1 + 0.75 * 3 / r3, 2 + 0.75 * 3 / r3], [-1 + 0.75 * 5, 0.75 * 6], [0.25, 0.25]]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_target_vectors_leave_the_target_out_of_sum_and_count():
    targets, owner = ROWS, OWNER
    got = target_user_vectors(PRIVATE, SUMS, DEGREES, targets, owner, 0.25, 0.75, True)
    scale = 0.75 / math.sqrt(2)
    expected = [
        [1 + scale * 2, 2 + scale * 3],  # (2, 4) + (0, -1)
        [1 + scale * 1, 2 + scale * -1],  # (1, 0) + (0, -1)
        [1 + scale * 3, 2 + scale * 4],  # (1, 0) + (2, 4)
        [-1.0, 0.0],  # nothing is left but the private vector
    ]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_target_vectors_without_leaving_out_are_the_user_vectors():
    got = target_user_vectors(PRIVATE, SUMS, DEGREES, ROWS, OWNER, 0.25, 0.75, False)
    torch.testing.assert_close(got, user_vectors(PRIVATE, SUMS, DEGREES, 0.25, 0.75)[OWNER])


def test_a_left_out_target_does_not_reach_its_own_score():
    """No gradient from a target's score to its own row through the user vector: otherwise the answer would leak."""
    rows = ROWS.clone().requires_grad_()
    sums = neighbourhood_sums(rows, OWNER, 3)
    users = target_user_vectors(PRIVATE, sums, DEGREES, rows, OWNER, 0.25, 0.75, True)
    for target in range(4):
        (gradient,) = torch.autograd.grad(users[target].sum(), rows, retain_graph=True)
        assert not gradient[target].any()


def test_refreshed_rows_by_hand():
    # c_p E + c_g d^(-1/2) p of the item's only neighbour
    got = refresh_rows(ROWS[[1, 3]], PRIVATE, torch.tensor([0, 1]), DEGREES, 0.5, 0.25)
    expected = [[1 + 0.25 * 4 / math.sqrt(3), 2 + 0.25 * 8 / math.sqrt(3)], [2.5 - 1.0, 3.0]]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_norm_weights_by_hand():
    table = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)  # norms 5 and 1
    long, short = 5 + NORM_FLOOR, 1 + NORM_FLOOR
    # a = 1: Z = 2 / sum of norms; w = sum / (2 norm)
    np.testing.assert_allclose(
        norm_weights(table, 1.0), [(long + short) / 2 / long, (long + short) / 2 / short], rtol=1e-6
    )
    # a = 2: Z = (1/5 + 1/1) / 6
    scale = (1 / long + 1 / short) / (long + short)
    np.testing.assert_allclose(norm_weights(table, 2.0), [long**-2 / scale, short**-2 / scale], rtol=1e-6)
    assert norm_weights(table, 0.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7])
def test_weighted_rows_keep_the_mean_norm(exponent):
    table = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    norms = np.linalg.norm(table, axis=1) + NORM_FLOOR
    weights = norm_weights(table, exponent)
    assert weights.dtype == np.float32
    np.testing.assert_allclose((weights * norms).mean(), norms.mean(), rtol=1e-5)


def test_norm_weights_of_a_zero_row_are_finite():
    table = np.zeros((4, 3), np.float32)
    table[0] = 1
    assert np.isfinite(norm_weights(table, 1.0)).all()
    assert np.isfinite(norm_weights(np.zeros((4, 3), np.float32), 1.0)).all()
