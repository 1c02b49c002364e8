"""A cohort of real users, as the kernels and the straightforward loop take it, and what it costs them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.output import Line, spread
from benchmarks.reference import Client, run_round
from benchmarks.setup import configuration
from fastpfrec_flwr.client.build import build_mechanism
from fastpfrec_flwr.client.participation import round_users
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import LocalUpdates, train_cohort
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import open_shard
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.model.encoders import build_encoder
from fastpfrec_flwr.model.graph import LocalGraphs, build_local_graphs
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.randomness import derive_generator, stream_key, user_stream_keys
from fastpfrec_flwr.server.steps import initial_table


@dataclass(frozen=True)
class Cohort:
    """What local training of one round needs; `table` (items, k), `private` (users, k), `keys` (users,)."""

    config: RunConfig
    graphs: LocalGraphs
    table: NDArray[np.float32]
    weights: NDArray[np.float32]
    private: NDArray[np.float32]
    keys: NDArray[np.uint64]

    def train(self, threads: int) -> LocalUpdates:
        """All of it in one call."""
        return train_cohort(
            self.table, self.weights, self.graphs, self.private, self.keys, self.config, threads=threads
        )

    def clients(self) -> list[Client]:
        """One object for each client, with the very same draws."""
        graphs, shared = self.graphs, self.config.negatives == "shared"
        plan = plan_cohort(graphs, self.keys, shared, self.config.num_negatives)
        found = []
        for user in range(graphs.num_users):
            slots = plan.negative_slots[user]
            edges = graphs.items[graphs.pointer[user] : graphs.pointer[user + 1]].astype(np.int64)
            negatives = plan.rows[slots[slots >= 0]].astype(np.int64)
            found.append(Client(edges, int(graphs.own_counts[user]), negatives, self.private[user]))
        return found


def real_cohort(config: RunConfig, count: int) -> Cohort:
    """`count` users of the configured data set, as round 1 draws them."""
    prepared = prepare_run(config)
    shard = open_shard(prepared.directory, 0, 1)
    users = round_users(config.seed, "train", 1, count, len(shard.users))
    table = initial_table(shard.num_items, config.embedding_dim, config)
    graphs = build_local_graphs(
        shard.train.items, shard.train.starts[users], shard.train.ends[users],
        user_stream_keys(stream_key(config.seed, "secret"), users), shard.num_choices,
        config.perturbation, config.perturbation_prob, config.keep_prob,
    )  # fmt: skip
    generator = derive_generator(config.seed, "benchmark")
    private = (config.init_scale * generator.standard_normal((len(users), config.embedding_dim))).astype(np.float32)
    keys = user_stream_keys(stream_key(config.seed, "negatives", "train", 1), users)
    return Cohort(config, graphs, table, build_encoder(config).item_weights(table), private, keys)


def measured(
    data_sets: list[str], data_dir: str, clients: int, repeats: int, threads: int
) -> Iterator[tuple[Line, Line]]:
    """Milliseconds a client of the straightforward loop and of the kernels with their noise, for each data set.

    Parameters
    ----------
    threads : 0 takes what the process was given.
    """
    given = available_threads(threads)
    torch.set_num_threads(given)
    for data_set in data_sets:
        cohort = real_cohort(configuration(data_set, data_dir), clients)
        mechanism, each = build_mechanism(cohort.config, given), cohort.clients()
        loop, kernels = [], []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            run_round(cohort.table, each, cohort.weights, cohort.config, refresh=False)
            middle = time.perf_counter()
            mechanism.privatize(cohort.train(given), cohort.keys, cohort.keys, len(cohort.table))
            loop.append((middle - began) / clients)
            kernels.append((time.perf_counter() - middle) / clients)
        about = {"data_set": data_set, "clients": clients}
        yield {**about, "kind": "one by one", **spread(loop[1:])}, {**about, "kind": "cohort", **spread(kernels[1:])}
