"""Promotion of a cold item and clustering."""

import numpy as np
import pytest
from scenes import K, filled, own_of, scene_of

from fastpfrec_flwr.attacks.items import Clustering, Promotion, lifting_direction, pull_to_centres, target_item
from fastpfrec_flwr.attacks.training import lying_shard
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.data.types import ShardRows
from tests.whole_runs import settings_of


def test_the_target_is_the_coldest_item_that_somebody_has():
    popularity = np.array([0, 5, 2, 9, 2])
    assert {target_item(-1, popularity, seed) for seed in range(40)} == {2, 4}
    assert target_item(-1, popularity, 7) == target_item(-1, popularity, 7)
    assert target_item(3, popularity, 1) == 3
    with pytest.raises(ValueError, match="attack-target-item must be < 5"):
        target_item(5, popularity, 1)


def shard_of(train, validation):
    """Users 0, 1, ... of a catalogue of 12 items."""

    def rows(items):
        ends = np.cumsum([len(each) for each in items]).astype(np.int64)
        starts = ends - [len(each) for each in items]
        return ShardRows(np.array([item for each in items for item in each], np.int32), starts.astype(np.int64), ends)

    none = rows([[] for _ in train])
    return Shard(np.arange(len(train)), 12, rows(train), rows(validation), none)


def test_shilling_adds_the_item_and_takes_none_away():
    config = parse_run_config(settings_of({"attack": "shilling"}))
    shard = lying_shard(shard_of([[1, 5], [0], [7, 9], []], [[2], [], [3], []]), config, np.array([0, 2, 3]), 7)
    assert shard.users.tolist() == [0, 2, 3]
    assert [shard.train.row(place).tolist() for place in range(3)] == [[1, 5, 7], [7, 9], [7]]
    assert [shard.validation.row(place).tolist() for place in range(3)] == [[2], [3], []]


def test_label_flip_has_as_many_items_and_none_of_its_own():
    config = parse_run_config(settings_of({"attack": "label-flip"}))
    honest = shard_of([[1, 5], [0]], [[2], []])
    flipped = lying_shard(honest, config, np.array([0, 1]), 7)
    first = {*flipped.train.row(0).tolist(), *flipped.validation.row(0).tolist()}
    assert (len(flipped.train.row(0)), len(flipped.validation.row(0)), len(first)) == (2, 1, 3)
    assert not first & {1, 2, 5}
    again = lying_shard(honest, config, np.array([0, 1]), 7)
    assert again.train.items.tolist() == flipped.train.items.tolist()


def table_of(items=60, seed=0):
    return np.random.default_rng(seed).normal(0.5, 1.0, (items, K)).astype(np.float32)


def test_promotion_replaces_one_row_and_nothing_else():
    table = table_of()
    scene = scene_of(table, attack_target_item=4, row_clip=16.0, attack_noise=False, server_round=3)
    own = own_of({0: [1.0, 2.0], 9: [3.0, 4.0]}, {4: [5.0, 5.0]})
    forgery = Promotion().forge(own, scene)
    first, second = filled(forgery, 0), filled(forgery, 1)
    assert (first[0], first[9]) == ([1.0, 2.0], [3.0, 4.0])
    assert sorted(first) == [0, 4, 9]
    assert list(second) == [4]
    assert first[4] == second[4]
    assert np.linalg.norm(first[4]) == pytest.approx(16.0, rel=1e-5)
    assert first[4] / np.linalg.norm(first[4]) == pytest.approx(lifting_direction(scene, 4), rel=1e-4)


def test_promotion_lifts_the_item_for_people_who_never_met_it():
    """Users made of other random items than those that the liars made up: their scores of the target rise."""
    table = table_of()
    scene = scene_of(table, attack_target_item=4)
    generator = np.random.default_rng(5)
    users = np.array([table[generator.choice(60, 15, replace=False)].mean(axis=0) for _ in range(200)])
    lifted = table[4] + 0.5 * lifting_direction(scene, 4)
    assert (users @ lifted > users @ table[4]).mean() > 0.9


def test_clusters():
    """Two heaps far apart and a third: every row is pulled to the middle of its own."""
    heaps = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 4, axis=0)
    offsets = np.tile([[1, 0], [-1, 0], [0, 1], [0, -1]], (3, 1)) * 0.1
    found = {}
    for seed in range(12):
        pull = pull_to_centres((heaps + offsets).astype(np.float32), seed)
        found[seed] = float(np.abs(pull + offsets).max())
    assert min(found.values()) < 1e-5  # started from one row of each heap, Lloyd's steps end in the heaps


def test_clustering_is_as_large_as_the_honest_change():
    table = table_of()
    own = own_of({0: [3.0, 4.0], 7: [0.0, 12.0]})  # norm 13
    scene = scene_of(table, attack_noise=False)
    forged = filled(Clustering().forge(own, scene), 0)
    pull = pull_to_centres(table, scene.config.seed)[[0, 7]]
    np.testing.assert_allclose(list(forged.values()), 13.0 * pull / np.linalg.norm(pull), rtol=1e-4)
    double = filled(Clustering().forge(own, scene_of(table, attack_noise=False, attack_strength=2.0)), 0)
    np.testing.assert_allclose(list(double.values()), 2 * np.array(list(forged.values())), rtol=1e-5)
