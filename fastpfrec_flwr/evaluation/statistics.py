"""How sure a figure is: spread over seeds, and bootstrap intervals over users.

The two answer different questions, so both are shown. *Over seeds* the whole training is repeated: the spread holds the
noise of initial tables, sampling, false items and Laplace draws, for these users. *Over users* the trained models stay as
they are and other users are imagined: the interval holds who happens to be in the test set and nothing of the training.
Users of one run share a model, so neither contains the other.

The unit over users is one user, averaged over the seeds: a user that is ranked by three runs is still one user. A metric
is numerator over denominator summed over users: hits over truth for `hit_ratio_micro`, the user's value over 1 for means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.randomness import derive_generator

RESAMPLES = 2000
LEVEL = 0.95
_CHUNK = 1 << 22  # drawn users at a time: 32 MB of numbers


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) of `n` values; `sd` is NaN for one value."""

    mean: float
    sd: float
    n: int


@dataclass(frozen=True)
class Interval:
    """A percentile bootstrap interval over users.

    Attributes
    ----------
    estimate : the figure of the users there are. low, high : bounds at `level`. users : resampled units. seeds : runs that
        each user was averaged over.
    """

    estimate: float
    low: float
    high: float
    level: float
    users: int
    seeds: int


@dataclass(frozen=True)
class UserFigures:
    """What each user scored in each seed.

    Attributes
    ----------
    users : (users,) int64, ascending; the users that every seed has. values : for each name (`ndcg@10`, `hits@20`, `truth`,
        ...) a (seeds, users) float64 table. left_out : users that only some of the seeds have.
    """

    users: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]
    left_out: int = 0

    @property
    def seeds(self) -> int:
        """How many runs the figures come from."""
        return len(next(iter(self.values.values())))

    def metrics(self, wanted: Iterable[str]) -> list[str]:
        """Of the wanted metrics, those that can be had from these figures, in the order asked."""
        return [name for name in wanted if _needs(name) <= self.values.keys()]

    def parts(self, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Numerator and denominator of a metric, each (seeds, users).

        Raises
        ------
        ValueError naming the missing figures.
        """
        missing = sorted(_needs(metric) - self.values.keys())
        if missing:
            raise ValueError(f"{metric} needs {', '.join(missing)} of each user; there is {', '.join(self.values)}")
        name, _, cutoff = metric.partition("@")
        if name == "hit_ratio_micro":
            return self.values[f"hits@{cutoff}"], self.values["truth"]
        if name == "hit_rate_user":
            value = (self.values[f"hits@{cutoff}"] > 0).astype(np.float64)
        elif name == "precision":
            value = self.values[f"hits@{cutoff}"] / float(cutoff)
        else:
            value = self.values[metric]
        return value, np.ones_like(value)


def _needs(metric: str) -> set[str]:
    """Names of the figures per user that a metric is made of."""
    name, _, cutoff = metric.partition("@")
    if name == "hit_ratio_micro":
        return {f"hits@{cutoff}", "truth"}
    return {f"hits@{cutoff}"} if name in ("hit_rate_user", "precision") else {metric}


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation over seeds.

    Raises
    ------
    ValueError for no value, or one that is not finite.
    """
    figures = np.asarray(values, dtype=np.float64)
    if not figures.size or not np.isfinite(figures).all():
        raise ValueError(f"a spread needs at least one value, all finite; got {list(values)}")
    return Spread(float(figures.mean()), float(figures.std(ddof=1)) if figures.size > 1 else math.nan, figures.size)


def join_users(runs: Sequence[Mapping[str, NDArray[Any]]]) -> UserFigures:
    """Line up the users of several runs of one variant on one data set.

    A user's number must mean the same person in all of them, as it does for all seeds of a data set whose test set is
    released or chronological; under a random split each seed tests other items of the same users.

    Parameters
    ----------
    runs : for each seed the arrays of a `user_metrics.npz`: `users` and one array per name.

    Raises
    ------
    ValueError if there is no run, no common user, or an array that does not fit or is not finite.
    """
    if not runs:
        raise ValueError("figures per user need at least one run")
    for arrays in runs:
        _check_users(arrays)
    common = np.asarray(runs[0]["users"], dtype=np.int64)
    everyone = common
    for arrays in runs[1:]:
        common = np.intersect1d(common, arrays["users"], assume_unique=True)
        everyone = np.union1d(everyone, arrays["users"])
    if not common.size:
        raise ValueError("no user has test figures in every seed: are these runs of one data set?")
    names = [name for name in runs[0] if name != "users" and all(name in arrays for arrays in runs)]
    rows = [np.searchsorted(np.asarray(arrays["users"]), common) for arrays in runs]
    values = {
        name: np.stack([np.asarray(arrays[name], np.float64)[row] for arrays, row in zip(runs, rows, strict=True)])
        for name in names
    }
    return UserFigures(common, values, int(everyone.size - common.size))


def _check_users(arrays: Mapping[str, NDArray[Any]]) -> None:
    users = np.asarray(arrays.get("users", ()))
    if users.ndim != 1 or not users.size or np.any(users[1:] <= users[:-1]):
        raise ValueError("`users` must be a list of ascending user numbers")
    if len(arrays) < 2:
        raise ValueError("there are users but no figures of them")
    for name, figures in arrays.items():
        if np.shape(figures) != users.shape:
            raise ValueError(f"`{name}` must have one value for each of {users.size} users, got {np.shape(figures)}")
        if not np.isfinite(figures).all():
            raise ValueError(f"`{name}` holds a value that is not finite")


def estimate(figures: UserFigures, metric: str) -> float:
    """The metric itself: of each seed over its users, then the mean over seeds."""
    numerator, denominator = figures.parts(metric)
    return float(np.mean(numerator.sum(axis=1) / denominator.sum(axis=1)))


def bootstrap_intervals(
    variants: Mapping[str, UserFigures],
    metrics: Sequence[str],
    seed: int,
    reference: str | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[tuple[str, str], Interval]:
    """Percentile bootstrap over users (Efron and Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13).

    A resample draws as many users as there are, with replacement, the same users for every metric, seed and variant: so
    with a `reference` the differences to it are paired. Percentile, not BCa: over hundreds of users the two agree, and
    these users are no sample of a population that would justify the third digit.

    Parameters
    ----------
    variants : figures of each variant, over the same users. metrics : what to estimate. seed : of the resamples.
    reference : None for each variant's own figure; a variant's name for the differences from it.

    Returns
    -------
    An interval for each (variant, metric); with a reference none for the reference itself.

    Raises
    ------
    ValueError if the variants' users differ.
    """
    users = next(iter(variants.values())).users
    if any(not np.array_equal(each.users, users) for each in variants.values()):
        raise ValueError("a paired bootstrap needs the same users in every variant; take `common_users` first")
    columns, places = _columns(variants, metrics)
    sums = _resampled_sums(columns, seed, resamples)  # (resamples, columns)
    totals = columns.sum(axis=0)  # (columns,)

    def figure(of: NDArray[np.float64], key: tuple[str, str]) -> Any:
        return np.mean([of[..., top] / of[..., bottom] for top, bottom in places[key]], axis=0)

    found: dict[tuple[str, str], Interval] = {}
    tail = (1 - level) / 2
    for name, each in variants.items():
        for metric in metrics if name != reference else ():
            drawn, point = figure(sums, (name, metric)), float(figure(totals, (name, metric)))
            if reference is not None:
                drawn = drawn - figure(sums, (reference, metric))
                point -= float(figure(totals, (reference, metric)))
            low, high = np.quantile(drawn, [tail, 1 - tail])
            found[name, metric] = Interval(point, float(low), float(high), level, users.size, each.seeds)
    return found


def _columns(
    variants: Mapping[str, UserFigures], metrics: Sequence[str]
) -> tuple[NDArray[np.float64], dict[tuple[str, str], list[tuple[int, int]]]]:
    """All numerators and denominators as one (users, columns) table, and where each metric's stand, seed by seed."""
    columns: list[NDArray[np.float64]] = []
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name, figures in variants.items():
        for metric in metrics:
            numerator, denominator = figures.parts(metric)
            start = len(columns)
            columns += [*numerator, *denominator]
            places[name, metric] = [(start + i, start + len(numerator) + i) for i in range(len(numerator))]
    return np.stack(columns, axis=1), places


def _resampled_sums(columns: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """Column sums over users drawn with replacement, (resamples, columns)."""
    generator = derive_generator(seed, "bootstrap over users")
    users = len(columns)
    chunk = max(1, _CHUNK // users)
    sums = []
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = generator.integers(users, size=(rows, users)) + users * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * users).reshape(rows, users)  # how often each was drawn
        sums.append(counts.astype(np.float64) @ columns)
    return np.concatenate(sums)


def common_users(variants: Mapping[str, UserFigures]) -> dict[str, UserFigures]:
    """The same variants over the users that all of them have.

    Raises
    ------
    ValueError if they have no user in common.
    """
    everyone = [set(each.users.tolist()) for each in variants.values()]
    common = np.array(sorted(set.intersection(*everyone)), dtype=np.int64)
    if not common.size:
        raise ValueError("the variants have no test user in common")
    found = {}
    for name, each in variants.items():
        rows = np.searchsorted(each.users, common)
        values = {key: table[:, rows] for key, table in each.values.items()}
        found[name] = UserFigures(common, values, each.left_out + each.users.size - common.size)
    return found
