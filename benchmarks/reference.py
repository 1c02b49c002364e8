"""The straightforward loop that federated code usually is: one model copy, optimiser and state dict for each client.

The same local step as `client.training.train_cohort` (a test ties the two), the same clipping, dense noise on the whole table,
means of state dicts. Nobody trains with it: it is what the cohort's kernels are measured against.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model import fastgnn, losses


class StarModel(nn.Module):
    """FastGNN of one client: the item table and its own private vector."""

    def __init__(self, num_items: int, embedding_dim: int) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, embedding_dim)
        self.user = nn.Parameter(torch.zeros(1, embedding_dim))

    def forward(
        self, edges: Tensor, own: int, negatives: Tensor, weights: Tensor, config: RunConfig, refresh: bool
    ) -> Tensor:
        """Loss over the `own` first of `edges`, the others being false items; L2 terms included."""
        rows = self.items(edges)
        weighted = weights[edges][:, None] * rows
        owner, degrees = torch.zeros(own, dtype=torch.long), torch.tensor([len(edges)])
        users = fastgnn.target_user_vectors(
            self.user, weighted.sum(dim=0, keepdim=True), degrees, weighted[:own], owner,
            config.user_weight, config.neighbour_weight, config.leave_one_out,
        )  # fmt: skip
        targets, against = rows[:own], self.items(negatives)
        penalty = 0.5 * config.l2 * (targets.square().sum() + own / len(negatives) * against.square().sum())
        penalty = penalty + 0.5 * config.user_l2 * self.user.square().sum()
        if refresh:
            targets = fastgnn.refresh_rows(
                targets, self.user, owner, degrees, config.user_weight, config.neighbour_weight
            )
        if config.loss == "ccl":
            users = losses.unit(users)
        positive, negative = (users * targets).sum(dim=1), users @ against.T
        valid = torch.ones_like(negative, dtype=torch.bool)
        if config.loss == "ccl":
            each = losses.ccl_losses(positive, negative, valid, config.margin, config.negative_weight)
        else:
            each = losses.bpr_losses(positive, negative, valid)
        loss: Tensor = each.sum() + penalty
        return loss


@dataclass(frozen=True)
class Client:
    """One client's data of a round: its star's items (`own` true ones first), its negatives, its private vector."""

    edges: NDArray[np.int64]
    own: int
    negatives: NDArray[np.int64]
    private: NDArray[np.float32]


def client_update(
    model: StarModel, client: Client, weights: Tensor, config: RunConfig, refresh: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Train a copy of `model` for one step; (state dict of the change of the shared part, the new private vector)."""
    own = deepcopy(model)
    with torch.no_grad():
        own.user.copy_(torch.from_numpy(client.private)[None])
    optimizer = torch.optim.SGD(
        [
            {"params": own.items.parameters(), "lr": config.item_learning_rate},
            {"params": [own.user], "lr": config.user_learning_rate},
        ]
    )
    loss = own(torch.from_numpy(client.edges), client.own, torch.from_numpy(client.negatives), weights, config, refresh)
    loss.backward()
    if config.unit_rows:
        table, gradient = own.items.weight, own.items.weight.grad
        assert gradient is not None
        gradient -= (gradient * table.detach()).sum(dim=1, keepdim=True) * table.detach()
    optimizer.step()
    before, after = model.state_dict(), own.state_dict()
    return {"items.weight": after["items.weight"] - before["items.weight"]}, own.user.detach()[0]


def privatize(change: dict[str, Tensor], config: RunConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Clip rows and whole, and add dense Laplace noise, in the obvious way."""
    values = change["items.weight"]
    if config.row_clip > 0:
        norms = values.norm(dim=1, keepdim=True)
        values = values * (config.row_clip / norms.clamp(min=1e-12)).clamp(max=1.0)
    if config.clip_norm > 0:
        values = values * min(1.0, config.clip_norm / max(float(values.norm()), 1e-12))
    if config.noise_scale > 0:
        uniform = torch.rand(values.shape, generator=generator) - 0.5
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-7))
        values = values + config.noise_scale * noise
    return {"items.weight": values}


def run_round(
    table: NDArray[np.float32], clients: list[Client], weights: NDArray[np.float32], config: RunConfig, refresh: bool
) -> NDArray[np.float32]:
    """The new table after a round of `clients`: the mean of their noised state dicts, added."""
    model = StarModel(*table.shape)
    with torch.no_grad():
        model.items.weight.copy_(torch.from_numpy(table))
    generator = torch.Generator().manual_seed(config.seed)
    total = torch.zeros_like(model.items.weight)
    for client in clients:
        change, _ = client_update(model, client, torch.from_numpy(weights), config, refresh)
        total += privatize(change, config, generator)["items.weight"]
    moved: NDArray[np.float32] = (model.items.weight.detach() + total / len(clients)).numpy()
    return moved
