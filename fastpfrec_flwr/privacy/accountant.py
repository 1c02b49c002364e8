"""What uploads cost together: composition, sums of noises and shuffling. Every figure rests on a proof named where it is made.

Composition is `dp-accounting`'s (Google). Gaussian noise of deviation sigma on what moves by D in L2 is rho-zCDP with
rho = (D / sigma)^2 / 2, and exactly so: many of them are one Gaussian of the rhos' sum, whose epsilon is the analytic one of Balle
& Wang 2018 (the classic formula is wrong above epsilon 1 and not used). Sums of n of them have sigma sqrt(n): rho / n, exactly.

Two facts about Laplace noise of scale lambda bring it in:

- *L2 sensitivity.* A coordinate that moves by v_i has pure epsilon |v_i| / lambda, so its Renyi divergence of any order alpha is at
  most alpha v_i^2 / (2 lambda^2) (Bun & Steinke 2016, prop. 1.4). Coordinates are independent and add: an upload that moves by
  D in L2 is rho-zCDP with rho = D^2 / (2 lambda^2), whatever the number of coordinates.
- *Sums.* Let the sum of n independent noises move by v. Move each of the n by v / n instead: the sum of these is the moved sum, so
  by post-processing its divergence is at most n alpha (v / n)^2 / (2 lambda^2): rho / n. The pure epsilon does not shrink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastpfrec_flwr.privacy.laws import GAUSSIAN

# From this sum of pure epsilons on, the exact composition (a grid of privacy losses) costs more than it gains over the others.
_LARGEST_EXACT = 200.0
_MOST_EXACT = 5_000


@dataclass(frozen=True)
class Cost:
    """What one release costs: pure epsilon (delta 0), and rho of zero-concentrated DP. Infinite where nothing bounds it.

    With `gaussian` the release is Gaussian noise, for which rho says everything.
    """

    pure: float
    rho: float
    gaussian: bool = False

    @staticmethod
    def of(kind: str, scale: float, l1_distance: float, l2_distance: float) -> Cost:
        """Of noise of a law (`privacy.laws`) on something that moves by at most so much in L1 and in L2 norm."""
        if kind == GAUSSIAN:
            return Cost.of_gaussian(scale, l2_distance)
        return Cost.of_laplace(scale, l1_distance, l2_distance)

    @staticmethod
    def of_gaussian(deviation: float, l2_distance: float) -> Cost:
        """Of Gaussian noise on something that moves by at most so much in L2 norm; no pure epsilon bounds it."""
        if deviation <= 0:
            return Cost(math.inf, math.inf)
        return Cost(math.inf if l2_distance > 0 else 0.0, (l2_distance / deviation) ** 2 / 2, True)

    @property
    def bounded(self) -> bool:
        """Whether anything bounds it."""
        return math.isfinite(self.rho)

    @staticmethod
    def of_laplace(noise_scale: float, l1_distance: float, l2_distance: float) -> Cost:
        """Of Laplace noise on something that moves by at most so much in L1 and in L2 norm (module docstring)."""
        if noise_scale <= 0:
            return Cost(math.inf, math.inf)
        return Cost(l1_distance / noise_scale, (l2_distance / noise_scale) ** 2 / 2)

    def summed_over(self, clients: int) -> Cost:
        """Seen only in the sum of the uploads of `clients` (>= 1), each with honest noise of its own."""
        return Cost(self.pure, self.rho / clients, self.gaussian)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.pure + other.pure, self.rho + other.rho, self.gaussian and other.gaussian)


@dataclass(frozen=True)
class Bound:
    """An (epsilon, delta) guarantee and the argument it rests on."""

    epsilon: float
    delta: float
    how: str


def compose(releases: Sequence[tuple[Cost, int]], delta: float) -> Bound:
    """The smallest epsilon that is proven for all `releases` ((cost, how many times)) together, adaptively chosen.

    Gaussian noise alone: exact. Otherwise tried are the plain sum (delta 0), zCDP and, where its grid is small enough, the exact
    composition of pure mechanisms.

    Parameters
    ----------
    delta : 0 for pure guarantees only.
    """
    releases = [(cost, count) for cost, count in releases if count > 0]
    total = sum(cost.pure * count for cost, count in releases)
    if releases and all(cost.gaussian for cost, _ in releases):
        return _of_gaussians(sum(cost.rho * count for cost, count in releases), delta)
    best = Bound(total, 0.0, "sum of the pure epsilons")
    if not 0 < delta < 1 or not 0 < total < math.inf:
        return best
    found = [_zcdp(releases, delta)]
    if total <= _LARGEST_EXACT and sum(count for _, count in releases) <= _MOST_EXACT:
        found.append(_exact([(cost.pure, 0.0, count) for cost, count in releases], delta))
    return min([best, *found], key=lambda bound: bound.epsilon)


def _of_gaussians(rho: float, delta: float) -> Bound:
    """Gaussian mechanisms compose to one with the sum of their (D / sigma)^2 = 2 rho (Dong, Roth & Su 2022, cor. 3.3)."""
    from dp_accounting import get_epsilon_gaussian

    if not 0 < delta < 1 or rho == 0:
        return Bound(math.inf if rho > 0 else 0.0, 0.0, "Gaussian noise needs delta > 0")
    how = "analytic Gaussian, (L2 distance / sigma)^2 added up over the uploads"
    return Bound(float(get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)), delta, how)


def _zcdp(releases: Sequence[tuple[Cost, int]], delta: float) -> Bound:
    import numpy as np
    from dp_accounting import ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    # alpha - 1 is near sqrt(ln(1/delta) / rho): from 1e-6 for the rho of millions to 1e6 for next to none.
    accountant = RdpAccountant(orders=(1 + np.geomspace(1e-6, 1e6, 601)).tolist())
    for cost, count in releases:
        accountant.compose(ZCDpEvent(min(cost.rho, cost.pure**2 / 2)), count)
    return Bound(float(accountant.get_epsilon(delta)), delta, "zCDP, rho = (L2 distance / lambda)^2 / 2 per upload")


def _exact(releases: Sequence[tuple[float, float, int]], delta: float) -> Bound:
    """Composition of (epsilon, delta, count): randomised response dominates them (Kairouz, Oh & Viswanath 2015)."""
    from dp_accounting.pld import common, privacy_loss_distribution

    together = None
    for epsilon, each_delta, count in releases:
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, each_delta)
        ).self_compose(count)
        together = one if together is None else together.compose(one)
    epsilon = math.inf if together is None else float(together.get_epsilon_for_delta(delta))
    return Bound(epsilon, delta, "exact composition (privacy loss distribution)")


def shuffled(pure: float, clients: int, uploads: int, delta: float) -> Bound:
    """A user's `uploads`, each of them seen only among those of `clients`, in no order.

    Feldman, McMillan & Talwar 2021, theorem 3.1: epsilon = ln(1 + (e^e0 - 1)/(e^e0 + 1) (8 sqrt(e^e0 ln(4/d) / n) + 8 e^e0 / n)),
    valid for e0 <= ln(n / (16 ln(4/d))); d is half of delta, shared by the uploads.

    Returns
    -------
    An infinite bound with the reason where it does not hold.
    """
    if delta <= 0:
        return Bound(math.inf, 0.0, "shuffling not applicable: it needs delta > 0")
    share = delta / (2 * uploads)
    scale = clients / (16 * math.log(4 / share))
    largest = math.log(scale) if scale > 0 else -math.inf
    if pure > largest:
        limit = f"{largest:.3g}" if largest > 0 else "no epsilon at all"
        return Bound(
            math.inf, delta,
            f"shuffling not applicable: its bound holds up to {limit} per upload among {clients} clients, "
            f"this is {show(pure)}",
        )  # fmt: skip
    grown = math.exp(pure)
    factor = math.expm1(pure) / (grown + 1)
    one = math.log1p(factor * (8 * math.sqrt(grown * math.log(4 / share) / clients) + 8 * grown / clients))
    how = f"shuffling among {clients} clients"
    bounds = [Bound(one * uploads, delta, how)]
    if 0 < one * uploads <= _LARGEST_EXACT and uploads <= _MOST_EXACT:
        bounds.append(Bound(_exact([(one, share, uploads)], delta).epsilon, delta, how))
    return min(bounds, key=lambda bound: bound.epsilon)


def clients_beside(others: int, num_nodes: int, uploads: int, failure: float) -> int:
    """How many of `others` honest clients are at a user's node in all of its `uploads` rounds, but for a chance of `failure`.

    Nodes are drawn uniformly and independently: Binomial(others, 1 / nodes), with the union bound over the rounds.
    """
    from scipy.stats import binom

    if num_nodes == 1:
        return others
    # ppf gives the smallest k with P(X <= k) >= q, so P(X < k) < q.
    return int(max(binom.ppf(failure / max(uploads, 1), others, 1 / num_nodes), 0))


def randomised_response(keep_prob: float, add_prob: float) -> float:
    """Epsilon of one edge that is kept with q and, where there is none, added with p: max(|ln(q/p)|, |ln((1-p)/(1-q))|)."""
    q, p = keep_prob, add_prob
    return max(_log_ratio(q, p), _log_ratio(1 - p, 1 - q))


def _log_ratio(a: float, b: float) -> float:
    if a == b:
        return 0.0
    return math.inf if min(a, b) <= 0 else abs(math.log(a / b))


def show(epsilon: float) -> str:
    """An epsilon for people: infinity as a word, a million as a million."""
    if math.isinf(epsilon):
        return "infinity"
    return f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"
