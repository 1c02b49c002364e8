"""The generated set has the properties that a test of a model can lean on."""

from __future__ import annotations

import numpy as np
import pytest

from fastpfrec_flwr.data import DataError, SplitSettings, prepare
from fastpfrec_flwr.data.synthetic import synthetic_interactions


def test_popularity_has_a_long_tail() -> None:
    made = synthetic_interactions()
    popularity = np.sort(np.bincount(made.items, minlength=400))[::-1]
    assert popularity[:40].sum() / len(made.items) > 0.3, "the top tenth of the items holds a large share"
    assert popularity[200:].sum() / len(made.items) < 0.25
    flat = synthetic_interactions(exponent=0.0)
    assert np.sort(np.bincount(flat.items))[::-1][:40].sum() / len(flat.items) < 0.2


def test_users_stay_in_their_community() -> None:
    made = synthetic_interactions()
    own = made.user_community[made.users] == made.item_community[made.items]
    assert own.mean() > 0.7
    stranger = synthetic_interactions(loyalty=0.25)
    own = stranger.user_community[stranger.users] == stranger.item_community[stranger.items]
    assert own.mean() == pytest.approx(0.25, abs=0.03)


def test_communities_beat_popularity() -> None:
    """The known truth must be worth knowing: it hits more held-out pairs than popularity does."""
    split = prepare("synthetic", None, SplitSettings(seed=1)).load()
    made = synthetic_interactions()
    popularity = np.bincount(split.train.items, minlength=split.num_items).astype(float)
    items = made.item_community[split.item_ids.astype(int)]
    hits = {"popularity": 0, "truth": 0}
    for user in range(split.num_users):
        known = np.concatenate([split.train.row(user), split.validation.row(user)])
        own = items == made.user_community[int(split.user_ids[user])]
        for name, scores in (("popularity", popularity), ("truth", popularity * (own + 0.05))):
            scores = scores.copy()
            scores[known] = -1
            hits[name] += len(np.intersect1d(np.argsort(-scores, kind="stable")[:20], split.test.row(user)))
    assert hits["truth"] > 1.5 * hits["popularity"] > 0


def test_pairs_are_distinct_and_belong_to_the_seed() -> None:
    one, again, other = (synthetic_interactions(100, 80, 3, 10, seed=seed) for seed in (1, 1, 2))
    assert len({*zip(one.users.tolist(), one.items.tolist(), strict=True)}) == len(one.users)
    np.testing.assert_array_equal(one.items, again.items)
    assert not np.array_equal(one.item_community, other.item_community)
    lengths = np.bincount(one.users, minlength=100)
    assert lengths.min() >= 2
    assert lengths.max() <= 40
    assert lengths.mean() == pytest.approx(10, abs=2.5)
    assert np.bincount(one.user_community).tolist() == [34, 33, 33]


def test_the_run_seed_splits_and_does_not_generate() -> None:
    one, other = (prepare("synthetic", None, SplitSettings(seed=seed)) for seed in (1, 2))
    assert one.fingerprint != other.fingerprint
    total = ("train_pairs", "validation_pairs", "test_pairs", "test_pairs_left_out")
    assert sum(one.report[key] for key in total) == sum(other.report[key] for key in total)


@pytest.mark.parametrize("numbers", [(10, 3, 1), (3, 10, 4), (10, 10, 0)])
def test_impossible_sizes_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(DataError, match="synthetic data need at least 4 items"):
        synthetic_interactions(*numbers)
