"""LightGCN on a star (He et al., SIGIR 2020): what stands in for FastGNN in the ablation "without FastGNN".

LightGCN averages layers 0 to L of e^(l+1) = D^(-1/2) A D^(-1/2) e^(l). On a client's own star the user has d = |N'(u)| neighbours
and each of its items one, the user; a client cannot know how many others its items have. So with a = d^(-1/2) and S the sum of the
neighbour rows, a^2 d = 1 and the layers repeat themselves:

    user:  p, a S, p, a S, ...          item i of the star:  E_i, a p, S / d, a p, S / d, ...

What FastGNN changes against it: weights c_p and c_g of its own, norm weights, the target left out of its user's sum, and item rows
that are convolved every H x h rounds only (and then without the item-to-item term S / d).

An item outside the star has no neighbours, so its layers above 0 are zero and it ends as E_i / (L + 1), the layer mean of an
isolated node. Keeping E_i whole would hold each negative at L + 1 times the scale of the positives. In a ranking all candidates
lie outside the star (a user's own items are masked), so there the factor orders nothing differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

from fastpfrec_flwr.model.linear import layer_weights


def star_user_vectors(private: Tensor, sums: Tensor, degrees: Tensor, num_layers: int) -> Tensor:
    """User vectors.

    Parameters
    ----------
    private : (users, k) p_u. sums : (users, k) S, plain sums of the neighbour rows. degrees : (users,) d.

    Returns
    -------
    (users, k).
    """
    even, odd, _ = layer_weights(num_layers)
    return even * private + odd * degrees.clamp(min=1).to(sums.dtype).rsqrt()[:, None] * sums


def star_item_vectors(
    rows: Tensor, owner: Tensor, private: Tensor, sums: Tensor, degrees: Tensor, num_layers: int
) -> Tensor:
    """Vectors of items of the stars.

    Parameters
    ----------
    rows : (targets, k) E_i. owner : (targets,) their users. private, sums, degrees : as in `star_user_vectors`.

    Returns
    -------
    (targets, k).
    """
    _, odd, above = layer_weights(num_layers)
    count = degrees.clamp(min=1).to(sums.dtype)[:, None]
    shared = odd * count.rsqrt() * private + above * sums / count  # (users, k), the same for all items of a star
    return rows / (num_layers + 1) + shared[owner]
