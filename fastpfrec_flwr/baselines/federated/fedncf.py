"""FedNCF (Jiang et al., IJCNN 2022; Perifanis and Efraimidis, Knowledge-Based Systems 2022): a shared network beside the product.

The score of NeuMF (He et al., WWW 2017) with one hidden layer, see `layouts.MlpLayout`: a weighted product of p_u and E_i plus a
network of both. Item rows and the network's weights are shared, p_u stays on the device. The weights are rows of the shared table,
so they are clipped, noised and averaged like the items'. The originals share them unprotected, or add secure aggregation.

The step is compiled, one user after the other. W_item E is the same product for all users of a round and is made once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.baselines.federated.layouts import WEIGHT_UNIT
from fastpfrec_flwr.baselines.federated.network_step import network_scores, network_step
from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.evaluating import Ranker
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.evaluation.ranking import rank_in_blocks
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.parallel import even_pieces, in_parallel, one_thread_products


class Network(NamedTuple):
    """The weights, out of the shared table: user, item (k, k); bias, output, product (k,)."""

    user: NDArray[np.float32]
    item: NDArray[np.float32]
    bias: NDArray[np.float32]
    output: NDArray[np.float32]
    product: NDArray[np.float32]

    @staticmethod
    def of(table: NDArray[np.float32], num_items: int) -> Network:
        """Read a shared table."""
        k = table.shape[1]
        weights = np.ascontiguousarray(table[num_items:] * WEIGHT_UNIT)
        return Network(weights[:k], weights[k : 2 * k], weights[2 * k], weights[2 * k + 1], weights[2 * k + 2])


class FedNCF(Node):
    """Users of FedNCF."""

    def local_updates(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
        deviations: list[Deviation] | None,
    ) -> LocalUpdates:
        """See `Node`. False items are sent without a change of their own: nothing of this model is propagated."""
        config, k, num_items = self.config, table.shape[1], self.shard.num_items
        plan = plan_cohort(graphs, self._keys("negatives", order, users), True, config.num_negatives, self.threads)
        network = Network.of(table, num_items)
        extra = len(table) - num_items
        pointer = plan.pointer + extra * np.arange(len(plan.pointer))
        rows = _with_network(plan.rows, plan.pointer, num_items, extra)
        changes = np.zeros((len(rows), k), np.float32)
        private_out, losses = np.empty_like(private), np.zeros(len(users))
        hidden = _item_inputs(table, network, num_items)
        settings = (
            np.float32(config.l2), np.float32(config.item_learning_rate), np.float32(config.user_learning_rate),
            np.float32(config.user_l2), np.float32(config.weights_learning_rate) * WEIGHT_UNIT, order.report_loss,
        )  # fmt: skip

        def run(piece: tuple[int, int]) -> None:
            network_step(
                table, hidden, network, private, graphs.pointer, graphs.own_counts, plan.rows, plan.pointer,
                plan.edge_slots, plan.negative_slots, *piece, settings, extra, changes, private_out, losses,
            )  # fmt: skip

        in_parallel(run, even_pieces(graphs.own_counts + 16, self.threads), self.threads)
        return LocalUpdates(rows, pointer, changes, private_out, losses, graphs.own_counts)

    def ranker(
        self,
        table: NDArray[np.float32],
        users: NDArray[np.int64],
        history: Rows,
        private: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
    ) -> Ranker:
        """See `Node`: the network scores every item for every user."""
        choices = self.shard.num_choices
        network = Network.of(table, self.shard.num_items)
        hidden = _item_inputs(table, network, choices)
        items = np.ascontiguousarray(table[:choices])

        def rank(asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
            def scores_of(first: int, last: int) -> NDArray[np.float32]:
                vectors = private[asked[first:last]]
                scores = np.ascontiguousarray((vectors * network.product) @ items.T, np.float32)  # (block, items)
                inputs = vectors @ network.user.T + network.bias  # (block, k)
                self._add_network(hidden, inputs, network, scores)
                return scores

            return rank_in_blocks(len(asked), choices, scores_of, masks)

        return rank

    def _add_network(
        self, hidden: NDArray[np.float32], inputs: NDArray[np.float32], network: Network, scores: NDArray[np.float32]
    ) -> None:
        def run(piece: tuple[int, int]) -> None:
            network_scores(hidden, inputs, network.output, *piece, scores)

        in_parallel(run, even_pieces(np.ones(len(scores)), self.threads), self.threads)


def _item_inputs(table: NDArray[np.float32], network: Network, num_items: int) -> NDArray[np.float32]:
    """W_item E, (items, k)."""
    with one_thread_products():
        product: Any = table[:num_items] @ network.item.T
    return np.ascontiguousarray(product, np.float32)


def _with_network(rows: NDArray[np.int32], pointer: NDArray[np.int64], num_items: int, extra: int) -> NDArray[np.int32]:
    """Each user's touched rows, and after them the network's."""
    users = len(pointer) - 1
    out = np.empty(len(rows) + users * extra, np.int32)
    owner = np.repeat(np.arange(users), np.diff(pointer))
    out[np.arange(len(rows)) + extra * owner] = rows
    ends = pointer[1:] + extra * np.arange(users)
    out[(ends[:, None] + np.arange(extra)).ravel()] = np.tile(np.arange(num_items, num_items + extra), users)
    return out
