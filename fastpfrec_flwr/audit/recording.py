"""A ClientApp around the honest one that keeps what observers make of each round, and nothing of the clients' own.

Uploads are looked at as they would arrive: the cover noise that a simulated dense upload leaves out is drawn first. Looked at and
forgotten round by round, so memory does not grow with the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.audit.observers import interaction_scores, node_surprises, touched_rows
from fastpfrec_flwr.client.app import app as honest_app
from fastpfrec_flwr.client.build import build_client
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import open_shard
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.messages import Order, TrainReport
from fastpfrec_flwr.model.graph import LocalGraphs, build_local_graphs
from fastpfrec_flwr.privacy.laws import NoiseLaw
from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.server.aggregators import MeanPoints
from fastpfrec_flwr.server.build import build_tier
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.aggregators import Aggregator
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.tier import TrustedNodes
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclasses.dataclass
class Seen:
    """What observers have of one user: one entry for each of its uploads, in order.

    Attributes
    ----------
    touched : (items,) rows that a trusted node sees move. upload_scores : (items,) its scores.
    node_scores : (items,) the server's, of the mean of the node that the user was at; none without trusted nodes.
    """

    touched: list[NDArray[np.bool_]] = dataclasses.field(default_factory=list)
    upload_scores: list[NDArray[np.float64]] = dataclasses.field(default_factory=list)
    node_scores: list[NDArray[np.float64]] = dataclasses.field(default_factory=list)


class Recorder:
    """Stands where the ClientApp stands.

    Parameters
    ----------
    config : the run's. users : (watched,) users whose uploads are looked at. num_items : rows of the table.
    fresh_state : folder for the state of clients that draw their false items anew each round; None leaves the honest ones.
    """

    def __init__(
        self, config: RunConfig, users: NDArray[np.int64], num_items: int, fresh_state: Path | None = None
    ) -> None:
        self._config = config
        self._num_items = num_items
        self._fresh = None if fresh_state is None else _FreshClients(fresh_state)
        self.seen = {int(user): Seen() for user in users}
        self._users = users
        self._round = 0
        self._phase = ""
        self._parts: list[Uploads] = []
        self._lock = Lock()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the honest app does, and look at what leaves."""
        if message.metadata.message_type != "train":
            return honest_app(message, context)
        reply = honest_app(message, context) if self._fresh is None else self._fresh(message, context)
        with self._lock:  # SuperNodes may answer side by side
            self._take(message, reply)
        return reply

    def _take(self, message: Message, reply: Message) -> None:
        order = messages.decode_query(message.content)
        if (order.phase, order.server_round) != (self._phase, self._round):
            self.close_round()
            self._phase, self._round = order.phase, order.server_round
        config = self._config
        decoded = messages.decode_uploads(
            reply, order.server_round, config.clients_per_round, self._num_items, config.upload_width,
            config.effective_noise_scale if config.upload == "dense" else 0.0, 1, config.upload_precision,
            noise_kind=config.noise_kind,
        )  # fmt: skip
        if decoded.uploads.num_clients:
            self._parts.append(decoded.uploads)

    def close_round(self) -> None:
        """Look at the uploads of the round that has ended; to be called once more after the run."""
        if self._parts and self._phase == "train":
            key = stream_key(self._config.seed, "nonce", self._phase, self._round)
            nonces = user_stream_keys(key, self._users)
            users = dict(zip(nonces.tolist(), self._users.tolist(), strict=True))
            self._look_at_uploads(users)
            self._look_at_nodes(users)
        self._parts = []

    def _look_at_uploads(self, users: dict[int, int]) -> None:
        watched = np.array(list(users), np.uint64)
        chosen = [np.flatnonzero(np.isin(part.nonces, watched)) for part in self._parts]
        if not any(len(each) for each in chosen):
            return
        key = stream_key(self._config.seed, "cover-rows", self._round)
        points = UploadPoints.gather(self._parts, chosen, self._num_items, key)
        k = self._config.embedding_dim
        noise = NoiseLaw(self._config.noise_kind, self._config.effective_noise_scale)
        for client, nonce in enumerate(points.uploads.nonces.tolist()):
            seen = self.seen[users[nonce]]
            if self._config.upload == "dense":
                table = points.table(client)[:, :k]
                moved = touched_rows(table, noise)
                seen.touched.append(moved)
                seen.upload_scores.append(interaction_scores(table, moved, self._config.num_negatives))
                continue
            mine = slice(points.uploads.pointer[client], points.uploads.pointer[client + 1])
            rows, values = points.uploads.rows[mine], points.uploads.values[mine, :k]
            # A sparse upload has touched rows alone; of those drawn by lot most were not touched.
            sparse = self._config.upload == "sparse"
            moved = np.ones(len(rows), np.bool_) if sparse else touched_rows(values, noise)
            arrived = 1.0 if sparse else self._config.sampled_share
            scores = interaction_scores(values, moved, self._config.num_negatives * arrived)
            touched = np.zeros(self._num_items, np.bool_)
            touched[rows[moved]] = True
            # What did not travel was not touched: it is less likely an item of the user's than anything that did.
            whole = np.full(self._num_items, scores.min() - 1.0)
            whole[rows] = scores
            seen.touched.append(touched)
            seen.upload_scores.append(whole)

    def _look_at_nodes(self, users: dict[int, int]) -> None:
        tier = build_tier(self._config, 1)
        if not isinstance(tier, TrustedNodes):
            return
        listening = _Listening(tier.aggregator)
        reports = dataclasses.replace(tier, aggregator=listening).collect(self._parts, self._num_items, self._round)
        means = [report.mean for report in reports if report.mean is not None]
        if len(means) < 2:
            return
        k = self._config.embedding_dim
        keys = [stream_key(self._config.seed, "cover-node", self._round, node) for node in range(len(means))]
        points = MeanPoints(means, self._num_items, self._config.upload_width, np.array(keys, np.uint64))
        tables = np.concatenate([values for _, values in points.blocks()], axis=1)[:, :, :k]
        missed = 1.0 - min(self._config.num_negatives / self._num_items, 1.0)
        scores = []
        for mean, table in zip(means, tables, strict=True):
            noise = NoiseLaw(mean.noise_kind, self._config.effective_noise_scale / math.sqrt(mean.clients))
            # Rows that at least one of the node's clients draws as a negative.
            negatives = self._num_items * (1.0 - missed**mean.clients)
            scores.append(interaction_scores(table, touched_rows(table.astype(np.float32), noise), negatives))
        surprises = node_surprises(np.stack(scores))
        for mean, row in zip(means, surprises, strict=True):
            for nonce in listening.nonces_behind(mean):
                if nonce in users:
                    self.seen[users[nonce]].node_scores.append(row)


