"""Pairwise losses per positive: BPR (Rendle et al., UAI 2009) and cosine contrastive (Mao et al., CIKM 2021)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bpr_losses(positive: Tensor, negative: Tensor, valid: Tensor) -> Tensor:
    """Mean over negatives of -log sigmoid(y_ui - y_uj)  (paper, eq. L_BPR without its L2 term).

    Parameters
    ----------
    positive : (targets,) scores. negative : (targets, S) scores.
    valid : (targets, S) bool; False where a user has fewer than S negatives.

    Returns
    -------
    (targets,).
    """
    return _mean_over_negatives(-functional.logsigmoid(positive[:, None] - negative), valid)


def ccl_losses(positive: Tensor, negative: Tensor, valid: Tensor, margin: float, weight: float) -> Tensor:
    """1 - y_ui + W mean_j max(0, y_uj - m), with cosines for scores.

    Parameters
    ----------
    positive, negative, valid : as in `bpr_losses`. margin : m. weight : W.

    Returns
    -------
    (targets,).
    """
    return 1 - positive + weight * _mean_over_negatives(torch.relu(negative - margin), valid)


def _mean_over_negatives(values: Tensor, valid: Tensor) -> Tensor:
    return (values * valid).sum(dim=1) / valid.sum(dim=1).clamp(min=1)


def unit(rows: Tensor) -> Tensor:
    """Rows at unit length, the gradient going through the division; a zero row stays zero."""
    return functional.normalize(rows, dim=-1, eps=1e-12)
