"""Small nodes of the federated baselines, and what a test of their steps needs to do them again by hand."""

import numpy as np
import torch

from fastpfrec_flwr.client.build import build_client
from fastpfrec_flwr.client.state import ClientState
from tests.client.cohorts import make_parts, make_shard, make_table, order, run_config

USERS, ITEMS, K = 12, 60, 8
PARTS = make_parts(USERS, ITEMS)
PLAIN = {
    "embedding_dim": K, "num_negatives": 10, "num_trusted_nodes": 1, "item_learning_rate": 1.0,
    "user_learning_rate": 1.0, "weights_learning_rate": 1.0, "l2": 0.05, "user_l2": 0.03, "noise": "none", "noise_scale": 0.0,
}  # fmt: skip


def node_of(tmp_path, model, parts=PARTS, **changes):
    config = run_config(**{**PLAIN, "model": model, **changes})
    state = ClientState(tmp_path / f"{model}.sqlite3", K)
    return build_client(config, make_shard(parts, ITEMS), state, len(parts[0]))


def cohort_of(node, server_round=1):
    """Stars, private vectors and users of everybody."""
    users = node.shard.users
    graphs = node._graphs(node._history("train"), np.arange(len(users)))
    private = make_table(len(users), K, 9)
    return graphs, private, users, order(server_round, len(users), report_loss=True)


def stars_of(graphs, plan, user):
    """Slots of a user's own items, of its whole star, of its negatives."""
    start, stop, n = graphs.pointer[user], graphs.pointer[user + 1], graphs.own_counts[user]
    negatives = plan.negative_slots[user]
    return plan.edge_slots[start : start + n], plan.edge_slots[start:stop], negatives[negatives >= 0]


def bpr(positive, negative):
    """Sum over positives, mean over negatives."""
    return -torch.nn.functional.logsigmoid(positive[:, None] - negative[None, :]).mean(dim=1).sum()
