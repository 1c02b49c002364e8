"""Local-only training: every device trains LightGCN's star alone, on the first item table, and sends nothing.

What it can learn is what its own items say; the rows of all others are what the first draw made them, pushed away where they were
negatives. It ranks near chance, and that is the point: whatever another model has above it came from other users.

A device keeps its own version of the rows that it trains (D_i of `client.deviation` with beta = 0). Its negatives are drawn once,
not anew in each round, so that this is a few hundred rows and not the whole table for each user.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.baselines.federated.star import StarNode
from fastpfrec_flwr.client.deviation import Deviation, local_rows
from fastpfrec_flwr.client.evaluating import Ranker
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.spending import Spending
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.evaluation.ranking import rank_in_blocks
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.model.linear import layer_weights


class LocalOnly(StarNode):
    """Users who train alone."""

    @property
    def blend_weight(self) -> float:
        """Nothing is blended: a device keeps all that it changed."""
        return 0.0

    @property
    def epsilon_budget(self) -> float:
        """Nothing leaves, so nothing is spent."""
        return 0.0

    def _spending(self, num_items: int) -> Spending:
        """Nor is anything charged to a real device's book."""
        return replace(super()._spending(num_items), allowance=None)

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
        keys = self._streams.keys(users, "kept-negatives", order.phase)
        plan = plan_cohort(graphs, keys, True, self.config.num_negatives, self.threads)
        local = local_rows(table, plan.rows, plan.pointer, deviations or [])
        return self.step(local, graphs, plan, private, order.report_loss)

    def ranker(
        self,
        table: NDArray[np.float32],
        users: NDArray[np.int64],
        history: Rows,
        private: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
    ) -> Ranker:
        """See `Node`: everybody ranks with a table of its own."""
        plain = self.encoder.user_vectors(table, history, private)
        odd = layer_weights(self.num_layers)[1] / (self.num_layers + 1)

        def rank(asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
            def scores_of(first: int, last: int) -> NDArray[np.float32]:
                some = asked[first:last]
                vectors = plain[some]
                kept = self.state.deviations(users[some])
                for i, (position, own) in enumerate(zip(some, kept, strict=True)):
                    items = history.items[history.starts[position] : history.ends[position]]
                    mine = np.isin(own.rows, items, assume_unique=True)
                    if mine.any():
                        vectors[i] += odd / np.sqrt(len(items)) * own.values[mine].sum(axis=0)
                # Nobody has a reserved row, so no deviation lies on one.
                scores: NDArray[np.float32] = vectors @ table[: self.shard.num_choices].T  # (block, items)
                for i, own in enumerate(kept):
                    scores[i, own.rows] += own.values @ vectors[i]
                return scores

            return rank_in_blocks(len(asked), self.shard.num_choices, scores_of, masks)

        return rank
