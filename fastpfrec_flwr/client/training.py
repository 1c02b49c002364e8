"""Local training of a cohort: any number of users in one call, each with the result it would get alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.compiled_step import compiled_step
from fastpfrec_flwr.client.deviation import Deviation, local_rows
from fastpfrec_flwr.client.lightgcn_step import lightgcn_step
from fastpfrec_flwr.client.plan import CohortPlan, plan_cohort
from fastpfrec_flwr.client.spectral_step import spectral_step
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.parallel import even_pieces, in_parallel
from fastpfrec_flwr.wire import sendable


class StepSettings(NamedTuple):
    """What the compiled step needs of the configuration, in its own number types."""

    user_weight: np.float32
    neighbour_weight: np.float32
    leave_one_out: bool
    refresh: bool
    cosine: bool
    tangent: bool
    margin: np.float32
    negative_weight: np.float32
    l2: np.float32
    item_learning_rate: np.float32
    user_learning_rate: np.float32
    user_l2: np.float32
    report_loss: bool


@dataclass(frozen=True)
class LocalUpdates:
    """What local training gives, one segment per user; it has not been made private yet and must not leave the device.

    Attributes
    ----------
    rows : (touched,) int32, of each user sorted and distinct. pointer : (users + 1,) int64 into `rows`.
    changes : (touched, k) float32, the user's Theta_i after the step minus Theta_i before it.
    private : (users, k) float32, new private vectors. losses : (users,) float64, sum over positives, before the step.
    own_counts : (users,) int64 positives.
    """

    rows: NDArray[np.int32]
    pointer: NDArray[np.int64]
    changes: NDArray[np.float32]
    private: NDArray[np.float32]
    losses: NDArray[np.float64]
    own_counts: NDArray[np.int64]


def train_cohort(
    item_table: NDArray[np.float32],
    weights: NDArray[np.float32],
    graphs: LocalGraphs,
    private: NDArray[np.float32],
    keys: NDArray[np.uint64],
    config: RunConfig,
    refresh: bool = False,
    report_loss: bool = False,
    device: str = "cpu",
    threads: int = 1,
    deviations: list[Deviation] | None = None,
) -> LocalUpdates:
    """Train every user of a cohort for one local step.

    Parameters
    ----------
    item_table : (items, k). weights : (items,) norm weights. private : (users, k) p_u.
    graphs : the users' stars; each has at least one own item and one item outside N'.
    keys : (users,) uint64, streams of this round's negatives.
    refresh : whether item rows in the loss are refreshed by convolution this round.
    report_loss : whether to compute the losses (costs as much as the step itself).
    device : `cpu` or `cuda`. threads : for the compiled step.
    deviations : each user's D_i, current, where beta < 1.
    """
    if config.encoder == "spectral":
        changes = spectral_step(item_table, graphs, config, threads)
        return LocalUpdates(
            graphs.items, graphs.pointer, changes, private, np.zeros(graphs.num_users), graphs.own_counts
        )

    def train(first: int, last: int) -> LocalUpdates:
        return _train(
            item_table, weights, graphs.part(first, last), private[first:last], keys[first:last], config, refresh,
            report_loss, device, threads, None if deviations is None else deviations[first:last],
        )  # fmt: skip

    if device == "cpu":
        return train(0, graphs.num_users)
    from fastpfrec_flwr.client.accelerator import in_parts_that_fit  # and with it torch

    return _joined(in_parts_that_fit(train, graphs.num_users))


def _train(
    item_table: NDArray[np.float32],
    weights: NDArray[np.float32],
    graphs: LocalGraphs,
    private: NDArray[np.float32],
    keys: NDArray[np.uint64],
    config: RunConfig,
    refresh: bool,
    report_loss: bool,
    device: str,
    threads: int,
    deviations: list[Deviation] | None,
) -> LocalUpdates:
    """`train_cohort` by the form of the step that is right for the variant and the device."""
    plan = plan_cohort(graphs, keys, config.negatives == "shared", config.num_negatives, threads)
    simple = config.local_optimizer == "sgd" and config.negatives == "shared" and deviations is None
    if simple and device == "cpu" and config.encoder == "lightgcn":
        result = lightgcn_step(item_table, private, graphs, plan, config, report_loss, threads)
        return LocalUpdates(plan.rows, plan.pointer, result.changes, result.private, result.losses, graphs.own_counts)
    if simple and device == "cpu":
        return train_compiled(item_table, weights, graphs, private, plan, config, refresh, report_loss, threads)
    if simple and config.encoder == "fastgnn":
        from fastpfrec_flwr.client.operators_step import operators_step

        result = operators_step(
            item_table, weights, private, graphs, plan, config, refresh, report_loss, device
        ).on_host()
    else:
        from fastpfrec_flwr.client.autograd_step import autograd_step

        local = (
            item_table[plan.rows] if deviations is None else local_rows(item_table, plan.rows, plan.pointer, deviations)
        )
        result = autograd_step(local, weights, private, graphs, plan, config, refresh, device)
    return LocalUpdates(plan.rows, plan.pointer, result.changes, result.private, result.losses, graphs.own_counts)


def _joined(parts: list[LocalUpdates]) -> LocalUpdates:
    """The updates of all parts of a cohort, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows = np.cumsum([0] + [len(part.rows) for part in parts])
    pointer = [part.pointer[1:] + before for part, before in zip(parts, rows[:-1], strict=True)]
    return LocalUpdates(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([np.zeros(1, np.int64), *pointer]),
        np.concatenate([part.changes for part in parts]),
        np.concatenate([part.private for part in parts]),
        np.concatenate([part.losses for part in parts]),
        np.concatenate([part.own_counts for part in parts]),
    )


def can_train(graphs: LocalGraphs) -> NDArray[np.bool_]:
    """(users,) whether a user has something to learn from: an own item, and an item outside N' to hold it against."""
    return (graphs.own_counts > 0) & (graphs.degrees < graphs.num_items)


def train_compiled(
    item_table: NDArray[np.float32],
    weights: NDArray[np.float32],
    graphs: LocalGraphs,
    private: NDArray[np.float32],
    plan: CohortPlan,
    config: RunConfig,
    refresh: bool,
    report_loss: bool,
    threads: int,
) -> LocalUpdates:
    """`train_cohort` with its plan made, for what `compiled_step` covers; see there for the arguments."""
    settings = StepSettings(
        np.float32(config.user_weight),
        np.float32(config.neighbour_weight),
        config.leave_one_out,
        refresh,
        config.loss == "ccl",
        config.unit_rows,
        np.float32(config.margin),
        np.float32(config.negative_weight),
        np.float32(config.l2),
        np.float32(config.item_learning_rate),
        np.float32(config.user_learning_rate),
        np.float32(config.user_l2),
        report_loss,
    )
    changes = sendable((len(plan.rows), item_table.shape[1]), "float32")
    private_out = np.empty_like(private)
    losses = np.zeros(graphs.num_users)

    def run(piece: tuple[int, int]) -> None:
        compiled_step(
            item_table, weights, private, graphs.items, graphs.pointer, graphs.own_counts,
            plan.rows, plan.pointer, plan.edge_slots, plan.negative_slots,
            *piece, settings, changes, private_out, losses,
        )  # fmt: skip

    # A user's cost is its targets times its negatives, plus what every user costs.
    in_parallel(run, even_pieces(graphs.own_counts + 8, threads), threads)
    return LocalUpdates(plan.rows, plan.pointer, changes, private_out, losses, graphs.own_counts)
