"""Canary audits: bounds by hand, honest mechanisms hold, mutants with half the noise are caught, ceilings are told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.audit.canary import audit_by_coins, audit_by_runs, one_run_bound
from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism, LaplaceMechanism

TRIALS = 200_000
LAPLACE = LaplaceMechanism(Clip(0.0, 1.0, l1=True), 2.0, dense=True)  # moves by 2, lambda 2: epsilon 1
GAUSSIAN = GaussianMechanism(Clip(0.0, 1.0), 2 * 3.7306, dense=True)  # z = 3.731: epsilon 1 at delta 1e-5
SPIKE = np.array([[5.0, 0.0]], np.float32)


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize(("mechanism", "delta"), [(LAPLACE, 0.0), (GAUSSIAN, 1e-5)])
def test_honest_mechanisms_hold(mechanism, delta, seed):
    finding = audit_by_runs(mechanism, SPIKE, -SPIKE, TRIALS, seed, delta)
    # At 95 % one honest audit in twenty is refuted: the verdict is that of a stricter one.
    assert not audit_by_runs(mechanism, SPIKE, -SPIKE, TRIALS, seed, delta, 0.99999).refutes(1.0)
    assert finding.lower_bound > 0.8
    assert finding.lower_bound < finding.ceiling


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize(("mechanism", "delta"), [(LAPLACE, 0.0), (GAUSSIAN, 1e-5)])
def test_half_the_noise_is_caught(mechanism, delta, seed):
    mutant = replace(mechanism, noise_scale=mechanism.noise_scale / 2)
    finding = audit_by_runs(mutant, SPIKE, -SPIKE, TRIALS, seed, delta)
    assert finding.refutes(1.0)
    if mechanism is LAPLACE:
        assert 1.88 < finding.lower_bound < 2.1
    else:  # z = 1.865
        assert 2.0 < finding.lower_bound < 2.3


def test_a_mechanism_that_does_not_clip_is_caught():
    unclipped = replace(LAPLACE, clip=Clip(0.0, 0.0))
    assert audit_by_runs(unclipped, SPIKE, -SPIKE, 20_000, 1).refutes(1.0)


def test_the_ceiling_by_hand():
    """All of n right and none of n wrong: p >= a^(1/n), q <= 1 - a^(1/n), a = 0.025; judged is half of the trials."""
    finding = audit_by_runs(LaplaceMechanism(Clip(0.0, 1.0, l1=True), 1e-3, True), SPIKE, -SPIKE, 2000, 1)
    p = 0.025 ** (1 / 1000)
    assert finding.ceiling == pytest.approx(math.log(p / (1 - p)))
    assert finding.lower_bound == pytest.approx(finding.ceiling)  # it is 2,000: nothing to tell it from 5.6
    assert not finding.refutes(2000.0)


def test_changes_that_do_not_differ_after_the_clip_prove_nothing():
    assert audit_by_runs(LAPLACE, SPIKE, SPIKE, 20_000, 1).lower_bound < 0.1
    assert audit_by_runs(LAPLACE, SPIKE, 3 * SPIKE, 20_000, None).lower_bound < 0.1


def test_bounds_hold_in_nineteen_of_twenty_audits():
    finding = [audit_by_runs(LAPLACE, SPIKE, -SPIKE, 2000, seed).lower_bound for seed in range(60)]
    assert sum(bound > 1.0 for bound in finding) <= 8  # Binomial(60, 0.05) is above 8 in 0.6 % of the cases


# ---- one run ---------------------------------------------------------------------------------------------------------


def test_one_run_by_hand():
    """All of r guesses right: (e^eps / (1 + e^eps))^r = 0.05."""
    for guesses in (5, 100, 5000):
        q = 0.05 ** (1 / guesses)
        assert one_run_bound(guesses, guesses, guesses) == pytest.approx(math.log(q / (1 - q)), abs=1e-4)
    assert one_run_bound(1000, 1000, 500) == 0.0
    assert one_run_bound(1000, 1000, 0) == 0.0


def test_one_run_is_the_exact_binomial_test():
    bound = one_run_bound(1000, 1000, 800)
    share = 1 / (1 + math.exp(-bound))
    assert stats.binomtest(800, 1000, share, alternative="greater").pvalue == pytest.approx(0.05, rel=1e-3)


def test_delta_makes_a_bound_weaker_and_more_guessed_right_makes_it_larger():
    bounds = [one_run_bound(1000, 1000, right) for right in (550, 700, 850, 1000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
    assert one_run_bound(1000, 1000, 850, 1e-5) < one_run_bound(1000, 1000, 850)
    assert one_run_bound(1000, 1000, 850, 1e-9) == pytest.approx(one_run_bound(1000, 1000, 850), abs=1e-2)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_holds_for_randomised_response(epsilon):
    generator = np.random.default_rng(1)
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    rights = generator.binomial(2000, share, 200)
    bounds = np.array([one_run_bound(2000, 2000, int(right)) for right in rights])
    assert (bounds > epsilon).mean() <= 0.1
    assert np.median(bounds) > 0.8 * epsilon


@pytest.mark.parametrize("seed", [3, None])
def test_one_upload_catches_half_the_noise(seed):
    """A clamp of 0.5 and lambda 1: each coordinate has epsilon 1; guessed are the half that stand out most."""
    honest = LaplaceMechanism(Clip(0.0, 0.0, coordinate_bound=0.5), 1.0, dense=True)
    found = audit_by_coins(honest, 5.0, 40_000, 20_000, seed)
    assert 0.85 < found.lower_bound < 1.1
    assert not audit_by_coins(honest, 5.0, 40_000, 20_000, seed, confidence=0.99999).refutes(1.0)
    mutant = audit_by_coins(replace(honest, noise_scale=0.5), 5.0, 40_000, 20_000, seed)
    assert mutant.refutes(1.0)
    assert mutant.lower_bound < mutant.ceiling
