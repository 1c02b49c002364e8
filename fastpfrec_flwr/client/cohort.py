"""Who trains in a round, of the users who were drawn for it: those with something to learn from who may upload what they learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.spending import Spending
from fastpfrec_flwr.client.training import LocalUpdates, can_train
from fastpfrec_flwr.messages import Order, TrainReport
from fastpfrec_flwr.model.graph import LocalGraphs


class Cohort(NamedTuple):
    """The users who train.

    Attributes
    ----------
    users : (users,) their numbers. graphs : their stars. idle : how many of the drawn have nothing to learn from.
    stopped : how many may not upload once more.
    """

    users: NDArray[np.int64]
    graphs: LocalGraphs
    idle: int
    stopped: int

    @staticmethod
    def of(
        users: NDArray[np.int64],
        drawn: NDArray[np.int64],
        graphs_at: Callable[[NDArray[np.int64]], LocalGraphs],
        spending: Spending,
    ) -> Cohort:
        """Those of the drawn who can and may.

        Parameters
        ----------
        users : of the shard. drawn : places among them. graphs_at : the stars of those at some places.
        """
        graphs = graphs_at(drawn)
        learning = can_train(graphs)
        able = learning & spending.allows(users[drawn])
        idle = int((~learning).sum())
        stopped = int((~able).sum()) - idle
        if able.all():
            return Cohort(users[drawn], graphs, idle, stopped)
        return Cohort(users[drawn[able]], graphs_at(drawn[able]), idle, stopped)

    def report(self, order: Order, updates: LocalUpdates) -> TrainReport:
        """What is said of the round beside the uploads; of the loss only what the order asks for."""
        asked = order.report_loss
        return TrainReport(
            order.server_round,
            self.idle + self.stopped,
            float(updates.losses.sum()) if asked else 0.0,
            int(updates.own_counts.sum()) if asked else 0,
            self.stopped,
            order.table_version,
        )
