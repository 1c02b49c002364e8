"""The local step compiled for CPUs: one user after the other, the negatives in blocks that stay in the first-level cache.

Covers what the default recipes use: a shared negative set, one SGD step, no deviation from the table. Everything else goes
through `autograd_step`, and a test holds the two together. A user's result does not depend on who else is in the call, to the
last bit: the loop never mixes users.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastpfrec_flwr.addresses import prefetch
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.products import NARROW, WIDTH, add_transposed_product, multiply, multiply_narrow

_LOG2E = np.float32(math.log2(math.e))
# Negatives per block: block, its gradient and its scores are some 40 KB together.
_BLOCK = 64
_ROWS_AHEAD, _LINE = 12, 64


@compiled
def _sigmoid_times(values: Any, count: int, scale: Any, scratch: Any) -> None:
    """Replace the first `count` of `values` (float32) by scale * sigmoid(x); relative error below 4e-7. scratch int32."""
    power = scratch.view(np.float32)
    for j in range(count):
        t = min(max(-values[j] * _LOG2E, np.float32(-120.0)), np.float32(120.0))
        # e^-x = 2^whole 2^part: the exponent bits for the first, a polynomial for the second.
        whole = np.float32(np.floor(t + np.float32(0.5)))
        part = t - whole
        scratch[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        series = np.float32(0.0013333558) + part * np.float32(0.00015403530)
        series = np.float32(0.05550411) + part * (np.float32(0.009618129) + part * series)
        series = np.float32(0.6931472) + part * (np.float32(0.24022651) + part * series)
        values[j] = np.float32(1.0) + part * series
    for j in range(count):
        values[j] = scale / (np.float32(1.0) + values[j] * power[j])


@compiled
def _softplus_sum(scores: Any, rows: int, stride: int, columns: int) -> float:
    """Sum of ln(1 + e^x) over the first `columns` of `rows` rows that lie `stride` apart in `scores`."""
    total = 0.0
    for j in range(rows):
        for i in range(columns):
            x = float(scores[j * stride + i])
            total += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return total


@compiled
def compiled_step(
    table: Any,
    weights: Any,
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
    """One SGD step for users `first` to `last` of a cohort.

    Parameters
    ----------
    table : (items, k) float32. weights : (items,) float32 norm weights. private : (users, k) float32.
    items, pointer, own_counts : the cohort's `LocalGraphs`.
    rows, row_pointer, edge_slots, negative_slots : its `CohortPlan`, with a shared negative set.
    settings : `StepSettings`.
    changes : (touched, k) float32, receives -learning rate x gradient.
    private_out : (users, k) float32, receives the new private vectors.
    losses : (users,) float64, receives each user's loss where `settings.report_loss`.
    """
    s = settings
    k = table.shape[1]
    width = negative_slots.shape[1]
    # Columns beyond k, and targets beyond n, are zeros that fill up the products' tiles.
    wide = -(-k // WIDTH) * WIDTH
    widest = 1
    for u in range(first, last):
        widest = max(widest, own_counts[u])
    widest = -(-widest // NARROW) * NARROW
    block = np.zeros((_BLOCK, wide), np.float32)
    block_gradient = np.empty((_BLOCK, wide), np.float32)
    targets_buffer = np.zeros((widest, wide), np.float32)
    users_buffer = np.zeros((widest, wide), np.float32)
    gradient_buffer = np.empty((widest, wide), np.float32)
    users_across = np.empty(wide * widest, np.float32)
    scores_buffer = np.empty(_BLOCK * widest, np.float32)
    scratch = np.empty(_BLOCK * widest, np.int32)
    positives, lift, lengths = np.empty(widest, np.float32), np.empty(widest, np.float32), np.empty(widest, np.float32)
    total, gradient_sum, private_gradient = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    # Rows of a large table come from memory one by one: a part of the time was waiting for them.
    start_of_table, row_bytes = table.ctypes.data, 4 * k
    for u in range(first, last):
        start, stop = pointer[u], pointer[u + 1]
        n, degree = own_counts[u], stop - start
        across = -(-n // NARROW) * NARROW
        whole_tiles = -(-n // 4) * 4  # rows of the users' gradient; those beyond n are never read
        count = width
        while count > 0 and negative_slots[u, count - 1] < 0:
            count -= 1
        p = private[u]
        for c in range(k):
            total[c] = np.float32(0.0)
        for q in range(start, stop):
            row = table[items[q]]
            weight = weights[items[q]]
            for c in range(k):
                total[c] += weight * row[c]
        left = degree - 1 if s.leave_one_out else degree
        # With its only item left out a user's sum is empty: zero exactly, not what rounding leaves of a difference.
        spread = np.float32(s.neighbour_weight / math.sqrt(left)) if left > 0 else np.float32(0.0)
        # A refreshed target is own E_i + pull p_u (one convolution over the star), otherwise E_i itself.
        own = s.user_weight if s.refresh else np.float32(1.0)
        pull = np.float32(s.neighbour_weight / math.sqrt(max(degree, 1))) if s.refresh else np.float32(0.0)
        targets, users, gradient = targets_buffer[:n], users_buffer[:n], gradient_buffer[:n]
        turned = users_across[: wide * across].reshape(wide, across)  # (k, n): the users' vectors as columns
        scores = scores_buffer[: _BLOCK * across].reshape(
            _BLOCK, across
        )  # of a block's negatives by the user's targets
        for i in range(n):
            row = table[items[start + i]]
            out = weights[items[start + i]] if s.leave_one_out else np.float32(0.0)
            for c in range(k):
                users[i, c] = s.user_weight * p[c] + spread * (total[c] - out * row[c])
                targets[i, c] = own * row[c] + pull * p[c]
            if s.cosine:
                square = np.float32(0.0)
                for c in range(k):
                    square += users[i, c] * users[i, c]
                lengths[i] = max(np.float32(math.sqrt(square)), np.float32(1e-12))
                for c in range(k):
                    users[i, c] /= lengths[i]
            positive = np.float32(0.0)
            for c in range(k):
                positive += users[i, c] * targets[i, c]
            positives[i] = positive
            lift[i] = np.float32(0.0)
        for i in range(n, across):
            positives[i] = np.float32(0.0)
            lift[i] = np.float32(0.0)
        for c in range(wide):
            for i in range(n):
                turned[c, i] = users[i, c]
            for i in range(n, across):
                turned[c, i] = np.float32(0.0)
        for i in range(whole_tiles):
            for c in range(wide):
                gradient_buffer[i, c] = np.float32(0.0)
        loss = 0.0
        step = -s.item_learning_rate
        shrink = step * s.l2 * np.float32(n) / np.float32(max(count, 1))
        for begin in range(0, count, _BLOCK):
            size = min(_BLOCK, count - begin)
            for j in range(size):
                if begin + j + _ROWS_AHEAD < count:
                    ahead = start_of_table + row_bytes * rows[negative_slots[u, begin + j + _ROWS_AHEAD]]
                    for line in range(0, row_bytes, _LINE):
                        prefetch(ahead + line)
                row = table[rows[negative_slots[u, begin + j]]]
                for c in range(k):
                    block[j, c] = row[c]
            multiply_narrow(block, turned, size, wide, across, scores)
            if s.cosine:
                push = s.negative_weight / np.float32(count)
                for j in range(size):
                    for i in range(n):
                        over = scores[j, i] - s.margin
                        if s.report_loss and over > 0:
                            loss += push * over
                        scores[j, i] = push if over > 0 else np.float32(0.0)
            else:
                for j in range(size):
                    for i in range(across):
                        scores[j, i] -= positives[i]
                if s.report_loss:
                    loss += _softplus_sum(scores_buffer, size, across, n) / count
                _sigmoid_times(scores_buffer, size * across, np.float32(1.0 / count), scratch)
                for j in range(size):
                    for i in range(across):
                        lift[i] += scores[j, i]
            # scores now holds dLoss/dscore of the negatives; what pushes them down lifts the positives by its sum.
            add_transposed_product(scores_buffer, block, whole_tiles, across, size, gradient_buffer)
            multiply(scores_buffer, users_buffer, size, across, n, block_gradient)
            for j in range(size):
                change = changes[negative_slots[u, begin + j]]
                for c in range(k):
                    change[c] = step * block_gradient[j, c] + shrink * block[j, c]
        if s.cosine:
            for i in range(n):
                lift[i] = np.float32(1.0)
                loss += 1.0 - float(positives[i])
        losses[u] = loss
        for c in range(k):
            gradient_sum[c] = np.float32(0.0)
            private_gradient[c] = np.float32(0.0)
        for i in range(n):
            change = changes[edge_slots[start + i]]
            for c in range(k):
                gradient[i, c] -= lift[i] * targets[i, c]
                direct = -lift[i] * users[i, c]
                change[c] = own * direct + s.l2 * table[items[start + i], c]
                private_gradient[c] += pull * direct
            if s.cosine:
                along = np.float32(0.0)
                for c in range(k):
                    along += gradient[i, c] * users[i, c]
                for c in range(k):
                    gradient[i, c] = (gradient[i, c] - along * users[i, c]) / lengths[i]
            for c in range(k):
                gradient_sum[c] += gradient[i, c]
        for q in range(start, stop):
            change = changes[edge_slots[q]]
            factor = spread * weights[items[q]]
            if q - start >= n:
                for c in range(k):
                    change[c] = step * factor * gradient_sum[c]
            elif s.leave_one_out:
                for c in range(k):
                    change[c] = step * (change[c] + factor * (gradient_sum[c] - gradient[q - start, c]))
            else:
                for c in range(k):
                    change[c] = step * (change[c] + factor * gradient_sum[c])
        if s.tangent:
            for t in range(row_pointer[u], row_pointer[u + 1]):
                change, row = changes[t], table[rows[t]]
                along = np.float32(0.0)
                for c in range(k):
                    along += change[c] * row[c]
                for c in range(k):
                    change[c] -= along * row[c]
        for c in range(k):
            slope = s.user_weight * gradient_sum[c] + private_gradient[c] + s.user_l2 * p[c]
            private_out[u, c] = p[c] - s.user_learning_rate * slope
