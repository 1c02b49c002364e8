"""The local step of one cohort in several ways, side by side on real users: what is compiled here, and what torch makes of it.

- `compiled`: `client.compiled_step`, which is shipped: users one after the other, in blocks that stay in the first-level cache.
- `autograd`: `client.autograd_step`, which is shipped for every other variant and for GPUs.
- `operators`: the closed form in torch's operators, users of like size padded to one block and multiplied by `bmm`.
- `torch.compile`: the same operators, fused by torch's compiler.

All get the same plan (negatives drawn, rows laid out), and each gives the plan's changes and the new private vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.cohort import Cohort, real_cohort
from benchmarks.output import Line, spread
from benchmarks.setup import configuration
from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.plan import CohortPlan, plan_cohort
from fastpfrec_flwr.client.training import train_compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.foreseen import Foreseen
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.parallel import available_threads

# (touched, k) changes and (users, k) new private vectors.
Result: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
# Users that are padded to one size: fewer leave the products small, more pad too much.
_BLOCK = 32
# Seconds before each, and then one call that does not count: torch's threads go on spinning for a while after their work and would
# take the next one's processor, and no way should pay for what another left in the cache.
_REST = 0.1


def block_step(
    rows: Tensor, against: Tensor, weights: Tensor, private: Tensor, own: Tensor, degrees: Tensor, config: RunConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of FastGNN with BPR for users padded to one size, in closed form.

    Parameters
    ----------
    rows : (users, D, k) rows of N', own items first. against : (users, S, k) negatives. weights : (users, D), 0 beyond N'.
    private : (users, k). own : (users, D), 1 where an own item stands. degrees : (users,).

    Returns
    -------
    Changes of `rows` and of `against`, new private vectors.
    """
    c, s = config.user_weight, against.shape[1]
    spread_of = config.neighbour_weight / (degrees - 1).clamp(min=1).sqrt() * (degrees > 1)
    weighted = weights[:, :, None] * rows
    around = weighted.sum(dim=1, keepdim=True) - weighted
    users = (c * private[:, None] + spread_of[:, None, None] * around) * own[:, :, None]
    positive = (users * rows).sum(dim=2)
    slope = torch.sigmoid(torch.bmm(users, against.mT) - positive[:, :, None]) * (own[:, :, None] / s)
    lift = slope.sum(dim=2)
    back = torch.bmm(slope, against) - lift[:, :, None] * rows
    total = back.sum(dim=1, keepdim=True)
    through = spread_of[:, None, None] * weights[:, :, None] * (total - back)
    rows_slope = through + (config.l2 * rows - lift[:, :, None] * users) * own[:, :, None]
    decay = config.l2 * own.sum(dim=1)[:, None, None] / s
    against_slope = torch.bmm(slope.mT, users) + decay * against
    moved = private - config.user_learning_rate * (c * total[:, 0] + config.user_l2 * private)
    return -config.item_learning_rate * rows_slope, -config.item_learning_rate * against_slope, moved


@torch.no_grad()
def in_blocks(cohort: Cohort, plan: CohortPlan, step: Callable[..., Any]) -> Result:
    """Lay the users out by size, take the step block by block, and put the changes where the plan wants them.

    Every user must have all of its negatives.
    """
    graphs, table = cohort.graphs, torch.from_numpy(cohort.table)
    changes = torch.empty((len(plan.rows), table.shape[1]))
    moved = torch.empty((graphs.num_users, table.shape[1]))
    weights, private = torch.from_numpy(cohort.weights), torch.from_numpy(cohort.private)
    items, slots = torch.from_numpy(graphs.items), torch.from_numpy(plan.edge_slots)
    places, sizes = torch.from_numpy(plan.negative_slots), torch.from_numpy(graphs.degrees)
    starts, counts = torch.from_numpy(graphs.pointer[:-1]), torch.from_numpy(graphs.own_counts)
    touched = torch.from_numpy(plan.rows)
    for block in torch.split(torch.argsort(sizes), _BLOCK):
        place = torch.arange(int(sizes[block].max()))
        there = place < sizes[block, None]
        edges = torch.where(there, starts[block, None] + place, 0)
        items_here, negatives = items[edges], places[block]
        row_changes, negative_changes, moved[block] = step(
            table[items_here], table[touched[negatives]], weights[items_here] * there, private[block],
            (place < counts[block, None]).float(), sizes[block].float(), cohort.config,
        )  # fmt: skip
        changes[slots[edges[there]]] = row_changes[there]
        changes[negatives] = negative_changes
    return changes.numpy(), moved.numpy()


def ways(cohort: Cohort, plan: CohortPlan, threads: int, compiler: bool = True) -> dict[str, Callable[[], Result]]:
    """Name -> the step of a whole cohort. `compiler` : torch's too, which needs a C++ compiler."""

    def compiled() -> Result:
        found = train_compiled(
            cohort.table, cohort.weights, cohort.graphs, cohort.private, plan, cohort.config,
            refresh=False, report_loss=False, threads=threads,
        )  # fmt: skip
        return found.changes, found.private

    def autograd() -> Result:
        rows = cohort.table[plan.rows]
        found = autograd_step(
            rows, cohort.weights, cohort.private, cohort.graphs, plan, cohort.config, refresh=False, device="cpu"
        )
        return found.changes, found.private

    found = {"compiled": compiled, "autograd": autograd, "operators": lambda: in_blocks(cohort, plan, block_step)}
    if compiler:
        fused = torch.compile(block_step, dynamic=True)
        found["torch.compile"] = lambda: in_blocks(cohort, plan, fused)
    return found


def measured(
    data_sets: list[str],
    data_dir: str,
    clients: int,
    repeats: int,
    threads: int,
    compiler: bool = True,
    **changes: Any,
) -> list[Line]:
    """Milliseconds of a cohort's step, interleaved, and by how many millionths of the largest change each way differs from the
    shipped one.

    Parameters
    ----------
    changes : of the data sets' configurations.

    Raises
    ------
    Foreseen for a data set with too few items: some of its users would lack negatives.
    """
    keep_freed_memory()  # as in a run
    given = available_threads(threads)
    torch.set_num_threads(given)
    lines = []
    for data_set in data_sets:
        cohort = real_cohort(configuration(data_set, data_dir, **changes), clients)
        plan = plan_cohort(cohort.graphs, cohort.keys, True, cohort.config.num_negatives, given)
        if plan.negative_slots.min() < 0:
            raise Foreseen(
                f"{data_set}: {cohort.config.num_negatives} negatives beside a user's own items are more than there are items "
                f"({len(cohort.table)}); take fewer with --negatives"
            )
        steps = ways(cohort, plan, given, compiler)
        results = {name: step() for name, step in steps.items()}  # compiles what has to be
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeats):
            for name, step in steps.items():
                time.sleep(_REST)
                step()
                began = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - began)
        right = results["compiled"][0]
        for name in steps:
            off = float(np.abs(results[name][0] - right).max() / np.abs(right).max())
            lines.append(
                {"data_set": data_set, "clients": clients, "way": name, **spread(times[name]), "off_by_ppm": 1e6 * off}
            )
    return lines
