"""The local step with LightGCN on the star, in closed form and compiled: the fast way of `autograd_step`, held to it by a test.

Without leave-one-out a user has one vector u for all its positives, so every score is a product with u and every gradient follows
from two numbers per row: with y_i = u e_i, y_j = u E_j / (L + 1) and sigma_ij = sigmoid(y_j - y_i),

    dLoss/dy_i = -(1/S) sum_j sigma_ij        dLoss/dy_j = (1/S) sum_i sigma_ij
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.step_result import StepResult
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.model.linear import layer_weights
from fastpfrec_flwr.parallel import in_parallel

_USERS_PER_TASK = 4


class _Settings(NamedTuple):
    even: float
    odd: float
    above: float
    layers: float
    l2: float
    item_learning_rate: float
    user_learning_rate: float
    user_l2: float
    tangent: bool
    report_loss: bool


def lightgcn_step(
    item_table: NDArray[np.float32],
    private: NDArray[np.float32],
    graphs: LocalGraphs,
    plan: CohortPlan,
    config: RunConfig,
    report_loss: bool,
    threads: int,
    num_layers: int | None = None,
) -> StepResult:
    """One SGD step for each user of a cohort with a shared negative set, as `autograd_step` would take it.

    Parameters
    ----------
    item_table : (items, k). private : (users, k) p_u.
    num_layers : None is the configuration's; 0 is matrix factorisation: u = p_u, and items are their own rows.
    """
    layers = config.num_layers if num_layers is None else num_layers
    settings = _Settings(
        *layer_weights(layers), float(layers + 1), config.l2, config.item_learning_rate,
        config.user_learning_rate, config.user_l2, config.unit_rows, report_loss,
    )  # fmt: skip
    changes = np.empty((len(plan.rows), item_table.shape[1]), np.float32)
    private_out = np.empty_like(private)
    losses = np.zeros(graphs.num_users)

    def run(first: int) -> None:
        _steps(
            item_table, private, graphs.items, graphs.pointer, graphs.own_counts, plan.rows, plan.pointer,
            plan.edge_slots, plan.negative_slots, first, min(first + _USERS_PER_TASK, graphs.num_users), settings,
            changes, private_out, losses,
        )  # fmt: skip

    in_parallel(run, range(0, graphs.num_users, _USERS_PER_TASK), threads)
    return StepResult(changes, private_out, losses)


@compiled
def _steps(
    table: Any,
    private: Any,
    items: Any,
    pointer: Any,
    own_counts: Any,
    rows: Any,
    row_pointer: Any,
    edge_slots: Any,
    negative_slots: Any,
    first: int,
    last: int,
    settings: Any,
    changes: Any,
    private_out: Any,
    losses: Any,
) -> None:
    s = settings
    k = table.shape[1]
    width = negative_slots.shape[1]
    scores = np.empty(width, np.float32)
    slopes = np.empty(width, np.float32)
    total = np.empty(k, np.float64)
    user = np.empty(k, np.float64)
    shared = np.empty(k, np.float64)
    user_gradient = np.empty(k, np.float64)
    for u in range(first, last):
        start, stop, n = pointer[u], pointer[u + 1], own_counts[u]
        count = width
        while count > 0 and negative_slots[u, count - 1] < 0:
            count -= 1
        degree = stop - start
        root = 1.0 / math.sqrt(degree)
        total[:] = 0.0
        for q in range(start, stop):
            row = table[items[q]]
            for c in range(k):
                total[c] += row[c]
        for c in range(k):
            user[c] = s.even * private[u, c] + s.odd * root * total[c]
            shared[c] = s.odd * root * private[u, c] + s.above / degree * total[c]
        along = 0.0
        for c in range(k):
            along += user[c] * shared[c]
        for j in range(count):
            row = table[rows[negative_slots[u, j]]]
            score = 0.0
            for c in range(k):
                score += user[c] * row[c]
            scores[j] = score / s.layers
            slopes[j] = 0.0
        user_gradient[:] = 0.0
        lift, loss = 0.0, 0.0
        for q in range(start, stop):
            change = changes[edge_slots[q]]
            if q - start >= n:
                for c in range(k):
                    change[c] = 0.0
                continue
            row = table[items[q]]
            positive = along
            for c in range(k):
                positive += user[c] * row[c] / s.layers
            slope = 0.0
            for j in range(count):
                x = scores[j] - np.float32(positive)
                sigma = np.float32(1.0) / (np.float32(1.0) + np.exp(-x))
                slope += sigma
                slopes[j] += sigma
                if s.report_loss:
                    loss += (max(float(x), 0.0) + math.log1p(math.exp(-abs(float(x))))) / count
            slope /= count
            lift += slope
            for c in range(k):
                user_gradient[c] -= slope * (row[c] / s.layers + shared[c])
                change[c] = -slope / s.layers * user[c] + s.l2 * row[c]
        for j in range(count):
            row = table[rows[negative_slots[u, j]]]
            slope = slopes[j] / count
            change = changes[negative_slots[u, j]]
            for c in range(k):
                user_gradient[c] += slope / s.layers * row[c]
                change[c] = slope / s.layers * user[c] + s.l2 * n / count * row[c]
        # Through the sum S, which is in the user's vector and in every positive's.
        for q in range(start, stop):
            change = changes[edge_slots[q]]
            for c in range(k):
                change[c] += s.odd * root * user_gradient[c] - s.above / degree * lift * user[c]
        for t in range(row_pointer[u], row_pointer[u + 1]):
            change, row = changes[t], table[rows[t]]
            inward = 0.0
            if s.tangent:
                for c in range(k):
                    inward += change[c] * row[c]
            for c in range(k):
                change[c] = -s.item_learning_rate * (change[c] - inward * row[c])
        for c in range(k):
            gradient = s.even * user_gradient[c] - s.odd * root * lift * user[c] + s.user_l2 * private[u, c]
            private_out[u, c] = private[u, c] - s.user_learning_rate * gradient
        losses[u] = loss
