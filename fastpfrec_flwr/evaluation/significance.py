"""Whether a difference could be chance: paired tests over users or seeds, and ranks over data sets.

What a test over users says is narrow: *these trained models* rank users like these differently. It does not say that
training again would; for that look at the seeds. Where too few pairs stand behind a test no p can be small, and then no
star is given and the reason is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fastpfrec_flwr.evaluation.statistics import UserFigures

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
MIN_SEEDS = 6  # the fewest pairs with which a two-sided signed-rank test can reach 0.05
MIN_BLOCKS = 3  # data sets, and variants, below which ranks over data sets say nothing


@dataclass(frozen=True)
class PairedTest:
    """A two-sided Wilcoxon signed-rank test.

    Attributes
    ----------
    p : its p-value; 1 where no pair differs. n : pairs. zeros : pairs without a difference. mean : of the differences.
        smallest_p : the least p that so many differing pairs can give.
    """

    p: float
    n: int
    zeros: int
    mean: float
    smallest_p: float


def smallest_wilcoxon_p(n: int) -> float:
    """Least two-sided p of a signed-rank test over n pairs: all differences have one sign, 2 of 2^n sign patterns."""
    return min(1.0, 2.0 ** (1 - n))


def wilcoxon(differences: Sequence[float] | NDArray[np.float64]) -> PairedTest:
    """Test whether paired differences are symmetric about zero (Wilcoxon: Biometrics Bulletin 1945).

    Pairs without a difference are ranked with the others and then dropped (Pratt, JASA 1959): most users' lists do not
    change between two variants, and leaving them out first would make a few changed users look like everybody. Exact
    for up to 50 pairs without zeros or ties, by all sign patterns for up to 13, else the normal approximation with tie
    correction.

    Raises
    ------
    ValueError for no difference, or one that is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError("a paired test needs a list of finite differences, at least one")
    zeros = int(np.count_nonzero(values == 0))
    p = 1.0
    if zeros < values.size:
        p = float(stats.wilcoxon(values, zero_method="pratt", method="auto").pvalue)
    return PairedTest(p, values.size, zeros, float(values.mean()), smallest_wilcoxon_p(values.size - zeros))


