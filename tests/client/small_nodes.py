"""Thirty users with few items, for tests of a SuperNode."""

from cohorts import make_parts, run_config

USERS, ITEMS, K = 30, 80, 8
PARTS = make_parts(USERS, ITEMS)


def config_of(**changes):
    return run_config(
        **{"embedding_dim": K, "num_negatives": 8, "num_trusted_nodes": 1, "item_learning_rate": 5.0, **changes}
    )
