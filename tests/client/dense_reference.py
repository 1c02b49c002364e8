"""The local step straight from the formulas, user by user, in float64 with dense tables: slow, plain, and independent."""

import numpy as np
import torch
from torch.nn.functional import softplus


def local_step(table, weights, private, own, neighbourhood, negatives, config, refresh):
    """One user's step.

    Parameters
    ----------
    table : (items, k), the user's whole copy Theta_i. private : (k,) p_u.
    own : N(u). neighbourhood : N'(u). negatives : of each positive, the list of items that it is held against.

    Returns
    -------
    (items, k) change of the whole table, (k,) new private vector, the loss without L2.
    """
    theta = torch.tensor(table, dtype=torch.float64, requires_grad=True)
    p = torch.tensor(private, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(weights, dtype=torch.float64)  # constants: no gradient through them
    c_p, c_g = config.user_weight, config.neighbour_weight
    loss = torch.zeros((), dtype=torch.float64)
    penalty = config.user_l2 / 2 * (p @ p)
    for i, against in zip(own, negatives, strict=True):
        others = [item for item in neighbourhood if not (config.leave_one_out and item == i)]
        user = c_p * p
        if others:
            user = user + c_g * len(others) ** -0.5 * torch.stack([w[item] * theta[item] for item in others]).sum(0)
        target = theta[i]
        if refresh:
            target = c_p * theta[i] + c_g * len(neighbourhood) ** -0.5 * p
        if config.loss == "ccl":
            user = user / torch.clamp(user.norm(), min=1e-12)
        positive = user @ target
        scores = torch.stack([user @ theta[j] for j in against])
        if config.loss == "ccl":
            loss = (
                loss + 1 - positive + config.negative_weight / len(against) * torch.relu(scores - config.margin).sum()
            )
        else:
            loss = loss + softplus(scores - positive).mean()
        penalty = penalty + config.l2 / 2 * theta[i] @ theta[i]
        for j in against:
            penalty = penalty + config.l2 / (2 * len(against)) * theta[j] @ theta[j]
    gradient, private_gradient = torch.autograd.grad(loss + penalty, (theta, p))
    with torch.no_grad():
        if config.unit_rows:
            gradient = gradient - (gradient * theta).sum(1, keepdim=True) * theta
        if config.local_optimizer == "adam":
            # First step of a fresh Adam, from its definition.
            gradient, private_gradient = adam_direction(gradient), adam_direction(private_gradient)
        change = -config.item_learning_rate * gradient
        moved = p - config.user_learning_rate * private_gradient
    return change.numpy(), moved.detach().numpy(), float(loss.detach())


def adam_direction(gradient, beta_1=0.9, beta_2=0.999, eps=1e-8):
    first = (1 - beta_1) * gradient / (1 - beta_1)
    second = (1 - beta_2) * gradient**2 / (1 - beta_2)
    return first / (second.sqrt() + eps)


def cohort_step(cohort, plan, config, refresh):
    """`local_step` for each user of a cohort, laid out as the plan's touched rows; checks that nothing else moves."""
    graphs = cohort.graphs
    changes = np.zeros((len(plan.rows), cohort.table.shape[1]))
    private = np.zeros_like(cohort.private, np.float64)
    losses = np.zeros(graphs.num_users)
    target = 0
    for u, own in enumerate(cohort.lists):
        neighbourhood = graphs.items[graphs.pointer[u] : graphs.pointer[u + 1]].tolist()
        if config.negatives == "shared":
            slots = [plan.negative_slots[u]] * len(own)
        else:
            slots = plan.negative_slots[target : target + len(own)]
        target += len(own)
        against = [plan.rows[row[row >= 0]].tolist() for row in slots]
        change, private[u], losses[u] = local_step(
            cohort.table, cohort.weights, cohort.private[u], own.tolist(), neighbourhood, against, config, refresh
        )
        mine = slice(plan.pointer[u], plan.pointer[u + 1])
        changes[mine] = change[plan.rows[mine]]
        untouched = np.setdiff1d(np.arange(len(cohort.table)), plan.rows[mine])
        assert not change[untouched].any(), "the plan lacks a row that the step changes"
    return changes, private, losses