def user_differences(ours: UserFigures, reference: UserFigures, metric: str) -> NDArray[np.float64]:
    """What each user adds to the difference of a metric, averaged over seeds; its mean is the difference itself.

    For a mean over users this is the user's own difference. For a ratio such as hits over truth it is the user's hits
    over the mean truth of a user: users with much truth weigh more, as they do in the ratio.

    Returns
    -------
    (users,) differences, ours - reference.

    Raises
    ------
    ValueError if the users are not the same.
    """
    if not np.array_equal(ours.users, reference.users):
        raise ValueError("paired differences need the same users on both sides")

    def share(figures: UserFigures) -> NDArray[np.float64]:
        numerator, denominator = figures.parts(metric)
        return np.asarray((numerator / denominator.mean(axis=1, keepdims=True)).mean(axis=0), dtype=np.float64)

    # The order in which seeds were added must not turn equal users into different ones.
    return np.round(share(ours) - share(reference), 12)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for how many there are (Holm: Scandinavian Journal of Statistics 1979).

    The i-th smallest of m is multiplied by m - i + 1, is at least the one before it, and at most 1.
    """
    adjusted: dict[str, float] = {}
    above = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        above = max(above, min(1.0, (len(p_values) - place) * p_values[name]))
        adjusted[name] = above
    return {name: adjusted[name] for name in p_values}


def stars(test: PairedTest, adjusted_p: float, family: int, unit: str) -> tuple[str, str]:
    """Return stars and, where none can be given, why.

    Parameters
    ----------
    adjusted_p : the test's p after Holm. family : tests adjusted together. unit : what a pair is, in the plural.

    Returns
    -------
    `***`, `**`, `*` or nothing; and the reason, empty unless too few pairs stand behind the test.
    """
    if test.zeros == test.n:
        return "", f"no stars: none of the {test.n} {unit} differs"
    floor = min(1.0, test.smallest_p * family)
    if floor > LEVELS[-1][0]:
        among = "" if family == 1 else f", {floor:.3g} after Holm among {family}"
        left = test.n - test.zeros
        differing = f"{left} {unit if left > 1 else unit.rstrip('s')}"
        differing += "" if not test.zeros else " that differ" if left > 1 else " that differs"
        return (
            "",
            f"no stars: over {differing} a two-sided Wilcoxon test cannot go below p = {test.smallest_p:.3g}{among}",
        )
    return next((mark for level, mark in LEVELS if adjusted_p < level), ""), ""


def too_few_seeds(n: int) -> str:
    """Why no test over this many seeds is shown; empty where one can be."""
    if n >= MIN_SEEDS:
        return ""
    if n < 1:
        return "no seed is shared by both"
    return (
        f"no test over {n} seed{'s' if n > 1 else ''}: a two-sided Wilcoxon test over {n} pair{'s' if n > 1 else ''} "
        f"cannot go below p = {smallest_wilcoxon_p(n):.3g}; it takes {MIN_SEEDS}"
    )


@dataclass(frozen=True)
class Ranks:
    """Variants ranked on each data set (Demsar: Statistical comparisons of classifiers, JMLR 2006).

    Attributes
    ----------
    mean_ranks : 1 is best; ties share. data_sets : how many. friedman_p : of the test that all rank alike.
    critical_difference : mean ranks that differ by less than this are not told apart (Nemenyi). nemenyi_p : for each pair.
    """

    mean_ranks: dict[str, float]
    data_sets: int
    friedman_p: float
    critical_difference: float
    nemenyi_p: dict[tuple[str, str], float]


def nemenyi_critical_difference(variants: int, data_sets: int, alpha: float = 0.05) -> float:
    """CD = q_alpha sqrt(k (k + 1) / (6 N)), q_alpha the studentised range over infinitely many, by sqrt(2) (Demsar 2006)."""
    q = float(stats.studentized_range.ppf(1 - alpha, variants, np.inf)) / math.sqrt(2)
    return q * math.sqrt(variants * (variants + 1) / (6 * data_sets))


def too_few_to_rank(variants: int, data_sets: int) -> str:
    """Why variants cannot be ranked over data sets; empty where they can."""
    if variants >= MIN_BLOCKS and data_sets >= MIN_BLOCKS:
        return ""
    return (
        f"no ranks over data sets: they take at least {MIN_BLOCKS} data sets and {MIN_BLOCKS} variants that ran on all of them, "
        f"there are {data_sets} and {variants}"
    )


def rank_over_data_sets(scores: Mapping[str, Sequence[float]], alpha: float = 0.05) -> Ranks:
    """Friedman's test and Nemenyi's comparisons; the unit is a data set.

    Parameters
    ----------
    scores : for each variant one figure per data set, in the same order; more is better.

    Raises
    ------
    ValueError if there are too few (see `too_few_to_rank`).
    """
    table = np.array(list(scores.values()), dtype=np.float64).T  # (data sets, variants)
    blocks, count = table.shape
    if reason := too_few_to_rank(count, blocks):
        raise ValueError(reason)
    ranks = stats.rankdata(-table, axis=1).mean(axis=0)  # (variants,)
    # All alike on every data set leaves the statistic undefined: there is nothing to tell apart.
    constant = bool(np.all(table == table[:, :1]))
    friedman = 1.0 if constant else float(stats.friedmanchisquare(*table.T).pvalue)
    names, error = list(scores), math.sqrt(count * (count + 1) / (6 * blocks))
    pairs = {
        (one, other): float(stats.studentized_range.sf(abs(ranks[i] - ranks[j]) / error * math.sqrt(2), count, np.inf))
        for i, one in enumerate(names)
        for j, other in enumerate(names)
        if i < j
    }
    cd = nemenyi_critical_difference(count, blocks, alpha)
    return Ranks(dict(zip(names, ranks.tolist(), strict=True)), blocks, friedman, cd, pairs)
