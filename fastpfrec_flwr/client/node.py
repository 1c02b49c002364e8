"""One SuperNode's users: a shard of them in a simulation, a single one on a phone. One code path for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.deviation import Deviation, add_change, after_round
from fastpfrec_flwr.client.device import Allowance
from fastpfrec_flwr.client.participation import device_users, round_users
from fastpfrec_flwr.client.state import ClientState, StateError
from fastpfrec_flwr.client.training import LocalUpdates, can_train, train_cohort
from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.draws import fill_normal
from fastpfrec_flwr.evaluation.metrics import MetricSums, per_user_metrics, sum_up
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows, RowsLike, entries_of
from fastpfrec_flwr.evaluation.user_metrics import UserMetrics
from fastpfrec_flwr.messages import Order, TrainReport
from fastpfrec_flwr.model.encoders import Encoder, build_encoder
from fastpfrec_flwr.model.graph import LocalGraphs, build_local_graphs
from fastpfrec_flwr.model.linear import popularity_bias
from fastpfrec_flwr.parallel import one_thread_products
from fastpfrec_flwr.privacy.exposure import upload_epsilons
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT, Mechanism, PrivatizedUploads
from fastpfrec_flwr.randomness import stream_key, user_stream_keys


class Ranker(Protocol):
    """Ranks the catalogue for some users."""

    def __call__(self, asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
        """(asked, 20) items, best first, as from `evaluation.ranking.rank_top_k`.

        Parameters
        ----------
        asked : places of the users in the shard. masks : what each of them cannot be recommended.
        """


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
        if order.restore and self.secret is None:
            self.state.restore(order.restore)
        elif self.secret is not None and self.state.last_round() >= order.server_round:
            # The server has gone back to an earlier round, in this one or while this device was off line.
            self.state.go_back(order.server_round - 1)
        drawn = self._positions(order) if positions is None else positions
        history = self._history(order.phase)
        graphs = self._graphs(history, drawn, order.phase)
        able = can_train(graphs)
        without_items = int((~able).sum())
        spent = self._spent_after(drawn, len(table))
        if spent is not None:
            able &= spent <= self._budget
        if self.allowance is not None:
            able &= self.allowance.allows(self.shard.users[drawn], self._costs(self.shard.users[drawn], len(table)))
        if spent is not None:
            spent = spent[able]
        if not able.all():
            drawn = drawn[able]
            graphs = self._graphs(history, drawn, order.phase)
        users = self.shard.users[drawn]
        vectors = self.state.vectors(users, self._initial_vectors(users))
        deviations = self._deviations(users, order.server_round)
        updates = self.local_updates(table, graphs, vectors, users, order, deviations)
        kept = None
        if deviations is not None:
            updates, kept = self._whole_changes(updates, deviations, order.server_round)
        if self.config.counted:
            updates = self._with_counts(updates, graphs, users)
        uploads = self.mechanism.privatize(
            updates,
            self._keys("nonce", order, users),
            None if self.secret is not None else self._keys("noise", order, users),
            len(table),
        )
        if self.allowance is not None:
            self.allowance.charge(order.server_round, users, self._costs(users, len(table)))
        self.state.save(order.server_round, users, updates.private, kept, spent)
        if order.snapshot:
            self.state.snapshot(order.server_round)
        asked = order.report_loss
        return uploads, TrainReport(
            order.server_round,
            int((~able).sum()),
            float(updates.losses.sum()) if asked else 0.0,
            int(updates.own_counts.sum()) if asked else 0,
            int((~able).sum()) - without_items,
            order.table_version,
        )

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
        history = Rows(whole.items, whole.starts[sample], whole.ends[sample])
        users = self.shard.users[sample]
        private = self.state.vectors(users, self._initial_vectors(users))
        rank = self.ranker(table, users, history, private, bias)
        sums = {}
        for part in parts:
            truth = self.shard.validation if part == "validation" else self.shard.test
            masks = [self.shard.train] if part == "validation" else [self.shard.train, self.shard.validation]
            asked = np.flatnonzero(truth.ends[sample] > truth.starts[sample])
            places = sample[asked]
            with one_thread_products():
                top = rank(asked, [own_rows(mask, places) for mask in masks])
            per_user = per_user_metrics(top, own_rows(truth, places))
            sums[part] = sum_up(per_user)
            if part == "test" and self.user_metrics is not None:
                UserMetrics.of(users[asked], per_user).save(self.user_metrics)
        return sums

    def ranker_for_all(self, table: NDArray[np.float32], phase: str) -> Ranker:
        """What ranks the catalogue for all users of the shard, for whoever looks at single items; item counts have no say."""
        users = self.shard.users
        private = self.state.vectors(users, self._initial_vectors(users))
        return self.ranker(table, users, self._history(phase), private, None)

    def _evaluated(self) -> NDArray[np.int64]:
        """Places in the shard of the users that an evaluation ranks for."""
        if self.config.evaluate_users == 0 or self.secret is not None:
            return np.arange(len(self.shard.users))
        users = round_users(self.config.seed, "evaluation", 1, self.config.evaluate_users, self.num_users)
        return _places_of(self.shard.users, users)

    # ---- what another model does in its own way (`baselines.federated`) ----------------------------------------------

    @property
    def blend_weight(self) -> float:
        """beta of what the device keeps of its own changes; 1 keeps none."""
        return self.config.blend_weight

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

    # ------------------------------------------------------------------------------------------------------------------

    def _positions(self, order: Order) -> NDArray[np.int64]:
        """Places in the shard of the users that train this round."""
        if self.secret is not None:
            return device_users(order.clients, len(self.shard.users))
        users = round_users(self.config.seed, order.phase, order.server_round, order.clients, self.num_users)
        return _places_of(self.shard.users, users)

    def _history(self, phase: str) -> Rows:
        """What the users learn from: their train items, on a refit their validation items too."""
        train = self.shard.train
        if phase == "train":
            return Rows(train.items, train.starts, train.ends)
        return self.refit_rows if self.refit_rows is not None else merged_rows(self.shard)

    def _graphs(self, history: Rows, positions: NDArray[np.int64], phase: str = "train") -> LocalGraphs:
        users = self.shard.users[positions]
        key = stream_key(self.config.seed, "secret") if self.secret is None else self.secret
        if self.config.perturbation == "randomised-response" and phase != "train":
            # With the same draws an item that only the refit's star has would be a true one for certain.
            key = stream_key(key, "secret", phase)
        return build_local_graphs(
            history.items,
            history.starts[positions],
            history.ends[positions],
            user_stream_keys(key, users),
            self.shard.num_choices,
            self.config.perturbation,
            self.config.perturbation_prob,
            self.config.keep_prob,
        )

    def _keys(self, purpose: str, order: Order, users: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One stream per user for a purpose in a round."""
        seed = self.config.seed if self.secret is None else self.secret
        return user_stream_keys(stream_key(seed, purpose, order.phase, order.server_round), users)

    def _initial_vectors(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """p_u before a user's first round: N(0, init-scale^2)."""
        seed = self.config.seed if self.secret is None else self.secret
        vectors = np.empty((len(users), self.config.embedding_dim), np.float32)
        _normal_rows(user_stream_keys(stream_key(seed, "private-vector"), users), vectors)
        return vectors * np.float32(self.config.init_scale)

    def _deviations(self, users: NDArray[np.int64], server_round: int) -> list[Deviation] | None:
        if self.blend_weight == 1:
            return None
        kept = self.state.deviations(users)
        if any(deviation.server_round >= server_round for deviation in kept):
            raise StateError(
                f"users of this device have trained in round {server_round} already; a round is trained once"
            )
        return [deviation.at_start_of(server_round, self.blend_weight) for deviation in kept]

    def _with_counts(self, updates: LocalUpdates, graphs: LocalGraphs, users: NDArray[np.int64]) -> LocalUpdates:
        """One more column: `COUNT_UNIT` on a user's own items in the first round that it trains, zero otherwise.

        Own are the items that its graph calls so: with randomised response the drawn ones.
        """
        trained = self.state.known(users)
        counts = np.zeros((len(updates.rows), 1), np.float32)
        for j in np.flatnonzero(~trained):
            start, stop = updates.pointer[j], updates.pointer[j + 1]
            own = graphs.items[graphs.pointer[j] : graphs.pointer[j] + graphs.own_counts[j]]
            counts[start:stop, 0] = COUNT_UNIT * np.isin(updates.rows[start:stop], own, assume_unique=True)
        return replace(updates, changes=np.hstack([updates.changes, counts]))

    @property
    def _budget(self) -> float:
        """Epsilon that a user may spend in one phase: a refit is a second training, with a state of its own."""
        # Sums of floats may end a hair above a budget that is meant to be used up.
        return self.config.epsilon_budget / (2 if self.config.refit else 1) * (1 + 1e-9)

    def _spent_after(self, positions: NDArray[np.int64], num_items: int) -> NDArray[np.float64] | None:
        """(users,) epsilon that each user has spent if it uploads once more, by plain addition; None without a budget."""
        if self.config.epsilon_budget == 0:
            return None
        users = self.shard.users[positions]
        return self.state.spent(users) + self._costs(users, num_items)

    def _costs(self, users: NDArray[np.int64], num_items: int) -> NDArray[np.float64]:
        """(users,) pure epsilon of one more upload of each user."""
        each, first = upload_epsilons(self.config, num_items)
        return each + np.where(self.state.known(users), 0.0, first)

    def _whole_changes(
        self, updates: LocalUpdates, deviations: list[Deviation], server_round: int
    ) -> tuple[LocalUpdates, list[Deviation]]:
        """Theta_i minus the table on every row where it is not zero, and the D_i that the users keep of it."""
        trained = [
            add_change(deviation, updates.rows[start:stop], updates.changes[start:stop])
            for deviation, start, stop in zip(deviations, updates.pointer[:-1], updates.pointer[1:], strict=True)
        ]
        k = self.config.embedding_dim
        pointer = np.cumsum([0, *(len(each.rows) for each in trained)], dtype=np.int64)
        whole = LocalUpdates(
            np.concatenate([np.empty(0, np.int32), *(each.rows for each in trained)]),
            pointer,
            np.concatenate([np.empty((0, k), np.float32), *(each.values for each in trained)]),
            updates.private,
            updates.losses,
            updates.own_counts,
        )
        return whole, [after_round(each, server_round, self.blend_weight) for each in trained]


def _places_of(own: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the `wanted` users that are among `own` stand there; both ascending and distinct."""
    places = np.searchsorted(own, wanted)
    inside = places < len(own)
    found: NDArray[np.int64] = places[inside][own[places[inside]] == wanted[inside]].astype(np.int64)
    return found


def merged_rows(shard: Shard) -> Rows:
    """Each user's train and validation items together, ascending: what a refit learns from."""
    both = [np.sort(np.concatenate([shard.train.row(i), shard.validation.row(i)])) for i in range(len(shard.users))]
    lengths = np.array([len(row) for row in both], np.int64)
    ends = np.cumsum(lengths)
    return Rows(np.concatenate([*both, np.empty(0, np.int32)]).astype(np.int32), ends - lengths, ends)


def own_rows(rows: RowsLike, positions: NDArray[np.int64]) -> Rows:
    """Copy these users' rows alone: the ranking checks every item that it is given, and nobody else's may be read."""
    starts, ends = rows.starts[positions], rows.ends[positions]
    _, items = entries_of(Rows(rows.items, starts, ends))
    bounds = np.cumsum(ends - starts)
    return Rows(items, bounds - (ends - starts), bounds)


@compiled
def _normal_rows(keys: Any, rows: Any) -> None:
    for u in range(rows.shape[0]):
        fill_normal(keys[u], rows[u])
