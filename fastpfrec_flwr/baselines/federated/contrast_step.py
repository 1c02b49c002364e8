"""The compiled step of PerFedRec++'s pre-training: InfoNCE between two noisy views of a user's own star.

An item i of the star is z_i = E_i / (L + 1) + odd d^(-1/2) p + above S / d (LightGCN on a star, see `model.lightgcn`; S is the sum
of the star's rows), an item j outside of it z_j = E_j / (L + 1). A view adds to each z a vector of length NOISE ||z|| with z's
signs, otherwise drawn uniformly, and brings the sum to unit length (SimGCL). With views z' and z'' and temperature T, the loss of a
user is the sum over its own items i of

    -log( exp(z'_i z''_i / T) / (exp(z'_i z''_i / T) + sum_j exp(z'_i z''_j / T)) ),   j over the round's sampled items.

The items of one star are no negatives of each other: to hold them apart would unlearn what they have in common. No gradient goes
through the noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import stream_value

NOISE = 0.1


@compiled
def noisy_view(plain: Any, key: Any, place: int, view: Any) -> float:
    """Write the unit vector of a noisy `plain` ((k,)) into `view`; returns the length before, at least 1e-12.

    key, place : of the draws; the same give the same view.
    """
    k = plain.shape[0]
    square, noise_square = 0.0, 0.0
    for c in range(k):
        bits = stream_value(key, np.uint64(place * k + c)) >> np.uint64(40)
        view[c] = np.float32((np.float64(bits) + 0.5) / 16777216.0)
        noise_square += float(view[c]) * float(view[c])
        square += float(plain[c]) * float(plain[c])
    factor = NOISE * math.sqrt(square) / math.sqrt(noise_square)
    total = 0.0
    for c in range(k):
        sign = 1.0 if plain[c] > 0 else (-1.0 if plain[c] < 0 else 0.0)
        view[c] = np.float32(plain[c] + sign * factor * view[c])
        total += float(view[c]) * float(view[c])
    length = max(math.sqrt(total), 1e-12)
    for c in range(k):
        view[c] = np.float32(view[c] / length)
    return length


@compiled
def contrast_step(
    local: Any,
    private: Any,
    keys: Any,
    pointer: Any,
    own_counts: Any,
    edge_slots: Any,
    negative_slots: Any,
    first: int,
    last: int,
    settings: Any,
    changes: Any,
    private_out: Any,
    losses: Any,
) -> None:
    """One SGD step for users `first` to `last`.

    Parameters
    ----------
    local : (touched, k), each user's own rows. private : (users, k). keys : (users,) uint64 streams of the views' noise.
    pointer, own_counts : of the stars. edge_slots, negative_slots : of the plan, places in `local`.
    settings : 1 / (L + 1), odd, above, temperature, learning rates of items and of p.
    changes : (touched, k), zeros. private_out : (users, k). losses : (users,).
    """
    share, odd, above, temperature, item_rate, user_rate = settings
    k = local.shape[1]
    width = negative_slots.shape[1]
    outside, outside_lengths = np.empty((width, k), np.float32), np.empty(width, np.float32)
    outside_gradient = np.empty((width, k), np.float32)
    one, other = np.empty(k, np.float32), np.empty(k, np.float32)
    one_gradient, other_gradient = np.empty(k, np.float32), np.empty(k, np.float32)
    plain, shared, shared_gradient = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    weights = np.empty(width, np.float32)
    for u in range(first, last):
        start, stop, n = pointer[u], pointer[u + 1], own_counts[u]
        degree = stop - start
        root = np.float32(odd / math.sqrt(degree))
        mean = np.float32(above / degree)
        count = width
        while count > 0 and negative_slots[u, count - 1] < 0:
            count -= 1
        for c in range(k):
            shared[c] = root * private[u, c]
            shared_gradient[c] = np.float32(0.0)
        for q in range(start, stop):
            for c in range(k):
                shared[c] += mean * local[edge_slots[q], c]
        for j in range(count):
            for c in range(k):
                plain[c] = share * local[negative_slots[u, j], c]
                outside_gradient[j, c] = np.float32(0.0)
            outside_lengths[j] = noisy_view(plain, keys[u], 2 * n + j, outside[j])
        loss = 0.0
        for i in range(n):
            slot = edge_slots[start + i]
            for c in range(k):
                plain[c] = share * local[slot, c] + shared[c]
            one_length = noisy_view(plain, keys[u], 2 * i, one)
            other_length = noisy_view(plain, keys[u], 2 * i + 1, other)
            positive = np.float32(0.0)
            for c in range(k):
                positive += one[c] * other[c] / temperature
            highest = positive
            for j in range(count):
                score = np.float32(0.0)
                for c in range(k):
                    score += one[c] * outside[j, c]
                weights[j] = score / temperature
                highest = max(highest, weights[j])
            own = np.exp(positive - highest)
            total = own
            for j in range(count):
                weights[j] = np.exp(weights[j] - highest)
                total += weights[j]
            loss += math.log(total) - float(positive - highest)
            pull = (own / total - np.float32(1.0)) / temperature
            for c in range(k):
                one_gradient[c] = pull * other[c]
                other_gradient[c] = pull * one[c]
            for j in range(count):
                push = weights[j] / total / temperature
                for c in range(k):
                    one_gradient[c] += push * outside[j, c]
                    outside_gradient[j, c] += push * one[c]
            # Through both unit lengths: what points along the vector changes nothing.
            along_one, along_other = np.float32(0.0), np.float32(0.0)
            for c in range(k):
                along_one += one_gradient[c] * one[c]
                along_other += other_gradient[c] * other[c]
            for c in range(k):
                gradient = np.float32(
                    (one_gradient[c] - along_one * one[c]) / one_length
                    + (other_gradient[c] - along_other * other[c]) / other_length
                )
                changes[slot, c] -= item_rate * share * gradient
                shared_gradient[c] += gradient
        for j in range(count):
            along = np.float32(0.0)
            for c in range(k):
                along += outside_gradient[j, c] * outside[j, c]
            for c in range(k):
                gradient = (outside_gradient[j, c] - along * outside[j, c]) / outside_lengths[j]
                changes[negative_slots[u, j], c] -= item_rate * share * gradient
        for q in range(start, stop):
            for c in range(k):
                changes[edge_slots[q], c] -= item_rate * mean * shared_gradient[c]
        for c in range(k):
            private_out[u, c] = private[u, c] - user_rate * root * shared_gradient[c]
        losses[u] = loss
