"""Interactions to a split: train, validation and test pairs, pairwise disjoint, in one numbering.

- **released**: the source's own test file (and validation file, where it brings one).
- **chronological**: each user's latest pairs are her test set, the latest of the rest her validation set.
- **random**: drawn per user by seed.

Validation is always cut from train and never looks at test. Counts per user of n pairs: "random" and the validation cut
of "released" take floor(n f + u) with u uniform per user, so that a share f is cut off in expectation from users of any
size (rounding up would empty the short rows, rounding down would take from long rows only); "chronological" takes
max(1, round(n f)) where n >= 2. A user always keeps at least one train pair, so one with a single pair has no test.

Items are what the train source (train and validation) holds, or those of a catalogue that was agreed on. Test pairs
beyond them (unknown users, unknown items) cannot be ranked by anybody: they are left out of the truth, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.interactions import Ids, Interactions, sort_ids
from fastpfrec_flwr.data.pairs import Keys, count_distinct, member, present, row_lengths, rows, sort_unique, to_csr
from fastpfrec_flwr.data.types import Csr, Method, Split, SplitSettings, fingerprint
from fastpfrec_flwr.randomness import derive_generator


@dataclass(frozen=True)
class _Pairs:
    """Distinct pairs of one file in the sorted numbering; `times` follows `keys`."""

    keys: Keys
    times: NDArray[np.float64] | None
    duplicates: int
    below_min_weight: int


def make_split(
    name: str,
    ids: Ids,
    found: dict[str, Interactions],
    settings: SplitSettings,
    report: dict[str, Any],
    catalogue: Catalogue | None = None,
) -> Split:
    """Split interactions.

    Parameters
    ----------
    found : role -> file; either "all", or "train" with "test" or "validation" or both.
    report : extended in place by what was counted here.
    catalogue : gives the items their rows; `found` then holds none that it has not (see `interactions.restrict`).

    Raises
    ------
    DataError if the method needs what the source has not.
    """
    user_order = sort_ids(ids.users.ids())
    user_rank = np.argsort(user_order)
    item_rank, item_names = _item_rows(ids.items.ids(), catalogue)
    width = len(item_names)
    pairs = {role: _distinct(part, user_rank, item_rank, width, settings) for role, part in found.items()}
    method = _choose_method(settings.method, found)
    for role, part in pairs.items():
        report[f"{role}_duplicates"] = part.duplicates
        report[f"{role}_below_min_weight"] = part.below_min_weight
    report["duplicates"] = sum(part.duplicates for part in pairs.values())
    report |= {"method": method, "users_in_source": len(ids.users), "items_in_source": len(ids.items)}

    if method == "released":
        train, validation, test = _released(pairs, width, settings, report)
    else:
        train, validation, test = _pooled(pairs, width, settings, method)
    test = _drop_unknown(test, train, validation, width, report, catalogue is not None)
    if "validation" not in found:
        # The validation pairs were cut from the train file: for its reader they stand in train.
        report["test_pairs_in_train"] += report["test_pairs_in_validation"]
        report["test_pairs_in_validation"] = 0
    if not len(train):
        raise DataError(f"{name}: no train pair is left. Lower min-weight, or give more data")
    _assert_disjoint(train, validation, test)

    users = np.flatnonzero(present(train // width, len(ids.users)))
    items = np.arange(width)
    if catalogue is None:
        items = np.flatnonzero(present(np.concatenate([train, validation]) % width, width))
    parts = {
        part: to_csr(keys, users, items, width)
        for part, keys in (("train", train), ("validation", validation), ("test", test))
    }
    user_ids = np.array(ids.users.ids(), dtype=np.str_)[user_order[users]]
    item_ids = item_names[items]
    for name_of_part, csr in parts.items():
        csr.check(f"{name}, {name_of_part}", len(items))
    report |= _statistics(parts, len(users), len(items))
    return Split(
        name,
        len(users),
        len(items),
        parts["train"],
        parts["validation"],
        parts["test"],
        user_ids,
        item_ids,
        report,
        fingerprint(parts, user_ids, item_ids),
        replace(settings, method=method),
        0 if catalogue is None else catalogue.reserved,
    )


def _item_rows(item_ids: list[str], catalogue: Catalogue | None) -> tuple[NDArray[np.intp], NDArray[np.str_]]:
    """Row of each code, and the name of each row: the catalogue's, or the ids in order.

    An id that the catalogue does not have gets row 0; no interaction has it any more.
    """
    if catalogue is not None:
        rows = np.array([catalogue.row(each) or 0 for each in item_ids], dtype=np.intp)
        return rows, np.array(catalogue.row_names, dtype=np.str_)
    order = sort_ids(item_ids)
    return np.argsort(order), np.array(item_ids, dtype=np.str_)[order]


def _distinct(
    part: Interactions, user_rank: NDArray[np.intp], item_rank: NDArray[np.intp], width: int, settings: SplitSettings
) -> _Pairs:
    """Drop what lies below `min_weight`, then repeats of a pair; the earliest time of a pair is kept."""
    keys = user_rank[part.users].astype(np.int64) * width + item_rank[part.items]
    times, below = part.timestamps, 0
    if settings.min_weight is not None:
        if part.weights is None:
            raise DataError(f"{part.path}: min-weight is set but the file has no weights. Unset min-weight")
        keep = part.weights >= settings.min_weight
        below = int((~keep).sum())
        keys, times = keys[keep], None if times is None else times[keep]
    unique, first_times = sort_unique(keys, times)
    return _Pairs(unique, first_times, len(keys) - len(unique), below)


def _choose_method(method: Method, found: dict[str, Interactions]) -> Method:
    has_test = "test" in found
    untimed = [str(part.path) for part in found.values() if part.timestamps is None]
    if method == "auto":
        return "released" if has_test else "random" if untimed else "chronological"
    if method == "released" and not has_test:
        path = next(iter(found.values())).path
        raise DataError(f"{path}: split method released needs a test file beside it. Add one, or choose random")
    if method == "chronological" and untimed:
        raise DataError(f"{untimed[0]}: split method chronological needs timestamps. Choose random, or add the column")
    return method


def _released(
    pairs: dict[str, _Pairs], width: int, settings: SplitSettings, report: dict[str, Any]
) -> tuple[Keys, Keys, Keys]:
    train, test = pairs["train"].keys, pairs["test"].keys
    if "validation" in pairs:
        given = pairs["validation"].keys
        unknown_user = ~member(given // width, train // width)
        in_train = member(given, train)
        report["validation_pairs_in_train"] = int(in_train.sum())
        report["validation_users_without_train"] = count_distinct(given[unknown_user] // width)
        return train, given[~in_train & ~unknown_user], test
    train, validation = _cut_random(train, width, settings, settings.validation_fraction, "validation")
    return train, validation, test


def _drop_unknown(
    test: Keys, train: Keys, validation: Keys, width: int, report: dict[str, Any], all_items: bool = False
) -> Keys:
    """Leave out test pairs that stand in the train source, and those of users or items it does not know.

    With a catalogue all of its items are known (`all_items`): a device has seen few of them, and is asked about all.

    The counts overlap, as a pair may be left out for two reasons; `test_pairs_left_out` counts each pair once.
    """
    in_train, in_validation = member(test, train), member(test, validation)
    in_source = in_train | in_validation
    unknown_user = ~member(test // width, train // width)
    seen_items = present(train % width, width)
    items_not_in_train = present(test % width, width) & ~seen_items
    seen_items |= present(validation % width, width)
    unseen_item = ~seen_items[test % width] & (not all_items)
    keep = ~(in_source | unknown_user | unseen_item)
    report |= {
        "test_pairs_in_source": len(test),
        "test_pairs_in_train": int(in_train.sum()),
        "test_pairs_in_validation": int(in_validation.sum()),
        "test_users_without_train": count_distinct(test[unknown_user] // width),
        "test_pairs_without_train_user": int(unknown_user.sum()),
        "test_items_not_in_train": int(items_not_in_train.sum()),
        "test_items_unseen": 0 if all_items else int((items_not_in_train & ~seen_items).sum()),
        "test_pairs_unseen_item": int(unseen_item.sum()),
        "test_pairs_left_out": int((~keep).sum()),
    }
    return test[keep]


def _pooled(pairs: dict[str, _Pairs], width: int, settings: SplitSettings, method: Method) -> tuple[Keys, Keys, Keys]:
    """Split all pairs of all files anew."""
    keys = np.concatenate([part.keys for part in pairs.values()])
    if method == "random":
        keys, _ = sort_unique(keys, None)
        rest, test = _cut_random(keys, width, settings, settings.test_fraction, "test")
        train, validation = _cut_random(rest, width, settings, settings.validation_fraction, "validation")
        return train, validation, test
    all_times = np.concatenate([part.times for part in pairs.values() if part.times is not None])
    keys, times = sort_unique(keys, all_times)
    assert times is not None
    # Ties in time (a session rated in one second) are broken by item, so that the order of lines does not matter.
    keys = keys[np.lexsort((keys, times, keys // width))]
    length, from_end = row_lengths(keys, width)
    num_test = _latest(length, settings.test_fraction)
    num_validation = _latest(length - num_test, settings.validation_fraction)
    is_test = from_end < num_test
    is_validation = ~is_test & (from_end < num_test + num_validation)
    return np.sort(keys[~is_test & ~is_validation]), np.sort(keys[is_validation]), np.sort(keys[is_test])


def _latest(length: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return max(1, round(n f)) but at most n - 1; 0 where f = 0."""
    if fraction == 0:
        return np.zeros_like(length)
    count = np.maximum(1, np.floor(length * fraction + 0.5).astype(np.int64))
    most: NDArray[np.int64] = np.minimum(count, np.maximum(length - 1, 0))
    return most


