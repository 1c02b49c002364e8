"""Generated sets of any size: the right number of pairs, communities that can be found, the same whatever the threads."""

import numpy as np
import pytest

from fastpfrec_flwr.data import DataError, SplitSettings, open_shard, prepare
from fastpfrec_flwr.data.generated import Size, cut_lengths, row_lengths, size_of, write_generated

NAME = "synthetic-3000x4000x20"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield prepare(NAME, None, SplitSettings())


def test_names():
    assert size_of("synthetic-1000000x2000000x50") == Size(1_000_000, 2_000_000, 50)
    assert size_of("synthetic") is None
    assert size_of("synthetic-10x20") is None


@pytest.mark.parametrize("name", ["synthetic-1x100x5", "synthetic-100x8x2", "synthetic-100x100x30", "synthetic-9x99x0"])
def test_sizes_that_cannot_be_made(name):
    with pytest.raises(DataError, match=f"data-set {name}: USERSxITEMSxPER_USER must be at least 4 users"):
        size_of(name)


@pytest.mark.parametrize("settings", [SplitSettings("released"), SplitSettings(min_weight=3.0)])
def test_splits_that_these_data_have_not(tmp_path, settings):
    with pytest.raises(DataError, match="use split = 'random' and no min-weight"):
        write_generated(Size(10, 100, 4), settings, tmp_path)


def test_rows_are_well_formed_and_parts_disjoint(prepared):
    split = prepared.load()
    assert (split.num_users, split.num_items) == (3000, 4000)
    assert split.item_ids[[0, -1]].tolist() == ["0", "3999"]
    for name in ("train", "validation", "test"):
        getattr(split, name).check(name, split.num_items)
    for user in range(0, 3000, 37):
        rows = [getattr(split, name).row(user) for name in ("train", "validation", "test")]
        assert len(rows[0]) >= 1
        together = np.concatenate(rows)
        assert len(np.unique(together)) == len(together) == row_lengths(Size(3000, 4000, 20))[user]


def test_counts_are_those_of_the_settings(prepared):
    lengths = row_lengths(Size(3000, 4000, 20))
    assert lengths.mean() == pytest.approx(20, rel=0.03)
    counts = cut_lengths(lengths, SplitSettings())
    split = prepared.load()
    for name, wanted in counts.items():
        np.testing.assert_array_equal(getattr(split, name).lengths(), wanted)
    assert split.test.nnz / lengths.sum() == pytest.approx(0.2, abs=0.01)
    assert split.validation.nnz / lengths.sum() == pytest.approx(0.08, abs=0.01)


def test_popularity_falls_like_zipf_and_held_out_pairs_look_alike(prepared):
    split = prepared.load()
    counts = np.sort(np.bincount(split.train.items, minlength=4000))[::-1].astype(float)
    slope = np.polyfit(np.log(np.arange(20, 400)), np.log(counts[20:400]), 1)[0]
    assert slope == pytest.approx(-0.9, abs=0.12)
    popular = set(np.argsort(np.bincount(split.train.items, minlength=4000))[::-1][:400].tolist())
    shares = [np.isin(getattr(split, part).items, list(popular)).mean() for part in ("train", "test")]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_users_of_a_community_share_items_far_more_than_others(prepared):
    train = prepared.load().train
    known = np.zeros((3000, 4000), np.float32)
    known[np.repeat(np.arange(3000), train.lengths()), train.items] = 1
    unpopular = known[:, known.sum(axis=0) < 60]
    overlap = unpopular @ unpopular.T
    np.fill_diagonal(overlap, 0)
    # Four communities, 0.85 of a row from one's own: most of a user's nearest users' nearest are alike.
    nearest = np.argsort(-overlap, axis=1)[:, :20]
    agreement = np.mean([np.isin(nearest[nearest[user]].ravel(), nearest[user]).mean() for user in range(0, 3000, 50)])
    assert agreement > 3 * 20 / 3000


def test_threads_and_repeats_change_nothing(tmp_path, monkeypatch):
    made = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        folder = tmp_path / threads
        folder.mkdir()
        write_generated(Size(9000, 500, 10), SplitSettings(seed=4), folder)
        made.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert made[0] == made[1]
    assert len(made[0]) == 6


def test_another_seed_cuts_the_same_rows_otherwise(tmp_path):
    rows = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_generated(Size(200, 500, 10), SplitSettings(seed=seed), folder)
        parts = [np.load(folder / f"{part}_items.npy") for part in ("train", "validation", "test")]
        rows.append((np.sort(np.concatenate(parts)), parts[2]))
    np.testing.assert_array_equal(rows[0][0], rows[1][0])
    assert not np.array_equal(rows[0][1], rows[1][1])


def test_no_held_out_pairs_at_all(tmp_path):
    write_generated(Size(100, 500, 10), SplitSettings(validation_fraction=0.0, test_fraction=0.0), tmp_path)
    assert len(np.load(tmp_path / "test_items.npy")) == 0
    assert len(np.load(tmp_path / "train_items.npy")) == np.load(tmp_path / "train_indptr.npy")[-1]


def test_shards_open(prepared):
    shard = open_shard(prepared.directory, 1, 3)
    assert shard.users[:2].tolist() == [1, 4]
    np.testing.assert_array_equal(shard.train.row(1), prepared.load().train.row(4))
