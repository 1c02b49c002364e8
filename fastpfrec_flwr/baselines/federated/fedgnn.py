"""FedGNN (Wu, Wu, Cao, Huang, Xie: FedGNN, 2021): a graph network on the local subgraph, pseudo-interacted items, noised gradients.

What hides the true items: rows of items that the user never touched are sent with gradients drawn from a normal distribution of
the same mean and variance as the true items' gradients. Here these pseudo-interacted items are the false items of
FastPFRec's star, drawn once per user; unlike there they take no part in message passing. Clip and Laplace noise are everybody's.

Left out: the expansion of the subgraph by neighbours that share an item, which needs a matching server that sees (encrypted) who
has what, and hands one user's vector to another; so a user's vector here is made of its own items alone. The network is
LightGCN's mean of layers in the place of its graph attention: isolated, a star is all that there is to attend to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.baselines.federated.star import StarNode
from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs


class FedGNN(StarNode):
    """Users of FedGNN."""

    def local_updates(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
        deviations: list[Deviation] | None,
    ) -> LocalUpdates:
        """See `Node`: a step on the true items, then the false items' pseudo-gradients."""
        plan = self.plan(graphs, users, order)
        true_graphs, true_plan = without_false_items(graphs, plan)
        updates = self._stepped(table, true_graphs, true_plan, private, order.report_loss, plan.rows)
        _pseudo_changes(
            self._keys("pseudo", order, users), graphs.pointer, graphs.own_counts, plan.edge_slots, updates.changes
        )
        return updates


def without_false_items(graphs: LocalGraphs, plan: CohortPlan) -> tuple[LocalGraphs, CohortPlan]:
    """Stars of the true items alone, and the plan with its edges left to them; touched rows stay what they are."""
    place = np.arange(len(graphs.items)) - np.repeat(graphs.pointer[:-1], graphs.degrees)
    own = place < np.repeat(graphs.own_counts, graphs.degrees)
    pointer = np.zeros_like(graphs.pointer)
    np.cumsum(graphs.own_counts, out=pointer[1:])
    return (
        replace(graphs, items=graphs.items[own], pointer=pointer),
        replace(plan, edge_slots=plan.edge_slots[own]),
    )


@compiled
def _pseudo_changes(keys: Any, pointer: Any, own_counts: Any, edge_slots: Any, changes: Any) -> None:
    """Fill each user's false rows of `changes` ((touched, k)) with normal draws of its true rows' mean and variance."""
    k = changes.shape[1]
    mean, deviation = np.empty(k), np.empty(k)
    for u in range(own_counts.shape[0]):
        start, n = pointer[u], own_counts[u]
        mean[:] = 0.0
        deviation[:] = 0.0
        for q in range(start, start + n):
            for c in range(k):
                mean[c] += changes[edge_slots[q], c] / n
        for q in range(start, start + n):
            for c in range(k):
                deviation[c] += (changes[edge_slots[q], c] - mean[c]) ** 2 / n
        draws = np.empty((pointer[u + 1] - start - n) * k, np.float32)
        fill_normal(keys[u], draws)
        for q in range(start + n, pointer[u + 1]):
            for c in range(k):
                draw = draws[(q - start - n) * k + c]
                changes[edge_slots[q], c] = np.float32(mean[c] + np.sqrt(deviation[c]) * draw)
