"""One SuperNode's users: a shard of them in a simulation, a single one on a phone. One code path for both.

`Node` says in which order things happen in a round and in an evaluation; what happens stands in `participation`, `cohort`,
`spending`, `history`, `streams`, `training`, `changes` and `evaluating`. Another model is a subclass of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.changes import current_deviations, whole_changes, with_counts
from fastpfrec_flwr.client.cohort import Cohort
from fastpfrec_flwr.client.deviation import Deviation
from fastpfrec_flwr.client.device import Allowance
from fastpfrec_flwr.client.evaluating import Ranker, evaluate_part, sampled_places
from fastpfrec_flwr.client.history import history_of
from fastpfrec_flwr.client.participation import device_users, places_of, round_users
from fastpfrec_flwr.client.spending import Spending
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.client.streams import Streams
from fastpfrec_flwr.client.training import LocalUpdates, can_train, train_cohort
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order, TrainReport
from fastpfrec_flwr.model.encoders import Encoder, build_encoder
from fastpfrec_flwr.model.graph import LocalGraphs, build_local_graphs
from fastpfrec_flwr.model.linear import popularity_bias
from fastpfrec_flwr.privacy.mechanism import Mechanism, PrivatizedUploads


@dataclass(frozen=True)
class Node:
    """What a SuperNode needs to train and evaluate its users.

    Attributes
    ----------
    num_users : of the whole simulation; on a real device its own.
    secret : on a real device the key of its false items and noise streams are the system's; None in a simulation, where
        everything comes from the seed.
    refit_rows : `merged_rows(shard)`, if the caller keeps them between rounds.
    user_metrics : file for the test metrics of each user, which stays on this machine; None keeps none.
    allowance : on a real device the book of what its uploads cost, over all trainings; None keeps none.
    """

    config: RunConfig
    shard: Shard
    state: ClientState
    mechanism: Mechanism
    num_users: int
    secret: int | None
    device: str
    threads: int
    refit_rows: Rows | None = None
    user_metrics: Path | None = None
    allowance: Allowance | None = None

    @property
    def encoder(self) -> Encoder:
        """How its users and items are encoded."""
        return build_encoder(self.config)

    def drawn(self, order: Order) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Places in the shard of the users that can train this round, and their nonces: for who must name them before."""
        positions = self._positions(order)
        positions = positions[can_train(self._graphs(self._history(order.phase), positions, order.phase))]
        return positions, self._keys("nonce", order, self.shard.users[positions])

    def train(
        self, table: NDArray[np.float32], order: Order, positions: NDArray[np.int64] | None = None
    ) -> tuple[PrivatizedUploads, TrainReport]:
        """Train this round's users and make their uploads private; their state moves on when the uploads are ready.

        Parameters
        ----------
        table : (items, k). positions : of the users, where `drawn` has named them already.
        """
        self._come_to(order)
        drawn = self._positions(order) if positions is None else positions
        history, spending = self._history(order.phase), self._spending(len(table))
        cohort = Cohort.of(self.shard.users, drawn, lambda places: self._graphs(history, places, order.phase), spending)
        users = cohort.users
        deviations = self._deviations(users, order.server_round)
        updates = self.local_updates(table, cohort.graphs, self._vectors(users), users, order, deviations)
        kept = None
        if deviations is not None:
            updates, kept = whole_changes(updates, deviations, order.server_round, self.blend_weight)
        if self.config.counted:
            updates = with_counts(updates, cohort.graphs, self.state.known(users))
        noise_keys = None if self.secret is not None else self._keys("noise", order, users)
        uploads = self.mechanism.privatize(updates, self._keys("nonce", order, users), noise_keys, len(table))
        spending.charge(order.server_round, users)
        self.state.save(order.server_round, users, updates.private, kept, spending.spent_after(users))
        if order.snapshot:
            self.state.snapshot(order.server_round)
        return uploads, cohort.report(order, updates)

    def evaluate(
        self,
        table: NDArray[np.float32],
        order: Order,
        parts: list[str],
        item_counts: NDArray[np.float32] | None = None,
    ) -> dict[str, MetricSums]:
        """Rank the users' unseen items and add up the metrics; masked is what the user has seen before `part`.

        A simulation may ask for a sample (`evaluate-users`): the same users in every round, however they are spread.

        Parameters
        ----------
        item_counts : (items,) noised users per item, where popularity has a say.
        """
        bias = None if item_counts is None else popularity_bias(item_counts, self.config.popularity_weight)
        sample = self._evaluated()
        whole = self._history(order.phase)
        users = self.shard.users[sample]
        history = Rows(whole.items, whole.starts[sample], whole.ends[sample])
        rank = self.ranker(table, users, history, self._vectors(users), bias)
        return {part: evaluate_part(rank, self.shard, sample, part, self.user_metrics) for part in parts}

    def ranker_for_all(self, table: NDArray[np.float32], phase: str) -> Ranker:
        """What ranks the catalogue for all users of the shard, for whoever looks at single items; item counts have no say."""
        users = self.shard.users
        return self.ranker(table, users, self._history(phase), self._vectors(users), None)

    # ---- what another model does in its own way (`baselines.federated`) ----------------------------------------------

    @property
    def blend_weight(self) -> float:
        """beta of what the device keeps of its own changes; 1 keeps none."""
        return self.config.blend_weight

    @property
    def epsilon_budget(self) -> float:
        """Epsilon that a user may spend in a run; 0 counts none."""
        return self.config.epsilon_budget

    def local_updates(
        self,
        table: NDArray[np.float32],
        graphs: LocalGraphs,
        private: NDArray[np.float32],
        users: NDArray[np.int64],
        order: Order,
        deviations: list[Deviation] | None,
    ) -> LocalUpdates:
        """One local step of every user of a cohort.

        Parameters
        ----------
        table : (rows, k), the items' rows first. private : (users, k). users : their numbers.
        deviations : each user's D_i, current, where `blend_weight` is below 1.
        """
        return train_cohort(
            table,
            self.encoder.item_weights(table),
            graphs,
            private,
            self._keys("negatives", order, users),
            self.config,
            refresh=self.encoder.refreshes(order.server_round),
            report_loss=order.report_loss,
            device=self.device,
            threads=self.threads,
            deviations=deviations,
        )

    def ranker(
        self,
        table: NDArray[np.float32],
        users: NDArray[np.int64],
        history: Rows,
        private: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
    ) -> Ranker:
        """What ranks the catalogue for some of this SuperNode's users.

        Parameters
        ----------
        table, users, private : as for `local_updates`. history : the users' true items. bias : (items,) or None.
        """
        vectors = self.encoder.user_vectors(table, history, private)
        if self.config.loss == "ccl":
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        choices = table[: self.shard.num_choices]
        of_choices = None if bias is None else bias[: self.shard.num_choices]

        def rank(asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
            return rank_top_k(
                vectors[asked], choices, masks, item_bias=of_choices, device=self.device, threads=self.threads
            )

        return rank

    # ---- who trains, and from what -----------------------------------------------------------------------------------

    def _positions(self, order: Order) -> NDArray[np.int64]:
        """Places in the shard of the users that train this round."""
        if self.secret is not None:
            return device_users(order.clients, len(self.shard.users))
        users = round_users(self.config.seed, order.phase, order.server_round, order.clients, self.num_users)
        return places_of(self.shard.users, users)

    def _evaluated(self) -> NDArray[np.int64]:
        """Places in the shard of the users that an evaluation ranks for."""
        if self.secret is not None:
            return np.arange(len(self.shard.users))
        return sampled_places(self.config, self.shard.users, self.num_users)

    def _spending(self, num_items: int) -> Spending:
        """What its users' uploads of `num_items` rows cost and have cost."""
        return Spending(self.config, self.epsilon_budget, self.state, self.allowance, num_items)

    def _history(self, phase: str) -> Rows:
        """What the users learn from, see `history_of`."""
        return history_of(self.shard, phase, self.refit_rows)

    def _graphs(self, history: Rows, positions: NDArray[np.int64], phase: str = "train") -> LocalGraphs:
        """Stars of the users at some places."""
        anew: tuple[str, ...] = ()
        if self.config.perturbation == "randomised-response":
            # With the same draws an item that only one of two stars has would be a true one for certain: the refit's has more,
            # another seed or fraction of the server's cuts a device's file in another way, and with other probabilities the same
            # draw lies on another side of them.
            anew = (phase,) if phase != "train" else ()
            if self.secret is not None:
                anew += (_digest(history), f"{self.config.keep_prob!r} {self.config.perturbation_prob!r}")
        return build_local_graphs(
            history.items,
            history.starts[positions],
            history.ends[positions],
            self._streams.of_false_items(self.shard.users[positions], *anew),
            self.shard.num_choices,
            self.config.perturbation,
            self.config.perturbation_prob,
            self.config.keep_prob,
        )

    # ---- draws -------------------------------------------------------------------------------------------------------

    @property
    def _streams(self) -> Streams:
        return Streams(self.config.seed, self.secret)

    def _keys(self, purpose: str, order: Order, users: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One stream per user for a purpose in a round."""
        return self._streams.keys(users, purpose, order.phase, order.server_round)

    # ---- what the devices keep ---------------------------------------------------------------------------------------

    def _come_to(self, order: Order) -> None:
        """Go back to where the server is, if that is before where the devices are."""
        if order.restore and self.secret is None:
            self.state.restore(order.restore)
        elif self.secret is not None and self.state.last_round() >= order.server_round:
            # The server has gone back to an earlier round, in this one or while this device was off line.
            self.state.go_back(order.server_round - 1)

    def _vectors(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """(users, k) p_u as they are now."""
        return self.state.vectors(users, self._initial_vectors(users))

    def _initial_vectors(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """(users, k) p_u before a user's first round."""
        return self._streams.first_vectors(users, self.config.embedding_dim, self.config.init_scale)

    def _deviations(self, users: NDArray[np.int64], server_round: int) -> list[Deviation] | None:
        """D_i of each user, current, where devices keep any."""
        if self.blend_weight == 1:
            return None
        return current_deviations(self.state.deviations(users), server_round, self.blend_weight)


def _digest(history: Rows) -> str:
    """Of who has what: another history is another one."""
    found = hashlib.sha256()
    for part in (history.starts, history.ends, history.items):
        found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()
