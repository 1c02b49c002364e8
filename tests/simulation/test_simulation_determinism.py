"""The same seed gives the same run, to the last bit, however the users are spread over SuperNodes."""

import pytest

LIGHTGCN = {"encoder": "lightgcn", "leave_one_out": False, "norm_exponent": 0.0, "item_refresh_interval": 1}


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
        {
            "blend_weight": 0.5,
            "num_rounds": 5,
            "evaluate_every": 5,
            "clients_per_round": 150,
            "row_clip": 0.0,
            **LIGHTGCN,
        },
        {"negatives": "per-positive", "num_negatives": 32, "num_rounds": 5, "evaluate_every": 5},
    ],
    ids=lambda changes: next(iter(changes.items()))[0] + "=" + str(next(iter(changes.items()))[1]),
)
def test_nor_does_it_in_a_variant(finished, changes):
    finished(1, **changes).assert_same(finished(7, **changes))


@pytest.mark.parametrize("changes", [{}, {"negatives": "per-positive", "num_rounds": 5, "evaluate_every": 5}], ids=str)
def test_nor_does_the_number_of_threads(finished, changes):
    finished(threads=1, **changes).assert_same(finished(threads=3, **changes))
    finished(3, threads=4, **changes).assert_same(finished(3, threads=4, **changes))


def test_another_seed_is_another_run(finished):
    one, two = finished(), finished(seed=2)
    assert one.table.tobytes() != two.table.tobytes()
    assert one.summary["test"] != two.summary["test"]
