"""The local step of one cohort in several ways, side by side on real users: what is compiled here, and what torch makes of it.

- `compiled`: `client.compiled_step`, which is shipped: users one after the other, in blocks that stay in the first-level cache.
- `operators`: `client.operators_step`, which is shipped for GPUs: the closed form in torch's operators, users of like size padded
  to one block and multiplied by `bmm`.
- `autograd`: `client.autograd_step`, which is shipped for every other variant.
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

from benchmarks.cohort import Cohort, real_cohort
from benchmarks.output import Line, spread
from benchmarks.setup import configuration
from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.operators_step import BlockResult, block_step, operators_step
from fastpfrec_flwr.client.plan import CohortPlan, plan_cohort
from fastpfrec_flwr.client.training import train_compiled
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.parallel import available_threads

# (touched, k) changes and (users, k) new private vectors.
Result: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
# Some thirty users: fewer leave the products small, more fall out of the caches.
_BLOCK_BYTES = 12 << 20
# Seconds before each, and then one call that does not count: torch's threads go on spinning for a while after their work and would
# take the next one's processor, and no way should pay for what another left in the cache.
_REST = 0.1


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

    def operators(step: Callable[..., BlockResult]) -> Result:
        found = operators_step(
            cohort.table, cohort.weights, cohort.private, cohort.graphs, plan, cohort.config, False, False, "cpu",
            _BLOCK_BYTES, step,
        ).on_host()  # fmt: skip
        return found.changes, found.private

    found = {"compiled": compiled, "autograd": autograd, "operators": lambda: operators(block_step)}
    if compiler:
        fused = torch.compile(block_step, dynamic=True)
        found["torch.compile"] = lambda: operators(fused)
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
    """
    keep_freed_memory()  # as in a run
    given = available_threads(threads)
    torch.set_num_threads(given)
    lines = []
    for data_set in data_sets:
        cohort = real_cohort(configuration(data_set, data_dir, **changes), clients)
        plan = plan_cohort(cohort.graphs, cohort.keys, True, cohort.config.num_negatives, given)
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
