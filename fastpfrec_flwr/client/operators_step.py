"""The local step in closed form in torch's operators: what accelerators run for what `compiled_step` covers on CPUs.

Users of like size are padded to one block and go through batched products. Nothing in a step waits for the device: sizes are
known on the host, padding is masked by arithmetic, and what it would write goes to one row too many that nobody reads. No
operator here adds up in an order that changes from run to run. Tests hold it to the formulas, to `compiled_step` and to
`autograd_step`, and run it on a device whose values cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.step_result import StepResult
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model.graph import LocalGraphs

# Of a block's own tensors; what they are made of takes about as much again for a moment.
BLOCK_BYTES = 256 << 20


class Block(NamedTuple):
    """Some users, padded to the most items D and negatives S of them.

    Attributes
    ----------
    rows : (users, D, k) of the table for N', own items first. against : (users, S, k) for the negatives.
    private : (users, k). weights : (users, D) norm weights, 0 beyond N'.
    own : (users, D), 1 where an own item stands, else 0. valid : (users, S), 1 where a negative stands, else 0.
    degrees : (users,) |N'|, float32.
    """

    rows: Tensor
    against: Tensor
    private: Tensor
    weights: Tensor
    own: Tensor
    valid: Tensor
    degrees: Tensor


class BlockResult(NamedTuple):
    """Changes of a block's `rows` and `against`, its new private vectors and losses, shapes as there; (users,) losses."""

    rows: Tensor
    against: Tensor
    private: Tensor
    losses: Tensor


class OnDevice(NamedTuple):
    """A step's results where they were computed: (touched, k) changes, (users, k) private vectors, (users,) losses."""

    changes: Tensor
    private: Tensor
    losses: Tensor

    def on_host(self) -> StepResult:
        """The same in the host's memory; the one time that it waits for the device."""
        return StepResult(self.changes.cpu().numpy(), self.private.cpu().numpy(), self.losses.double().cpu().numpy())


