"""Ranking metrics, defined once, as sums that add up to the same bits however the users are spread over devices.

For a user with truth R (a set) and a ranked list of which L are the first k:

- `hit_ratio_micro@k` = sum of |L and R| / sum of |R|, over users (the paper's HR);
- `hit_rate_user@k`   = share of users with a hit;
- `recall@k`          = mean of |L and R| / |R|;
- `precision@k`       = mean of |L and R| / k;
- `ndcg@k`            = mean of DCG / IDCG, DCG = sum over hits at rank r = 1..k of 1 / log2(r + 1), IDCG the same over
  ranks 1..min(k, |R|) (Jaervelin and Kekaelaeinen: Cumulated gain-based evaluation of IR techniques, TOIS 2002).

Users without truth are left out. A sum of floats depends on its order; so each user's recall and NDCG is rounded to a
multiple of 2^-40 and only these integers are added. Precision needs no sum of its own: it is the hits over k.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.evaluation.rows import RowsLike, checked_rows, entries_of

CUTOFFS = (10, 20)
GRID_BITS = 40  # an int64 holds the sum of 2^(63 - 40) = 8.4 million users, far finer than anyone reads a metric


@dataclass(frozen=True)
class MetricSums:
    """What a set of users adds to the metrics: the only thing about a ranking that leaves a device.

    All of it is integers, so addition is exact and in any order the same. Refused if it cannot come from any rankings.

    Parameters
    ----------
    users : number of users with truth.
    truth : number of their truth items.
    hits : for each cutoff k, truth items among the first k.
    users_hit : for each cutoff, users with at least one hit.
    recall_grid : for each cutoff, sum of recall in units of 2^-40.
    ndcg_grid : for each cutoff, sum of NDCG in units of 2^-40.

    Raises
    ------
    ValueError if a figure is negative, no integer, or contradicts another.
    """

    users: int
    truth: int
    hits: Mapping[int, int]
    users_hit: Mapping[int, int]
    recall_grid: Mapping[int, int]
    ndcg_grid: Mapping[int, int]

    def __post_init__(self) -> None:
        """Refuse sums that no rankings can give."""
        if not self.hits:
            raise ValueError("metric sums need at least one cutoff")
        for name, figures in self._by_cutoff().items():
            if sorted(figures) != list(self.cutoffs):
                raise ValueError(f"{name}: expected cutoffs {self.cutoffs}, got {sorted(figures)}")
        for key, value in self._flat().items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{key} must be an integer >= 0, got {value!r}")
        _require("users <= truth", self.users <= self.truth)
        _require("truth = 0 where users = 0", self.users > 0 or self.truth == 0)
        for k in self.cutoffs:
            hits, users_hit, recall, ndcg = self.hits[k], self.users_hit[k], self.recall_grid[k], self.ndcg_grid[k]
            _require(f"hits-{k} <= truth and <= {k} a user with a hit", hits <= min(self.truth, k * users_hit))
            _require(f"users-hit-{k} <= users and <= hits-{k}", users_hit <= min(self.users, hits))
            within = max(recall, ndcg) <= users_hit << GRID_BITS
            _require(f"recall-grid-{k} and ndcg-grid-{k} <= 1 a user with a hit", within)
        for k, wider in zip(self.cutoffs, self.cutoffs[1:], strict=False):
            grows = (
                self.hits[k] <= self.hits[wider]
                and self.users_hit[k] <= self.users_hit[wider]
                and self.recall_grid[k] <= self.recall_grid[wider]
            )
            _require(f"hits, users hit and recall at {k} <= those at {wider}", grows)

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The list lengths that the sums are over, ascending."""
        return tuple(sorted(self.hits))

    @classmethod
    def zero(cls, cutoffs: tuple[int, ...] = CUTOFFS) -> MetricSums:
        """Give the sums of no users, the start of `sum(..., MetricSums.zero())`."""
        return cls(0, 0, *(dict.fromkeys(cutoffs, 0) for _ in range(4)))

    def __add__(self, other: MetricSums) -> MetricSums:
        if self.cutoffs != other.cutoffs:
            raise ValueError(f"metric sums over cutoffs {self.cutoffs} and {other.cutoffs} do not add up")
        ours, theirs = self._by_cutoff(), other._by_cutoff()
        added = [{k: figures[k] + theirs[name][k] for k in self.cutoffs} for name, figures in ours.items()]
        return MetricSums(self.users + other.users, self.truth + other.truth, *added)

    def to_dict(self) -> dict[str, int]:
        """Flatten for a message's metric record.

        Raises
        ------
        ValueError if a sum no longer fits the 64-bit integers of a message, at more than 8 million users.
        """
        flat = self._flat()
        for key, value in flat.items():
            if value >= 1 << 63:
                raise ValueError(f"{key} = {value} exceeds a 64-bit integer: send the sums of fewer users at a time")
        return flat

    @classmethod
    def from_dict(cls, record: Mapping[str, object], cutoffs: tuple[int, ...] = CUTOFFS) -> MetricSums:
        """Read what `to_dict` wrote; floats with a whole value pass as integers.

        Raises
        ------
        ValueError if a key is missing or unknown, or a value cannot come from any rankings.
        """
        expected = cls.zero(cutoffs)._flat().keys()
        if record.keys() != expected:
            missing, unknown = sorted(expected - record.keys()), sorted(record.keys() - expected)
            raise ValueError(f"metric sums: missing keys {missing}, unknown keys {unknown}")
        whole = {key: _whole(key, value) for key, value in record.items()}
        names = ("hits", "users-hit", "recall-grid", "ndcg-grid")
        return cls(whole["users"], whole["truth"], *({k: whole[f"{name}-{k}"] for k in cutoffs} for name in names))

    def _by_cutoff(self) -> dict[str, Mapping[int, int]]:
        return {
            "hits": self.hits,
            "users-hit": self.users_hit,
            "recall-grid": self.recall_grid,
            "ndcg-grid": self.ndcg_grid,
        }

    def _flat(self) -> dict[str, int]:
        flat = {"users": self.users, "truth": self.truth}
        for name, figures in self._by_cutoff().items():
            flat |= {f"{name}-{k}": figures[k] for k in self.cutoffs}
        return flat


