"""A private vector for somebody who never took part in training: fitted to the history on the spot, on this machine, with nobody.

Trained users rank with a vector p_u of their own. A newcomer has none, and where p_u says much that costs much (docs/recommend.md).
So it takes the steps that the training would have taken, with the table held still: gradient descent on the recipe's loss

    sum over i in N(u) of (1/S) sum over j in J of -log sigmoid(u_i E_i - u_i E_j) + (l2/2) ||p_u||^2,
    u_i = a p_u + b (n - 1)^(-1/2) sum over l in N(u) without i of w_l E_l

J being S items outside of N(u), drawn once from a seed that is always the same: the same history, the same list. With J held, one
product of n x S is all that is large; the steps work on vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.model.linear import LinearForm
from fastpfrec_flwr.randomness import derive_generator

# Steps and penalty as the recipe trains p_u. One pass is enough: what p_u mostly holds is what all users have in common.
STEPS, LEARNING_RATE, L2, NUM_NEGATIVES = 5, 0.3, 0.01, 512
# A long history says it with fewer: the newest so many items are fitted to, which bounds the time.
_MOST = 200


def fitted_vector(
    table: NDArray[np.float32],
    weights: NDArray[np.float32],
    form: LinearForm,
    rows: NDArray[np.int64],
    num_items: int,
    steps: int = STEPS,
) -> NDArray[np.float32] | None:
    """Fit p_u to a history.

    Parameters
    ----------
    table : (rows, k), E. weights : (rows,), w. rows : (n,) of the history, distinct. num_items : rows that items have; the others
        are no negatives.

    Returns
    -------
    (k,), or None where there is nothing to fit: no history, every item in it, no weight on p_u, or cosine scores.
    """
    if not len(rows) or len(rows) >= num_items or form.user_weight == 0 or form.unit_users:
        return None
    weighted = weights[rows, None] * table[rows]  # (n, k)
    others = weighted.sum(axis=0) - weighted
    share = np.float32(form.neighbour_weight / np.sqrt(max(len(rows) - 1, 1)))
    fixed, targets = (share * others)[-_MOST:], table[rows][-_MOST:]
    positive = np.einsum("ij,ij->i", fixed, targets)
    free = np.ones(num_items, np.bool_)
    free[rows] = False
    choices = np.flatnonzero(free)
    generator = derive_generator(0, "local fit", len(rows))
    negatives = table[choices[generator.integers(0, len(choices), NUM_NEGATIVES)]]  # (S, k)
    # Not `@`, for the reason that `LocalModel.scores` has.
    ahead = positive[:, None] - np.einsum("ij,kj->ik", fixed, negatives)  # (n, S), without what p_u adds
    weight, vector = np.float32(form.user_weight), np.zeros(table.shape[1], np.float32)
    for _ in range(steps):
        own, other = (np.einsum("ij,j->i", each, weight * vector) for each in (targets, negatives))
        margin = np.clip(ahead + own[:, None] - other, -30, 30)
        pull = 1 / (1 + np.exp(margin))
        away = np.einsum("j,jk->k", pull.sum(axis=0), negatives) / NUM_NEGATIVES
        gradient = weight * (away - np.einsum("i,ik->k", pull.mean(axis=1), targets))
        vector = vector - np.float32(LEARNING_RATE) * (gradient + np.float32(L2) * vector)
    return vector.astype(np.float32)
