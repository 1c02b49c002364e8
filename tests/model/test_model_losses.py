"""BPR and cosine contrastive losses: values and gradients worked out by hand."""

import math

import torch

from fastpfrec_flwr.model.losses import bpr_losses, ccl_losses, unit

ALL = torch.tensor([[True, True]])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_bpr_value_and_gradient_by_hand():
    positive = torch.tensor([1.0], requires_grad=True)
    negative = torch.tensor([[0.5, 3.0]], requires_grad=True)
    loss = bpr_losses(positive, negative, ALL)
    # margins 1/2 and -2: loss (ln(1 + e^-1/2) + ln(1 + e^2)) / 2
    torch.testing.assert_close(loss, torch.tensor([(math.log1p(math.exp(-0.5)) + math.log1p(math.exp(2))) / 2]))
    loss.sum().backward()
    pushes = [sigmoid(-0.5) / 2, sigmoid(2.0) / 2]
    torch.testing.assert_close(negative.grad, torch.tensor([pushes]))
    torch.testing.assert_close(positive.grad, torch.tensor([-sum(pushes)]))


def test_bpr_counts_only_valid_negatives():
    valid = torch.tensor([[True, False], [False, False]])
    positive = torch.tensor([1.0, 2.0], requires_grad=True)
    negative = torch.tensor([[0.0, 50.0], [50.0, 50.0]], requires_grad=True)
    loss = bpr_losses(positive, negative, valid)
    torch.testing.assert_close(loss, torch.tensor([math.log1p(math.exp(-1)), 0.0]))
    loss.sum().backward()
    assert not negative.grad[~valid].any()


def test_bpr_survives_scores_far_apart():
    loss = bpr_losses(torch.tensor([-500.0]), torch.tensor([[500.0, 500.0]]), ALL)
    torch.testing.assert_close(loss, torch.tensor([1000.0]))


def test_bpr_row_gradients_by_hand():
    """u = (1, 2), E_i = (1, 0), one negative E_j = (0, 1): the score difference is -1."""
    user = torch.tensor([1.0, 2.0], requires_grad=True)
    item = torch.tensor([1.0, 0.0], requires_grad=True)
    other = torch.tensor([0.0, 1.0], requires_grad=True)
    bpr_losses((user @ item)[None], (user @ other)[None, None], torch.tensor([[True]])).sum().backward()
    push = sigmoid(1.0)
    torch.testing.assert_close(item.grad, torch.tensor([-push, -2 * push]))
    torch.testing.assert_close(other.grad, torch.tensor([push, 2 * push]))
    torch.testing.assert_close(user.grad, torch.tensor([-push, push]))


def test_ccl_value_and_gradient_by_hand():
    positive = torch.tensor([0.9], requires_grad=True)
    negative = torch.tensor([[0.6, 0.3]], requires_grad=True)
    # margin 0.4, W = 10: 1 - 0.9 + 10 * (0.2 + 0) / 2
    loss = ccl_losses(positive, negative, ALL, 0.4, 10.0)
    torch.testing.assert_close(loss, torch.tensor([0.1 + 1.0]))
    loss.sum().backward()
    torch.testing.assert_close(positive.grad, torch.tensor([-1.0]))
    torch.testing.assert_close(negative.grad, torch.tensor([[5.0, 0.0]]))


def test_ccl_counts_only_valid_negatives():
    valid = torch.tensor([[True, False]])
    loss = ccl_losses(torch.tensor([1.0]), torch.tensor([[0.6, 0.9]]), valid, 0.4, 10.0)
    torch.testing.assert_close(loss, torch.tensor([2.0]))


def test_unit_rows_and_their_gradient_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    out = unit(rows)
    torch.testing.assert_close(out, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    # d(u_x / |u|) = (1 - 0.36, -0.48) / 5
    (gradient,) = torch.autograd.grad(out[0, 0], rows)
    torch.testing.assert_close(gradient[0], torch.tensor([0.128, -0.096]))
