"""A split is disjoint, cut from train, the same for the same seed, and says what it dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.data.interactions import Ids, Interactions
from fastpfrec_flwr.data.splitting import make_split
from fastpfrec_flwr.data.types import Csr, Split, SplitSettings

Rows = list[tuple[int, int]]


def split_of(settings: SplitSettings, times: list[float] | None = None, **files: Rows) -> Split:
    ids = Ids()
    found = {}
    for role, rows in files.items():
        users = np.array(ids.users.encode(str(user) for user, _ in rows), dtype=np.int32)
        items = np.array(ids.items.encode(str(item) for _, item in rows), dtype=np.int32)
        stamps = None if times is None else np.array(times, dtype=np.float64)
        found[role] = Interactions(Path(f"{role}.txt"), users, items, None, stamps, "made", len(rows))
    return make_split("made", ids, found, settings, {})


def pairs_of(split: Split, part: str) -> set[tuple[int, int]]:
    csr: Csr = getattr(split, part)
    return {
        (int(split.user_ids[user]), int(split.item_ids[item])) for user in range(csr.num_rows) for item in csr.row(user)
    }


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=120)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])


@settings(max_examples=80, deadline=None)
@given(
    rows=ROWS,
    validation=FRACTIONS,
    test=FRACTIONS,
    method=st.sampled_from(["random", "chronological"]),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_pooled_splits_are_disjoint_and_complete(rows, validation, test, method, seed, data) -> None:
    times = data.draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    split = split_of(SplitSettings(method, validation, test, seed), times, all=rows)
    parts = {part: pairs_of(split, part) for part in ("train", "validation", "test")}
    assert not parts["train"] & parts["validation"]
    assert not (parts["train"] | parts["validation"]) & parts["test"]
    seen_items = {item for part in ("train", "validation") for _, item in parts[part]}
    everything = parts["train"] | parts["validation"] | parts["test"]
    left_out = set(rows) - everything
    assert everything <= set(rows)
    assert all(item not in seen_items for _, item in left_out)
    assert split.report["test_pairs_left_out"] == len(left_out)
    assert {user for user, _ in parts["train"]} == {user for user, _ in rows}, "every user keeps a train pair"
    assert split.num_items == len(seen_items)
    assert split.report["duplicates"] == len(rows) - len(set(rows))
    for csr in (split.train, split.validation, split.test):
        csr.check("made", split.num_items)
    if validation == 0:
        assert split.validation.nnz == 0
    if test == 0:
        assert split.test.nnz == 0


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, data=st.data())
def test_chronological_order(rows, data) -> None:
    times = data.draw(st.lists(st.integers(0, 50), min_size=len(rows), max_size=len(rows)))
    split = split_of(SplitSettings("chronological", 0.2, 0.3), times, all=rows)
    first_time: dict[tuple[int, int], int] = {}
    for row, time in zip(rows, times, strict=True):
        first_time[row] = min(time, first_time.get(row, time))
    by_user: dict[int, dict[str, list[int]]] = {}
    for part in ("train", "validation", "test"):
        for user, item in pairs_of(split, part):
            by_user.setdefault(user, {}).setdefault(part, []).append(first_time[user, item])
    for parts in by_user.values():
        for earlier, later in (("train", "validation"), ("train", "test"), ("validation", "test")):
            if earlier in parts and later in parts:
                assert max(parts[earlier]) <= min(parts[later])


def test_chronological_counts() -> None:
    rows = [(user, item) for user, length in ((1, 1), (2, 2), (3, 3), (4, 10)) for item in range(length)]
    rows += [(9, item) for item in range(10)]  # so that no item is new in a test set
    times = [float(item) for _, item in rows]
    split = split_of(SplitSettings("chronological", 0.1, 0.2), times, all=rows)
    assert split.train.lengths().tolist() == [1, 1, 1, 7, 7]
    assert split.validation.lengths().tolist() == [0, 0, 1, 1, 1]
    # Item 8 and 9 occur in test sets only: nobody can rank them.
    assert split.test.lengths().tolist() == [0, 1, 1, 0, 0]
    assert split.report["test_items_unseen"] == 2
    assert split.report["test_pairs_unseen_item"] == 4


def released(seed: int = 0, **keywords: float) -> Split:
    generator = np.random.default_rng(3)
    train = [(user, int(item)) for user in range(200) for item in generator.choice(300, 1 + user % 20, replace=False)]
    return split_of(SplitSettings("released", seed=seed, **keywords), train=train, test=[(0, 1), (5, 2)])


def test_validation_is_cut_from_train_alone() -> None:
    whole, cut = released(validation_fraction=0), released()
    assert pairs_of(cut, "train") | pairs_of(cut, "validation") == pairs_of(whole, "train")
    assert pairs_of(cut, "test") == pairs_of(whole, "test")
    assert cut.num_items == whole.num_items, "a catalogue does not depend on the cut"
    assert (cut.train.lengths() >= 1).all()


def test_validation_share_is_kept_for_rows_of_any_length() -> None:
    """Rounding up or down would bend the share for short rows; drawing the rounding does not."""
    train = [(user, item) for user in range(4000) for item in range(2 if user % 2 else 15)]
    split = split_of(SplitSettings("released", validation_fraction=0.1), train=train, test=[(0, 1)])
    lengths = split.validation.lengths()
    short = np.array([int(u) % 2 for u in split.user_ids]) == 1
    # 2,000 short rows: 400 expected, standard deviation sqrt(2000 * .2 * .8) = 18; four of them.
    assert abs(lengths[short].sum() - 400) < 72
    # 2,000 long rows: 3,000 expected, standard deviation sqrt(2000 * .5 * .5) = 22.
    assert abs(lengths[~short].sum() - 3000) < 90


def test_random_draws_belong_to_the_seed() -> None:
    rows = [(user, item) for user in range(30) for item in range(user, user + 12)]
    one, again, other = (split_of(SplitSettings("random", seed=seed), all=rows) for seed in (1, 1, 2))
    shuffled = split_of(
        SplitSettings("random", seed=1), all=[rows[i] for i in np.random.default_rng(0).permutation(360)]
    )
    assert one.fingerprint == again.fingerprint
    assert one.fingerprint == shuffled.fingerprint, "the order of lines must not matter"
    assert one.fingerprint != other.fingerprint
    assert one.test.nnz == pytest.approx(72, abs=20)


def test_every_pair_is_as_likely_to_be_drawn() -> None:
    rows = [(0, item) for item in range(10)]
    drawn = np.zeros(10)
    for seed in range(600):
        split = split_of(SplitSettings("released", validation_fraction=0.2, seed=seed), train=rows, test=[(0, 99)])
        drawn[split.validation.items] += 1
    # 120 expected of each, standard deviation sqrt(600 * .2 * .8) = 9.8; five of them.
    assert (np.abs(drawn - 120) < 49).all()


def test_what_a_released_test_file_loses() -> None:
    split = split_of(
        SplitSettings("released", validation_fraction=0),
        train=[(1, 10), (1, 11), (1, 11), (2, 10), (2, 12)],
        validation=[(1, 12), (2, 10), (3, 10), (1, 13), (1, 12)],
        test=[(1, 10), (1, 12), (2, 11), (2, 11), (3, 10), (2, 77), (3, 77), (2, 13)],
    )
    assert pairs_of(split, "train") == {(1, 10), (1, 11), (2, 10), (2, 12)}
    assert pairs_of(split, "validation") == {(1, 12), (1, 13)}
    assert pairs_of(split, "test") == {(2, 11), (2, 13)}
    wanted = {
        "train_duplicates": 1,
        "validation_duplicates": 1,
        "test_duplicates": 1,
        "duplicates": 3,
        "validation_pairs_in_train": 1,
        "validation_users_without_train": 1,
        "test_pairs_in_source": 7,
        "test_pairs_in_train": 1,
        "test_pairs_in_validation": 1,
        "test_users_without_train": 1,
        "test_pairs_without_train_user": 2,
        "test_items_not_in_train": 2,
        "test_items_unseen": 1,
        "test_pairs_unseen_item": 2,
        "test_pairs_left_out": 5,
        "users": 2,
        "items": 4,
    }
    assert {key: split.report[key] for key in wanted} == wanted


def test_released_files_can_be_split_anew() -> None:
    split = split_of(
        SplitSettings("random", seed=4), train=[(0, i) for i in range(9)], test=[(0, i) for i in range(5, 12)]
    )
    assert split.report["method"] == "random"
    assert split.train.nnz + split.validation.nnz + split.test.nnz + split.report["test_pairs_left_out"] == 12


@pytest.mark.parametrize(
    ("indptr", "items"),
    [([0, 2, 1], [0, 1]), ([0, 1], [0, 1]), ([0, 2], [1, 1]), ([0, 2], [1, 0]), ([0, 1], [9]), ([0, 1], [-1])],
)
def test_malformed_rows_are_refused(indptr: list[int], items: list[int]) -> None:
    csr = Csr(np.array(indptr, dtype=np.int64), np.array(items, dtype=np.int32))
    with pytest.raises(
        ValueError, match=r"here: (row bounds|item -?\d is beyond the catalogue of 5 items|the items of a row)"
    ):
        csr.check("here", 5)


def test_rows_may_be_empty_and_fall_at_a_border() -> None:
    Csr(np.array([0, 0, 2, 2, 3, 3], dtype=np.int64), np.array([3, 4, 0], dtype=np.int32)).check("here", 5)
    Csr(np.array([0], dtype=np.int64), np.array([], dtype=np.int32)).check("here", 0)