def _cut_random(keys: Keys, width: int, settings: SplitSettings, fraction: float, purpose: str) -> tuple[Keys, Keys]:
    """Draw about `fraction` of each user's pairs; see the module's docstring for the count.

    Returns
    -------
    (what stays, what was drawn), both ascending.
    """
    generator = derive_generator(settings.seed, "split", purpose)
    start, count = rows(keys, width)
    take = np.minimum(np.floor(count * fraction + generator.random(len(count))).astype(np.int64), count - 1)
    # Row number plus a fraction below one: sorting shuffles every row and leaves the rows in place.
    order = np.argsort(np.repeat(np.arange(len(count)), count) + generator.random(len(keys)), kind="stable")
    drawn = np.zeros(len(keys), dtype=np.bool_)
    drawn[order] = np.arange(len(keys)) - np.repeat(start, count) < np.repeat(take, count)
    return keys[~drawn], keys[drawn]


def _assert_disjoint(train: Keys, validation: Keys, test: Keys) -> None:
    """Guard the promise on which every figure rests; costs little beside reading."""
    if member(validation, train).any() or member(test, train).any() or member(test, validation).any():
        raise AssertionError("train, validation and test overlap: a defect of this module, please report it")


def _statistics(parts: dict[str, Csr], num_users: int, num_items: int) -> dict[str, Any]:
    pairs = {name: csr.nnz for name, csr in parts.items()}
    known = parts["train"].lengths() + parts["validation"].lengths()
    popularity = np.bincount(parts["train"].items, minlength=num_items)
    top = np.sort(popularity)[::-1][: max(1, num_items // 10)].sum()
    return {
        "users": num_users,
        "items": num_items,
        **{f"{name}_pairs": count for name, count in pairs.items()},
        **{f"{name}_users": int((csr.lengths() > 0).sum()) for name, csr in parts.items()},
        "pairs_per_user_mean": round(float(known.mean()), 2),
        "pairs_per_user_median": float(np.median(known)),
        "density": round(float(known.sum()) / (num_users * num_items), 6),
        "train_share_of_top_tenth_of_items": round(float(top) / max(1, pairs["train"]), 4),
    }
