"""PerFedRec++ (Luo, Xiao, Zhang, Liu, Li, Song: PerFedRec++, ACM TIST 2024): PerFedRec after a contrastive pre-training.

There the pre-training contrasts two views of every user and item of the global graph (noise on the embeddings as in SimGCL: Yu et
al., SIGIR 2022), which needs the graph in one place. Here each device contrasts two noisy views of its own star, see
`contrast_step`, and sends its change like any other; other users' vectors, the negatives of the user side there, never come to a
device, so that side is left out. The first `pretrain-rounds` rounds of a training are these; then comes PerFedRec.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.baselines.federated.contrast_step import contrast_step
from fastpfrec_flwr.baselines.federated.perfedrec import PerFedRec
from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.model.linear import layer_weights
from fastpfrec_flwr.parallel import even_pieces, in_parallel


class PerFedRecPlus(PerFedRec):
    """Users of PerFedRec++."""

    def local_step(
        self,
        local: NDArray[np.float32],
        graphs: LocalGraphs,
        plan: CohortPlan,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
    ) -> LocalUpdates:
        """See `PerFedRec`; contrastive in the first rounds."""
        if order.server_round > self.config.pretrain_rounds:
            return super().local_step(local, graphs, plan, private, users, order)
        config = self.config
        changes, private_out = np.zeros_like(local), np.empty_like(private)
        losses = np.zeros(len(users))
        _, odd, above = layer_weights(config.num_layers)
        settings = (
            np.float32(1 / (config.num_layers + 1)), np.float32(odd), np.float32(above),
            np.float32(config.contrast_temperature), np.float32(config.item_learning_rate),
            np.float32(config.user_learning_rate),
        )  # fmt: skip
        keys = self._keys("views", order, users)

        def run(piece: tuple[int, int]) -> None:
            contrast_step(
                local, private, keys, graphs.pointer, graphs.own_counts, plan.edge_slots, plan.negative_slots,
                *piece, settings, changes, private_out, losses,
            )  # fmt: skip

        in_parallel(run, even_pieces(graphs.own_counts + 8, self.threads), self.threads)
        return LocalUpdates(plan.rows, plan.pointer, changes, private_out, losses, graphs.own_counts)
