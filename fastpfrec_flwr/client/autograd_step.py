"""The local step written with autograd: every variant, any device. The reference that `compiled_step` is tested against.

Each user has its own copy of the rows it touches, so one backward pass over the sum of all users' losses gives each user the
gradient it would get alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.step_result import StepResult
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model import losses
from fastpfrec_flwr.model.encoders import Stars, build_encoder
from fastpfrec_flwr.model.graph import LocalGraphs

# Pairs (positive, negative) scored at once; bounds the memory of a cohort with a shared negative set.
MAX_PAIRS = 1 << 23


class _Repeatable:
    """Torch's deterministic mode while somebody is inside, and what it was before when the last one has left.

    The gradients of gathered rows are added up by several threads in the order in which these come, so without it two runs differ
    in the last bit. The mode is one for the whole process, and SuperNodes work side by side.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = (False, False)

    @contextmanager
    def __call__(self, warn_only: bool) -> Iterator[None]:
        """`warn_only` : where an operator has no deterministic form, as some have none on GPUs."""
        with self._lock:
            if self._inside == 0:
                self._before = (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                )
                torch.use_deterministic_algorithms(True, warn_only=warn_only)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    enabled, warned = self._before
                    torch.use_deterministic_algorithms(enabled, warn_only=warned)


_repeatable = _Repeatable()


@dataclass(frozen=True)
class _Indices:
    """Index tensors of a cohort on the device."""

    edge_owner: Tensor
    edge_slots: Tensor
    edge_items: Tensor
    own_edges: Tensor
    target_owner: Tensor
    degrees: Tensor
    own_counts: Tensor
    negatives: Tensor
    row_owner: Tensor


def autograd_step(
    local_rows: NDArray[np.float32],
    weights: NDArray[np.float32],
    private: NDArray[np.float32],
    graphs: LocalGraphs,
    plan: CohortPlan,
    config: RunConfig,
    refresh: bool,
    device: str,
) -> StepResult:
    """One local step for each user of a cohort.

    Parameters
    ----------
    local_rows : (touched, k); each user's own copy of the rows in `plan.rows` (Theta_i: the table plus its deviation).
    weights : (items,) norm weights. private : (users, k) p_u.
    refresh : whether this round's item rows are refreshed by convolution.
    device : torch device.
    """
    at = _to_device(graphs, plan, device)
    rows = torch.from_numpy(local_rows).to(device).requires_grad_()
    vectors = torch.from_numpy(private).to(device).requires_grad_()
    edge_weights = torch.from_numpy(weights).to(device)[at.edge_items]
    with _repeatable(warn_only=device != "cpu"):
        per_user = _losses(rows, vectors, edge_weights, at, config, refresh)
        grad_rows, grad_vectors = torch.autograd.grad(per_user.sum(), (rows, vectors))
        with torch.no_grad():
            grad_rows = grad_rows + _l2_gradient(rows, at, config)
    with torch.no_grad():
        grad_vectors = grad_vectors + config.user_l2 * vectors
        if config.unit_rows:
            grad_rows = grad_rows - (grad_rows * rows).sum(dim=1, keepdim=True) * rows
        if config.local_optimizer == "adam":
            grad_rows, grad_vectors = _first_adam_step(grad_rows), _first_adam_step(grad_vectors)
        changes = -config.item_learning_rate * grad_rows
        vectors = vectors - config.user_learning_rate * grad_vectors
    return StepResult(changes.cpu().numpy(), vectors.detach().cpu().numpy(), per_user.detach().double().cpu().numpy())