@torch.no_grad()
def operators_step(
    table: NDArray[np.float32],
    weights: NDArray[np.float32],
    private: NDArray[np.float32],
    graphs: LocalGraphs,
    plan: CohortPlan,
    config: RunConfig,
    refresh: bool,
    report_loss: bool,
    device: str,
    block_bytes: int = BLOCK_BYTES,
    step: Callable[[Block, RunConfig, bool, bool], BlockResult] | None = None,
) -> OnDevice:
    """One SGD step for each user of a cohort, with a shared negative set; its results stay on the device.

    Parameters
    ----------
    table : (items, k). weights : (items,) norm weights. private : (users, k) p_u.
    refresh : whether this round's item rows are refreshed by convolution. report_loss : whether to compute the losses.
    device : torch device. block_bytes : that a block of users may take.
    step : that takes a block's step; None for `block_step`.
    """

    def there(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    on_device, norms, before = there(table), there(weights), there(private)
    touched, items = there(plan.rows), there(graphs.items)
    slots, places = there(plan.edge_slots), there(plan.negative_slots)
    starts, degrees, own_counts = there(graphs.pointer[:-1]), there(graphs.degrees), there(graphs.own_counts)
    users, k = private.shape
    # The last row takes what padding would write.
    changes = torch.empty((len(plan.rows) + 1, k), device=device)
    vectors, losses = torch.empty((users, k), device=device), torch.empty(users, device=device)
    order = np.argsort(graphs.degrees, kind="stable")
    of_order = there(order)
    for first, last in _blocks(graphs.degrees[order], plan.negative_slots.shape[1], k, block_bytes):
        block = of_order[first:last]
        place = torch.arange(int(graphs.degrees[order[last - 1]]), device=device)
        inside = place < degrees[block, None]
        edges = torch.where(inside, starts[block, None] + place, 0)
        neighbours, negatives = items[edges].long(), places[block]
        valid = negatives >= 0
        found = (step or block_step)(
            Block(
                on_device[neighbours], on_device[touched[negatives.clamp(min=0)].long()], before[block],
                norms[neighbours] * inside, (place < own_counts[block, None]).float(), valid.float(), degrees[block].float(),
            ),
            config, refresh, report_loss,
        )  # fmt: skip
        changes[torch.where(inside, slots[edges], len(plan.rows))] = found.rows
        changes[torch.where(valid, negatives, len(plan.rows))] = found.against
        vectors[block], losses[block] = found.private, found.losses
    return OnDevice(changes[:-1], vectors, losses)


def _blocks(degrees: NDArray[np.int64], width: int, k: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last place of each block of users with ascending `degrees`: as many as fit, one at least."""
    first = 0
    while first < len(degrees):
        last = first + 1
        while last < len(degrees) and (last + 1 - first) * _bytes_of(int(degrees[last]), width, k) <= block_bytes:
            last += 1
        yield first, last
        first = last


def _bytes_of(degree: int, width: int, k: int) -> int:
    """What a user takes in a block: users, targets and gradients of its items, negatives and their changes, and its scores."""
    return 4 * (6 * degree * k + 3 * width * k + 2 * degree * width)


def block_step(block: Block, config: RunConfig, refresh: bool, report_loss: bool) -> BlockResult:
    """One step of FastGNN for users padded to one size, in closed form; losses are zero where nobody asks for them."""
    rows, against, private, weights, own, valid, degrees = block
    mine = own[:, :, None]
    # Of sum_j over N' without the own item (leave-one-out) or with it, and of an item refreshed by convolution.
    left = degrees - 1 if config.leave_one_out else degrees
    spread = (config.neighbour_weight / left.clamp(min=1).sqrt() * (left > 0))[:, None, None]
    kept = config.user_weight if refresh else 1.0
    pull = (config.neighbour_weight / degrees.clamp(min=1).sqrt() * float(refresh))[:, None]
    weighted = weights[:, :, None] * rows
    around = weighted.sum(dim=1, keepdim=True)
    around = around - weighted if config.leave_one_out else around
    users = (config.user_weight * private[:, None] + spread * around) * mine
    targets = (kept * rows + (pull * private)[:, None]) * mine if refresh else rows
    cosine = config.loss == "ccl"
    if cosine:
        lengths = users.norm(dim=2, keepdim=True).clamp(min=1e-12)
        users = users / lengths
    positive = (users * targets).sum(dim=2)
    counts = valid.sum(dim=1).clamp(min=1)
    share = (valid / counts[:, None])[:, None]  # (users, 1, S) of a positive's loss, for each of its negatives
    losses = torch.zeros_like(counts)
    # (users, D, S) scores, then the loss's slope in them; nothing else of that size is kept.
    if cosine:
        over = torch.bmm(users, against.mT) - config.margin
        slope = (over > 0) * (config.negative_weight * share) * mine
        lift = own
        if report_loss:
            losses = (slope * over).sum(dim=(1, 2)) + ((1.0 - positive) * own).sum(dim=1)
    else:
        over = torch.bmm(users, against.mT) - positive[:, :, None]
        if report_loss:
            losses = (torch.nn.functional.softplus(over) * share * mine).sum(dim=(1, 2))
        slope = torch.sigmoid(over) * share * mine
        lift = slope.sum(dim=2)
    # From here on: gradients of the loss.
    of_users = torch.bmm(slope, against) - lift[:, :, None] * targets
    of_targets = -lift[:, :, None] * users
    if cosine:
        of_users = (of_users - (of_users * users).sum(dim=2, keepdim=True) * users) / lengths
    total = of_users.sum(dim=1, keepdim=True)
    through = total - of_users if config.leave_one_out else total
    of_rows = spread * weights[:, :, None] * through + kept * of_targets + config.l2 * rows * mine
    decay = config.l2 * own.sum(dim=1) / counts
    of_against = torch.bmm(slope.mT, users) + decay[:, None, None] * against
    of_private = config.user_weight * total[:, 0] + config.user_l2 * private
    if refresh:
        of_private = of_private + pull * of_targets.sum(dim=1)
    if config.unit_rows:
        of_rows = of_rows - (of_rows * rows).sum(dim=2, keepdim=True) * rows
        of_against = of_against - (of_against * against).sum(dim=2, keepdim=True) * against
    return BlockResult(
        -config.item_learning_rate * of_rows,
        -config.item_learning_rate * of_against,
        private - config.user_learning_rate * of_private,
        losses,
    )