def _require(rule: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"metric sums contradict themselves: {rule} does not hold")


def _whole(key: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be an integer >= 0, got {value!r}")
    return value


def per_user_metrics(
    top_items: NDArray[np.int32], truth: RowsLike, cutoffs: tuple[int, ...] = CUTOFFS
) -> dict[str, NDArray[np.float64]]:
    """Score each user's ranked list against the user's truth.

    Parameters
    ----------
    top_items : (users, top_k) item ids, best first, then -1; top_k at least the largest cutoff.
    truth : one row of item ids for each user; an id that stands twice counts once.
    cutoffs : the list lengths k.

    Returns
    -------
    `truth`, and for each k `hits@k` (counts), `hit_rate_user@k` (0 or 1), `recall@k`, `precision@k`, `ndcg@k` (all in
    [0, 1]), each (users,) float64; NaN, except in `truth`, for users without truth.

    Raises
    ------
    ValueError if shapes do not fit, a cutoff is not in [1, top_k], or an item stands twice in a list.
    """
    top = np.asarray(top_items)
    _check_lists(top, cutoffs)
    hit, sizes = _hits(top, truth)  # (users, top_k) bool, (users,)
    discounts = np.array([1.0 / math.log2(rank + 1) for rank in range(1, top.shape[1] + 1)])  # (top_k,)
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])  # ideal[n]: n hits at the top
    gains = np.cumsum(np.where(hit, discounts, 0.0), axis=1)  # (users, top_k), added rank by rank: exact at a full list
    counts = np.cumsum(hit, axis=1)  # (users, top_k)
    known = sizes > 0
    values: dict[str, NDArray[np.float64]] = {"truth": sizes.astype(np.float64)}
    for k in cutoffs:
        found = np.where(known, counts[:, k - 1], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is the NaN wanted for users without truth
            values[f"hits@{k}"] = found
            values[f"hit_rate_user@{k}"] = np.where(known, found > 0, np.nan)
            values[f"recall@{k}"] = found / sizes
            values[f"precision@{k}"] = found / k
            values[f"ndcg@{k}"] = gains[:, k - 1] / ideal[np.minimum(sizes, k)]
    return values


def metric_sums(top_items: NDArray[np.int32], truth: RowsLike, cutoffs: tuple[int, ...] = CUTOFFS) -> MetricSums:
    """Sum up `per_user_metrics` over the users that have truth.

    Parameters, errors: as for `per_user_metrics`.
    """
    return sum_up(per_user_metrics(top_items, truth, cutoffs), cutoffs)


def sum_up(values: Mapping[str, NDArray[np.float64]], cutoffs: tuple[int, ...] = CUTOFFS) -> MetricSums:
    """Add up what `per_user_metrics` found for the same cutoffs."""
    known = values["truth"] > 0

    def total(name: str, units: float = 1.0) -> dict[int, int]:
        return {k: int(np.rint(values[f"{name}@{k}"][known] * units).astype(np.int64).sum()) for k in cutoffs}

    return MetricSums(
        users=int(known.sum()),
        truth=int(values["truth"].sum()),
        hits=total("hits"),
        users_hit=total("hit_rate_user"),
        recall_grid=total("recall", 2.0**GRID_BITS),
        ndcg_grid=total("ndcg", 2.0**GRID_BITS),
    )


def metrics(sums: MetricSums) -> dict[str, float]:
    """Turn sums into the metrics of the module's text, keyed `recall@10` and so on.

    Returns
    -------
    One value in [0, 1] for each metric and cutoff; all NaN, with a warning, when no user has truth.
    """
    if sums.users == 0:
        warnings.warn("no user has a truth item: every metric is NaN", RuntimeWarning, stacklevel=2)
    result: dict[str, float] = {}
    for k in sums.cutoffs:
        result[f"hit_ratio_micro@{k}"] = _ratio(sums.hits[k], sums.truth)
        result[f"hit_rate_user@{k}"] = _ratio(sums.users_hit[k], sums.users)
        result[f"recall@{k}"] = _ratio(sums.recall_grid[k], sums.users << GRID_BITS)
        result[f"precision@{k}"] = _ratio(sums.hits[k], k * sums.users)
        result[f"ndcg@{k}"] = _ratio(sums.ndcg_grid[k], sums.users << GRID_BITS)
    return result


def half_widths(values: Mapping[str, float], users: int, z: float = 1.96) -> dict[str, float]:
    """At most so far is each metric of a random sample of users from that of all of them, 95 times in 100.

    A mean of values in [0, 1] has a variance of at most m (1 - m) (Bhatia and Davis, Am. Math. Monthly 2000), so the bound needs
    nothing but the mean m; it is exact for `hit_rate_user` and wide for the others. `hit_ratio_micro` is no mean over users
    and has none.

    Parameters
    ----------
    values : of `metrics`. users : of the sample, those with truth; at least one. z : of the normal approximation.
    """
    return {
        name: z * math.sqrt(max(value * (1.0 - value), 0.0) / users)
        for name, value in values.items()
        if not name.startswith("hit_ratio_micro")
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _check_lists(top: NDArray[Any], cutoffs: tuple[int, ...]) -> None:
    if top.ndim != 2 or not np.issubdtype(top.dtype, np.integer):
        raise ValueError(f"top items must be a (users, top_k) table of integers, got {top.shape} {top.dtype}")
    if not cutoffs or min(cutoffs) < 1 or max(cutoffs) > top.shape[1]:
        raise ValueError(f"cutoffs {cutoffs} must lie in [1, {top.shape[1]}], the length of the lists")
    ordered = np.sort(top, axis=1)
    if np.any((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)):
        raise ValueError("top items: an item stands twice in one user's list")


def _hits(top: NDArray[Any], truth: RowsLike) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each listed item is in the user's truth, (users, top_k), and the size of each truth set, (users,)."""
    num_users = top.shape[0]
    users, items = entries_of(checked_rows(truth, num_users, None, "truth"))
    width = int(max(items.max(initial=0), top.max(initial=0))) + 1
    pairs = np.unique(users * width + items)  # (pairs,) a number for each user and item, ascending
    sizes = np.bincount(pairs // width, minlength=num_users).astype(np.int64, copy=False)
    wanted = np.arange(num_users)[:, None] * width + top  # (users, top_k)
    if not pairs.size:
        return np.zeros(top.shape, np.bool_), sizes
    place = np.minimum(np.searchsorted(pairs, wanted), pairs.size - 1)
    return (pairs[place] == wanted) & (top >= 0), sizes