class _Listening:
    """An aggregator that remembers whose uploads it was given."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._given: list[tuple[NodeMean, list[int]]] = []

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`."""
        mean = self._aggregator.aggregate(parts, members, num_items, cover_key)
        nonces = [nonce for part, chosen in zip(parts, members, strict=True) for nonce in part.nonces[chosen].tolist()]
        self._given.append((mean, nonces))
        return mean

    def nonces_behind(self, mean: NodeMean) -> Iterator[int]:
        """Whose uploads went into a mean."""
        for made, nonces in self._given:
            if made is mean:
                yield from nonces


class _FreshNode(Node):
    """Clients that forget their secret after every round: what the app must not do, for comparison."""

    def train(
        self, table: NDArray[np.float32], order: Order, positions: NDArray[np.int64] | None = None
    ) -> tuple[PrivatizedUploads, TrainReport]:
        """See `Node`; the round goes into the key of the false items."""
        object.__setattr__(self, "_of_round", order.server_round)
        return super().train(table, order, positions)

    def _graphs(self, history: Rows, positions: NDArray[np.int64], phase: str = "train") -> LocalGraphs:
        key = stream_key(self.config.seed, "secret", getattr(self, "_of_round", 0))
        return build_local_graphs(
            history.items, history.starts[positions], history.ends[positions],
            user_stream_keys(key, self.shard.users[positions]), self.shard.num_items,
            self.config.perturbation, self.config.perturbation_prob, self.config.keep_prob,
        )  # fmt: skip


class _FreshClients:
    """Answers train messages with `_FreshNode`s."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[int, _FreshNode] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        from fastpfrec_flwr.config import parse_run_config

        config = parse_run_config(context.run_config)
        partition = int(context.node_config["partition-id"])
        if partition not in self._nodes:
            self._nodes[partition] = self._open(config, partition, int(context.node_config["num-partitions"]))
        table, order = messages.decode_train(message.content, config.embedding_dim)
        uploads, report = self._nodes[partition].train(table, order)
        return Message(messages.encode_uploads(uploads, report), reply_to=message)

    def _open(self, config: RunConfig, partition: int, partitions: int) -> _FreshNode:
        prepared = prepare_run(config)
        node = build_client(
            config,
            open_shard(prepared.directory, partition, partitions),
            ClientState(self._folder / f"{partition}.sqlite3", config.embedding_dim),
            prepared.load().num_users,
        )
        return _FreshNode(**{field.name: getattr(node, field.name) for field in dataclasses.fields(node)})
