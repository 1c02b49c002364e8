"""The compiled local step and the scores of FedNCF's network, see `layouts.MlpLayout` for the formula.

With x_t = W_user p + W_item E_t + b, h_t = relu(x_t), a score is y_t = (g p) E_t + v h_t. From dLoss/dy_t = s_t follow, with
d_t = s_t v [x_t > 0]:

    dE_t = s_t (g p) + W_item' d_t      dg = sum_t s_t p E_t     dv = sum_t s_t h_t      db = sum_t d_t
    dW_item = sum_t d_t E_t'            dW_user = db p'          dp = sum_t s_t g E_t + W_user' db

The two matrix products per user are `products`' kernels: a user's result does not depend on who else is in the call.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.products import WIDTH, add_transposed_product, multiply


@compiled
def network_step(
    table: Any,
    hidden: Any,
    network: Any,
    private: Any,
    pointer: Any,
    own_counts: Any,
    rows: Any,
    row_pointer: Any,
    edge_slots: Any,
    negative_slots: Any,
    first: int,
    last: int,
    settings: Any,
    extra: int,
    changes: Any,
    private_out: Any,
    losses: Any,
) -> None:
    """One SGD step with BPR and a shared negative set for users `first` to `last`.

    Parameters
    ----------
    table : (rows, k). hidden : (items, k) W_item E. network : `fedncf.Network`. private : (users, k).
    pointer, own_counts : of the cohort's `LocalGraphs`. rows, row_pointer, edge_slots, negative_slots : its `CohortPlan`.
    settings : l2, learning rates of items and of p, l2 of p, learning rate of the weights' rows, whether to report the loss.
    extra : rows of the network. changes : (touched + users extra, k), zeros, of each user its items' rows and then the network's.
    private_out : (users, k). losses : (users,).
    """
    l2, item_rate, user_rate, user_l2, weight_rate, report_loss = settings
    k = table.shape[1]
    wide = -(-k // WIDTH) * WIDTH
    width = negative_slots.shape[1]
    most = 0
    for u in range(first, last):
        most = max(most, own_counts[u])
    most += width
    item_weights = np.zeros((wide, wide), np.float32)
    for a in range(k):
        for c in range(k):
            item_weights[a, c] = network.item[a, c]
    slots = np.empty(most, np.int64)
    scores, slopes = np.empty(most, np.float32), np.empty(most, np.float32)
    inner, vectors = np.zeros((most, wide), np.float32), np.zeros((most, wide), np.float32)
    back = np.empty((most, wide), np.float32)
    weights_gradient = np.empty((wide, wide), np.float32)
    user_input, bias_gradient = np.empty(k, np.float32), np.empty(k, np.float32)
    output_gradient, product_gradient = np.empty(k, np.float32), np.empty(k, np.float32)
    for u in range(first, last):
        n, p = own_counts[u], private[u]
        count = width
        while count > 0 and negative_slots[u, count - 1] < 0:
            count -= 1
        size = n + count
        for i in range(n):
            slots[i] = edge_slots[pointer[u] + i]
        for j in range(count):
            slots[n + j] = negative_slots[u, j]
        for a in range(k):
            total = network.bias[a]
            for c in range(k):
                total += network.user[a, c] * p[c]
            user_input[a] = total
        for t in range(size):
            item = rows[slots[t]]
            score = np.float32(0.0)
            for c in range(k):
                vectors[t, c] = table[item, c]
                x = hidden[item, c] + user_input[c]
                inner[t, c] = max(x, np.float32(0.0))
                score += network.product[c] * p[c] * vectors[t, c] + network.output[c] * inner[t, c]
            scores[t] = score
            slopes[t] = np.float32(0.0)
        loss = 0.0
        share = np.float32(1.0 / count)
        for i in range(n):
            lift = np.float32(0.0)
            for j in range(n, size):
                x = scores[j] - scores[i]
                sigma = share / (np.float32(1.0) + np.exp(-x))
                lift += sigma
                slopes[j] += sigma
                if report_loss:
                    loss += (max(float(x), 0.0) + math.log1p(math.exp(-abs(float(x))))) / count
            slopes[i] = -lift
        losses[u] = loss
        for c in range(k):
            output_gradient[c] = np.float32(0.0)
            product_gradient[c] = np.float32(0.0)
            bias_gradient[c] = np.float32(0.0)
        for t in range(size):
            s = slopes[t]
            for c in range(k):
                product_gradient[c] += s * vectors[t, c]
                output_gradient[c] += s * inner[t, c]
                d = s * network.output[c] if inner[t, c] > 0 else np.float32(0.0)
                inner[t, c] = d
                bias_gradient[c] += d
        multiply(inner.reshape(-1), item_weights, size, wide, k, back)
        weights_gradient[:] = np.float32(0.0)
        add_transposed_product(inner.reshape(-1), vectors, k, wide, size, weights_gradient)
        for t in range(size):
            change = changes[slots[t] + u * extra]
            pull = l2 if t < n else l2 * np.float32(n) * share
            s = slopes[t]
            for c in range(k):
                change[c] = -item_rate * (s * network.product[c] * p[c] + back[t, c] + pull * vectors[t, c])
        own = row_pointer[u + 1] + u * extra
        for a in range(k):
            of_user, of_item = changes[own + a], changes[own + k + a]
            for c in range(k):
                of_user[c] = -weight_rate * bias_gradient[a] * p[c]
                of_item[c] = -weight_rate * weights_gradient[a, c]
        for c in range(k):
            changes[own + 2 * k, c] = -weight_rate * bias_gradient[c]
            changes[own + 2 * k + 1, c] = -weight_rate * output_gradient[c]
            changes[own + 2 * k + 2, c] = -weight_rate * product_gradient[c] * p[c]
        for c in range(k):
            gradient = network.product[c] * product_gradient[c] + user_l2 * p[c]
            for a in range(k):
                gradient += network.user[a, c] * bias_gradient[a]
            private_out[u, c] = p[c] - user_rate * gradient


@compiled
def network_scores(hidden: Any, inputs: Any, output: Any, first: int, last: int, scores: Any) -> None:
    """Add the network's part to the scores of users `first` to `last`.

    Parameters
    ----------
    hidden : (items, k) W_item E. inputs : (users, k) W_user p + b. output : (k,) v. scores : (users, items), added to.
    """
    k = hidden.shape[1]
    for u in range(first, last):
        for item in range(hidden.shape[0]):
            total = np.float32(0.0)
            for c in range(k):
                total += output[c] * max(hidden[item, c] + inputs[u, c], np.float32(0.0))
            scores[u, item] += total
