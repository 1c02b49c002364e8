"""Models whose local step is LightGCN's on a user's own star, in closed form: the federated LightGCN, and matrix factorisation.

FedMF (Chai, Wang, Chen, Yang: Secure Federated Matrix Factorization, IEEE Intelligent Systems 2021): p_u stays on the device, the
gradients of item rows go to the server. LightGCN without a layer is just that: u = p_u, items are their own rows. The original
encrypts the gradients homomorphically; here they are noised like everybody's. Its loss is a rating's squared error; for
interactions without ratings it is BPR, as for all models here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.lightgcn_step import lightgcn_step
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.plan import CohortPlan, plan_cohort
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.encoders import LightGCN
from fastpfrec_flwr.model.graph import LocalGraphs


class StarNode(Node):
    """Users who train LightGCN on their own stars."""

    @property
    def num_layers(self) -> int:
        """L; 0 is matrix factorisation."""
        return self.config.num_layers

    @property
    def encoder(self) -> LightGCN:
        """See `Node`."""
        return LightGCN(self.num_layers)

    def plan(self, graphs: LocalGraphs, users: NDArray[np.int64], order: Order) -> CohortPlan:
        """This round's negatives and touched rows."""
        return plan_cohort(graphs, self._keys("negatives", order, users), True, self.config.num_negatives, self.threads)

    def step(
        self,
        local: NDArray[np.float32],
        graphs: LocalGraphs,
        plan: CohortPlan,
        private: NDArray[np.float32],
        report_loss: bool,
    ) -> LocalUpdates:
        """One step of each user on its own copy of the rows that it touches.

        Parameters
        ----------
        local : (touched, k), the rows of `plan.rows`, each user's own. private : (users, k).
        """
        # The compiled step finds rows by number: here every touched row is one of its own.
        own_graphs = replace(graphs, items=plan.edge_slots.astype(np.int32), num_items=len(plan.rows))
        own_plan = replace(plan, rows=np.arange(len(plan.rows), dtype=np.int32))
        return self._stepped(local, own_graphs, own_plan, private, report_loss, plan.rows)

    def _stepped(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        plan: CohortPlan,
        private: NDArray[np.float32],
        report_loss: bool,
        rows: NDArray[np.int32],
    ) -> LocalUpdates:
        result = lightgcn_step(table, private, graphs, plan, self.config, report_loss, self.threads, self.num_layers)
        return LocalUpdates(rows, plan.pointer, result.changes, result.private, result.losses, graphs.own_counts)

    def local_updates(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
        deviations: list[Deviation] | None,
    ) -> LocalUpdates:
        """See `Node`."""
        plan = self.plan(graphs, users, order)
        return self._stepped(table, graphs, plan, private, order.report_loss, plan.rows)


class LightGCNStar(StarNode):
    """LightGCN on the star, its changes averaged and stepped as everybody's: the reference for all others."""


class FedMF(StarNode):
    """Matrix factorisation, see the module's text."""

    @property
    def num_layers(self) -> int:
        """No layer: nothing is propagated."""
        return 0