def _to_device(graphs: LocalGraphs, plan: CohortPlan, device: str) -> _Indices:
    def tensor(array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    users = np.arange(graphs.num_users)
    place_in_user = np.arange(len(graphs.items)) - np.repeat(graphs.pointer[:-1], graphs.degrees)
    own_edges = np.flatnonzero(place_in_user < np.repeat(graphs.own_counts, graphs.degrees))
    return _Indices(
        edge_owner=tensor(np.repeat(users, graphs.degrees)),
        edge_slots=tensor(plan.edge_slots),
        edge_items=tensor(graphs.items),
        own_edges=tensor(own_edges),
        target_owner=tensor(np.repeat(users, graphs.own_counts)),
        degrees=tensor(graphs.degrees),
        own_counts=tensor(graphs.own_counts),
        negatives=tensor(plan.negative_slots),
        row_owner=tensor(np.repeat(users, np.diff(plan.pointer))),
    )


def _losses(
    rows: Tensor, private: Tensor, edge_weights: Tensor, at: _Indices, config: RunConfig, refresh: bool
) -> Tensor:
    """(users,) loss of each user without its L2 terms."""
    stars = Stars(at.edge_owner, at.own_edges, at.target_owner, at.degrees)
    users, targets, scale = build_encoder(config).encode(private, rows[at.edge_slots], edge_weights, stars, refresh)
    if config.loss == "ccl":
        users = losses.unit(users)
    positive = (users * targets).sum(dim=1)
    negative, valid = _shared_scores(users, rows, at) if config.negatives == "shared" else _own_scores(users, rows, at)
    if scale != 1.0:
        negative = scale * negative
    if config.loss == "ccl":
        per_target = losses.ccl_losses(positive, negative, valid, config.margin, config.negative_weight)
    else:
        per_target = losses.bpr_losses(positive, negative, valid)
    return torch.zeros(len(private), dtype=rows.dtype, device=rows.device).index_add(0, at.target_owner, per_target)


def _own_scores(users: Tensor, rows: Tensor, at: _Indices) -> tuple[Tensor, Tensor]:
    """(targets, S) scores against each positive's own negatives, and which of them exist."""
    scores = torch.einsum("tk,tsk->ts", users, rows[at.negatives.clamp(min=0)])
    return scores, at.negatives >= 0


def _shared_scores(users: Tensor, rows: Tensor, at: _Indices) -> tuple[Tensor, Tensor]:
    """(targets, S) scores against the set that a user's positives share, and which of it exists.

    Users of like size go through one batched product, so little of it is padding.
    """
    counts = at.own_counts
    first = torch.cumsum(counts, 0) - counts
    width = at.negatives.shape[1]
    order = torch.argsort(counts, stable=True)
    # The empty pieces are for a cohort of nobody.
    blocks, targets, start = [users.new_empty((0, width))], [first.new_empty(0)], 0
    sizes = counts[order].tolist()
    while start < len(sizes):
        stop = start + 1
        while stop < len(sizes) and (stop + 1 - start) * sizes[stop] * width <= MAX_PAIRS:
            stop += 1
        block = order[start:stop]
        place = torch.arange(sizes[stop - 1], device=users.device)
        real = place < counts[block][:, None]  # (block, widest)
        index = torch.where(real, first[block][:, None] + place, 0)
        scores = users[index] @ rows[at.negatives[block].clamp(min=0)].mT  # (block, widest, S)
        blocks.append(scores[real])
        targets.append(index[real])
        start = stop
    back = torch.argsort(torch.cat(targets))
    return torch.cat(blocks)[back], (at.negatives >= 0)[at.target_owner]


def _l2_gradient(rows: Tensor, at: _Indices, config: RunConfig) -> Tensor:
    """gamma E on positive rows; on a negative row gamma / S for each positive that it stands against."""
    if config.l2 == 0:
        return torch.zeros_like(rows)
    factor = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)
    factor[at.edge_slots[at.own_edges]] = config.l2
    valid = at.negatives >= 0
    counts = valid.sum(dim=1).clamp(min=1).to(rows.dtype)
    repeats = at.own_counts.to(rows.dtype) if config.negatives == "shared" else torch.ones_like(counts)
    each = (config.l2 * repeats / counts)[:, None] * valid  # (users or targets, S)
    return factor.index_add(0, at.negatives[valid], each[valid])[:, None] * rows


def _first_adam_step(gradient: Tensor) -> Tensor:
    """Direction of a fresh Adam's first step: bias correction makes it g / (|g| + eps)."""
    return gradient / (gradient.abs() + 1e-8)
