"""PerFedRec (Luo, Xiao, Song: Personalized Federated Recommendation via Joint Representation Learning, User Clustering, and Model
Adaptation, CIKM 2022): a model for everybody, one for each cluster of users, and a mixture of both on each device.

There the server runs K-means over the users' vectors and tells each its cluster, so it sees every vector. Here it runs K-means
over the rows of its own item table (`layouts.ClusterLayout`) and sends the centres; the device finds the centre nearest to the mean
of its own star's rows and tells nobody. It works with Theta_i = (1 - m) E + m C_c, m = `cluster-weight`, and sends what it changed
twice, to E and to the rows of its cluster: as there, both are averages of the same local models. In a dense upload the noise on all
other clusters' rows hides which one it was, as far as the noise goes; a sparse upload shows it.

Clusters are chosen anew in every round in which a device trains. The third part of the original's mixture, the device's own model,
is its private vector here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.baselines.federated.layouts import ClusterLayout, cluster_layout
from fastpfrec_flwr.baselines.federated.star import StarNode
from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.evaluating import Ranker
from fastpfrec_flwr.client.history import own_rows
from fastpfrec_flwr.client.plan import CohortPlan
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs
from fastpfrec_flwr.wire import sendable


class PerFedRec(StarNode):
    """Users of PerFedRec."""

    @property
    def layout(self) -> ClusterLayout:
        """Where the tables lie."""
        return cluster_layout(self.config)

    def clusters(self, table: NDArray[np.float32], stars: Rows, private: NDArray[np.float32]) -> NDArray[np.int64]:
        """(users,) the centre nearest to each user's vector; 0 for one without items.

        Parameters
        ----------
        table : the whole shared one. stars : the users' items. private : (users, k).
        """
        items = table[: self.shard.num_items]
        centred = items - items.mean(axis=0, keepdims=True)
        vectors = np.empty((len(stars.starts), table.shape[1]), np.float32)
        _mean_rows(centred, stars.items, stars.starts, stars.ends, vectors)
        nearest: NDArray[np.int64] = np.argmax(vectors @ table[-self.config.num_clusters :].T, axis=1)
        return nearest

    def local_updates(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
        deviations: list[Deviation] | None,
    ) -> LocalUpdates:
        """See `Node`: one step on the mixture, sent to both tables."""
        plan = self.plan(graphs, users, order)
        stars = Rows(graphs.items, graphs.pointer[:-1], graphs.pointer[1:])
        clusters = self.clusters(table, stars, private)
        local = np.empty((len(plan.rows), table.shape[1]), np.float32)
        num_items, weight = self.shard.num_items, np.float32(self.config.cluster_weight)
        _mix(table, plan.rows, plan.pointer, clusters, num_items, weight, local)
        updates = self.local_step(local, graphs, plan, private, users, order)
        return _twice(updates, clusters, num_items)

    def local_step(
        self,
        local: NDArray[np.float32],
        graphs: LocalGraphs,
        plan: CohortPlan,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
    ) -> LocalUpdates:
        """One step on each user's own rows, see `StarNode.step`."""
        return self.step(local, graphs, plan, private, order.report_loss)

    def ranker(
        self,
        table: NDArray[np.float32],
        users: NDArray[np.int64],
        history: Rows,
        private: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
    ) -> Ranker:
        """See `Node`: each cluster's users rank with its mixture."""
        num_items, weight = self.shard.num_items, np.float32(self.config.cluster_weight)
        clusters = self.clusters(table, history, private)

        def rank(asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
            top_items = np.empty((len(asked), 20), np.int32)
            for cluster in np.unique(clusters[asked]):
                members = np.flatnonzero(clusters[asked] == cluster)
                some = asked[members]
                first = num_items * (1 + cluster)
                mixed = (1 - weight) * table[:num_items] + weight * table[first : first + num_items]
                theirs = Rows(history.items, history.starts[some], history.ends[some])
                vectors = self.encoder.user_vectors(mixed, theirs, private[some])
                top_items[members] = rank_top_k(
                    vectors,
                    mixed[: self.shard.num_choices],
                    [own_rows(mask, members) for mask in masks],
                    threads=self.threads,
                )
            return top_items

        return rank


@compiled
def _mean_rows(table: Any, items: Any, starts: Any, ends: Any, out: Any) -> None:
    """Mean of each user's rows, (users, k); zero for a user without items."""
    for u in range(starts.shape[0]):
        out[u] = np.float32(0.0)
        for q in range(starts[u], ends[u]):
            for c in range(table.shape[1]):
                out[u, c] += table[items[q], c]
        for c in range(table.shape[1]):
            out[u, c] /= max(ends[u] - starts[u], 1)


@compiled
def _mix(table: Any, rows: Any, pointer: Any, clusters: Any, num_items: int, weight: Any, out: Any) -> None:
    """(1 - m) E + m C_c on each user's touched rows, (touched, k)."""
    for u in range(clusters.shape[0]):
        offset = num_items * (1 + clusters[u])
        for t in range(pointer[u], pointer[u + 1]):
            both, own = table[rows[t]], table[offset + rows[t]]
            for c in range(table.shape[1]):
                out[t, c] = (np.float32(1.0) - weight) * both[c] + weight * own[c]


def _twice(updates: LocalUpdates, clusters: NDArray[np.int64], num_items: int) -> LocalUpdates:
    """The same changes for everybody's rows and for those of the user's cluster."""
    rows = np.empty(2 * len(updates.rows), np.int32)
    changes = sendable((len(rows), updates.changes.shape[1]), "float32")
    _copy_twice(updates.rows, updates.pointer, updates.changes, clusters, num_items, rows, changes)
    return replace(updates, rows=rows, pointer=2 * updates.pointer, changes=changes)


@compiled
def _copy_twice(
    rows: Any, pointer: Any, changes: Any, clusters: Any, num_items: int, rows_out: Any, changes_out: Any
) -> None:
    for u in range(clusters.shape[0]):
        start, size = pointer[u], pointer[u + 1] - pointer[u]
        offset = np.int32(num_items * (1 + clusters[u]))
        for t in range(size):
            rows_out[2 * start + t] = rows[start + t]
            rows_out[2 * start + size + t] = offset + rows[start + t]
            for c in range(changes.shape[1]):
                changes_out[2 * start + t, c] = changes[start + t, c]
                changes_out[2 * start + size + t, c] = changes[start + t, c]
