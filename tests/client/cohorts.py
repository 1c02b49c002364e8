"""Small cohorts, shards and nodes for the tests of floor 1."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.data import Shard, ShardRows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.graph import LocalGraphs, build_local_graphs
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism
from fastpfrec_flwr.randomness import stream_key, user_stream_keys

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = default_values(ROOT / "pyproject.toml")


def run_config(**changes):
    return parse_run_config({**DEFAULTS, **{key.replace("_", "-"): value for key, value in changes.items()}})


def end_to_end(lists):
    """Rows end to end: items, starts, ends."""
    items = np.concatenate([np.empty(0, np.int32), *(np.asarray(row, np.int32) for row in lists)]).astype(np.int32)
    ends = np.cumsum([len(row) for row in lists], dtype=np.int64)
    return items, ends - np.array([len(row) for row in lists], np.int64), ends


def random_lists(sizes, num_items, seed=1):
    generator = np.random.default_rng(seed)
    return [np.sort(generator.choice(num_items, size, replace=False)) for size in sizes]


@dataclass
class Cohort:
    lists: list
    graphs: LocalGraphs
    table: np.ndarray
    weights: np.ndarray
    private: np.ndarray
    keys: np.ndarray
    secrets: np.ndarray
    perturbation: str
    probability: float

    def alone(self, user):
        """The cohort of this one user."""
        graphs = build_local_graphs(
            *end_to_end([self.lists[user]]),
            self.secrets[user : user + 1],
            len(self.table),
            self.perturbation,
            self.probability,
        )
        one = slice(user, user + 1)
        return Cohort(
            [self.lists[user]],
            graphs,
            self.table,
            self.weights,
            self.private[one],
            self.keys[one],
            self.secrets[one],
            self.perturbation,
            self.probability,
        )


def random_cohort(
    sizes=(5, 1, 12, 3, 20, 7),
    num_items=60,
    k=8,
    seed=1,
    unit=False,
    perturbation="relative",
    probability=0.3,
    spread=0.5,
):
    """Users with random items, a random table and random weights."""
    generator = np.random.default_rng(seed)
    lists = random_lists(sizes, num_items, seed)
    secrets = user_stream_keys(stream_key(seed, "secret"), np.arange(len(sizes)))
    graphs = build_local_graphs(*end_to_end(lists), secrets, num_items, perturbation, probability)
    table = (spread * generator.standard_normal((num_items, k))).astype(np.float32)
    if unit:
        table /= np.linalg.norm(table, axis=1, keepdims=True)
    return Cohort(
        lists,
        graphs,
        table,
        generator.uniform(0.5, 1.5, num_items).astype(np.float32),
        (spread * generator.standard_normal((len(sizes), k))).astype(np.float32),
        user_stream_keys(stream_key(seed, "negatives", 1), np.arange(len(sizes))),
        secrets,
        perturbation,
        probability,
    )


# ---- shards and nodes ------------------------------------------------------------------------------------------------


def make_shard(parts, num_items, partition=0, num_partitions=1, poison=None):
    """Shard of the users `partition, partition + num_partitions, ...` over arrays of all users' rows.

    Parameters
    ----------
    parts : train, validation and test lists of all users.
    poison : what stands in the place of every other user's items; None leaves them.
    """
    users = np.arange(partition, len(parts[0]), num_partitions, dtype=np.int64)
    rows = []
    for lists in parts:
        items, starts, ends = end_to_end(lists)
        if poison is not None:
            own = np.zeros(len(items), bool)
            for user in users:
                own[starts[user] : ends[user]] = True
            items[~own] = np.resize(np.asarray(poison, np.int32), (~own).sum())
        rows.append(ShardRows(items, starts[users], ends[users]))
    return Shard(users, num_items, *rows)


def make_parts(num_users=30, num_items=80, seed=3, largest=12):
    """Random train, validation and test lists; disjoint for each user."""
    generator = np.random.default_rng(seed)
    parts = ([], [], [])
    for _ in range(num_users):
        size = int(generator.integers(1, largest + 1))
        mine = generator.choice(num_items, size + 4, replace=False)
        for part, piece in zip(parts, (mine[:size], mine[size : size + 2], mine[size + 2 :]), strict=True):
            part.append(np.sort(piece))
    return parts


def make_table(num_items, k, seed=5, spread=0.3):
    return (spread * np.random.default_rng(seed).standard_normal((num_items, k))).astype(np.float32)


def make_node(path, config, shard, num_users, mechanism=None, secret=None, threads=1):
    state = ClientState(path, config.embedding_dim)
    mechanism = mechanism or LaplaceMechanism(Clip(config.row_clip, config.clip_norm), 0.1, True, threads)
    return Node(config, shard, state, mechanism, num_users, secret, "cpu", threads)


def order(server_round=1, clients=10, **changes):
    return Order("source", "state", changes.pop("phase", "train"), server_round, clients, **changes)
