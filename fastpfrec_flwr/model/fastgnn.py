"""FastGNN on a star: how item rows become a user's vector (paper, eq. of the user update, H = 2 layers).

Without the global graph two layers come to one sum over the neighbourhood:

    u = c_p p_u + c_g d^(-1/2) sum_{l in N'(u)} w_l E_l,   d = |N'(u)|                       (inference, all of N)
    u_i = c_p p_u + c_g (d - 1)^(-1/2) sum_{l in N'(u), l != i} w_l E_l                      (training, i left out)

w_l = ||E_l||^(-a) / Z are the norm weights that everybody computes from the public table each round, no gradient through them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.model.linear import weights_of_norms

if TYPE_CHECKING:
    from torch import Tensor


@compiled
def _row_norms(rows: Any, norms: Any) -> None:
    for t in range(rows.shape[0]):
        square = 0.0
        for c in range(rows.shape[1]):
            square += np.float64(rows[t, c]) * np.float64(rows[t, c])
        norms[t] = math.sqrt(square)


def norm_weights(item_table: NDArray[np.float32], exponent: float) -> NDArray[np.float32]:
    """Norm weights of all items, see `model.linear.weights_of_norms`.

    Parameters
    ----------
    item_table : (items, k).
    exponent : a; 0 gives ones.

    Returns
    -------
    (items,) float32.
    """
    norms = np.zeros(len(item_table))
    if exponent != 0:
        _row_norms(item_table, norms)
    return weights_of_norms(norms, exponent)


def neighbourhood_sums(rows: Tensor, owner: Tensor, num_users: int) -> Tensor:
    """Sum of the (weighted) neighbour rows of each user.

    Parameters
    ----------
    rows : (edges, k). owner : (edges,) user of each edge.

    Returns
    -------
    (users, k).
    """
    import torch

    return torch.zeros(num_users, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, owner, rows)


def user_vectors(private: Tensor, sums: Tensor, degrees: Tensor, user_weight: float, neighbour_weight: float) -> Tensor:
    """User vectors from whole neighbourhoods.

    Parameters
    ----------
    private : (users, k) p_u. sums : (users, k) weighted neighbour sums. degrees : (users,).

    Returns
    -------
    (users, k).
    """
    scale = neighbour_weight * degrees.clamp(min=1).to(sums.dtype).rsqrt()
    return user_weight * private + scale[:, None] * sums


def target_user_vectors(
    private: Tensor,
    sums: Tensor,
    degrees: Tensor,
    target_rows: Tensor,
    target_owner: Tensor,
    user_weight: float,
    neighbour_weight: float,
    leave_one_out: bool,
) -> Tensor:
    """User vector for each target item, the target itself left out of the sum and of the count.

    Parameters
    ----------
    private, sums, degrees : as in `user_vectors`.
    target_rows : (targets, k) weighted rows w_i E_i. target_owner : (targets,) user of each target.

    Returns
    -------
    (targets, k).
    """
    if not leave_one_out:
        return user_vectors(private, sums, degrees, user_weight, neighbour_weight)[target_owner]
    scale = neighbour_weight * (degrees - 1).clamp(min=1).to(sums.dtype).rsqrt()
    return user_weight * private[target_owner] + scale[target_owner][:, None] * (sums[target_owner] - target_rows)


def refresh_rows(
    rows: Tensor, private: Tensor, owner: Tensor, degrees: Tensor, user_weight: float, neighbour_weight: float
) -> Tensor:
    """Item rows after one convolution over the star (rounds of the item refresh, every H x h).

    An item's only neighbour on a star is its user, so e_i = c_p E_i + c_g d^(-1/2) p_u. Items outside the star have no
    neighbour and keep their rows.

    Parameters
    ----------
    rows : (targets, k) rows of items in N'(u). owner : (targets,) their users.

    Returns
    -------
    (targets, k).
    """
    scale = neighbour_weight * degrees.clamp(min=1).to(rows.dtype).rsqrt()
    return user_weight * rows + scale[owner][:, None] * private[owner]
