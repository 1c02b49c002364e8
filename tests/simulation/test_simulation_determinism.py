"""The same seed gives the same run, to the last bit, however the users are spread over SuperNodes."""

import pytest


def test_again_is_the_same(finished):
    finished().assert_same(finished())


@pytest.mark.parametrize("num_supernodes", [1, 5, 10])
def test_the_number_of_supernodes_changes_nothing(finished, num_supernodes):
    finished(num_supernodes).assert_same(finished(2))


@pytest.mark.parametrize(
    "changes",
    [
        {"refit": True},
        {"upload": "sparse"},
        {"check": "paper", "robust_z_threshold": 1.0, "outlier_ratio_threshold": 0.9},
        {"check": "absolute"},
        {"tier": "direct"},
        {"node_aggregator": "median", "num_rounds": 3, "evaluate_every": 3},
        {"node_aggregator": "multi-krum", "num_rounds": 3, "evaluate_every": 3},
        {"server_aggregator": "geometric-median", "num_rounds": 3, "evaluate_every": 3},
        {"negatives": "per-positive", "num_negatives": 2, "num_rounds": 4, "evaluate_every": 2},
        {"local_optimizer": "adam", "item_learning_rate": 1.0, "num_rounds": 3, "evaluate_every": 3},
        {"blend_weight": 0.5, "num_rounds": 3, "evaluate_every": 3},
    ],
    ids=lambda changes: next(iter(changes.items()))[0] + "=" + str(next(iter(changes.items()))[1]),
)
def test_nor_does_it_in_a_variant(finished, changes):
    finished(1, **changes).assert_same(finished(7, **changes))


def test_nor_does_the_number_of_threads(finished):
    finished(threads=1).assert_same(finished(threads=3))


def test_another_seed_is_another_run(finished):
    one, two = finished(), finished(seed=2)
    assert one.table.tobytes() != two.table.tobytes()
    assert one.summary["test"] != two.summary["test"]
