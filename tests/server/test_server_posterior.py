"""Empirical Bayes on noisy sums: better than the sums themselves, and close to who knows the prior."""

import numpy as np
import pytest

from fastpfrec_flwr.server.posterior import PosteriorStep, posterior_counts, posterior_sums
from fastpfrec_flwr.server.steps import ServerState


def test_counts_of_two_kinds():
    """Half of the items have 1, half 9, noise 1: posterior means cluster there although a third of the ones look like 0 or 2."""
    generator = np.random.default_rng(1)
    truth = np.repeat([1.0, 9.0], 4000)
    noisy = truth + generator.standard_normal(8000)
    found = posterior_counts(noisy)
    assert (found > 0).all()
    assert np.mean((found - truth) ** 2) < 0.15 * np.mean((noisy - truth) ** 2)
    order = np.argsort(noisy)
    assert (np.diff(found[order]) >= -1e-9).all(), "more seen is more believed"


def test_a_number_far_beyond_the_noise_is_what_it_seems():
    """Few large ones among many small: none of them may be taken for the mean of all."""
    generator = np.random.default_rng(7)
    truth = np.concatenate([generator.gamma(1.0, 3.0, 3000) + 0.1, np.geomspace(100, 6000, 40)])
    found = posterior_counts(truth + generator.standard_normal(len(truth)))
    np.testing.assert_allclose(found[3000:], truth[3000:], rtol=0.06)
    assert (found[:3000] < 60).all()


def test_sums_are_shrunk_as_by_who_knows_the_prior():
    generator = np.random.default_rng(2)
    counts = np.repeat([1.0, 4.0, 16.0], 1500)
    mixing = np.diag([1.0, 0.5, 0.2, 0.0])
    truth = counts[:, None] * (generator.standard_normal((4500, 4)) @ mixing)
    noisy = (truth + generator.standard_normal((4500, 4))).astype(np.float32)
    found = posterior_sums(noisy, counts * np.exp(1e-3 * generator.standard_normal(4500)))
    prior = counts[:, None] ** 2 * np.diag(mixing) ** 2
    best = noisy * prior / (prior + 1)

    def error(guess):
        return np.mean((guess - truth) ** 2)

    assert error(best) < error(found) < 1.05 * error(best) < 0.75 * error(noisy)


def test_releases_before_help():
    """The same codes twice: together they have half the noise variance."""
    generator = np.random.default_rng(3)
    truth = 1.5 * generator.standard_normal((6000, 5))
    counts = np.exp(0.01 * generator.standard_normal(6000))
    twice = np.hstack([truth + generator.standard_normal((6000, 5)) for _ in range(2)]).astype(np.float32)
    alone = posterior_sums(twice[:, 5:].copy(), counts)
    together = posterior_sums(twice, counts)[:, 5:]
    ratio = np.mean((together - truth) ** 2) / np.mean((alone - truth) ** 2)
    # Wiener errors: 2.25 / (1 + 2.25) alone, 2.25 / (1 + 4.5) with both.
    assert ratio == pytest.approx((2.25 / 5.5) / (2.25 / 3.25), abs=0.03)


def test_of_noise_alone_nothing_is_left():
    noisy = np.random.default_rng(5).standard_normal((5000, 12)).astype(np.float32)
    counts = np.exp(np.random.default_rng(6).standard_normal(5000))
    assert np.mean(posterior_sums(noisy, counts) ** 2) < 0.02


@pytest.mark.parametrize("deviation", [0.0, 0.02])
def test_the_step_keeps_what_it_needs(deviation):
    generator = np.random.default_rng(4)
    step = PosteriorStep(deviation, 10.0, 100, 0.5, 0.2)
    state = ServerState.start(np.zeros((50, 4), np.float32))
    for server_round in range(1, 6):
        change = np.abs(generator.normal(0.3, 0.1, (50, 4))).astype(np.float32)
        before = state
        state = step.apply(state, change, server_round)
        assert state.item_table.dtype == np.float32
        assert np.isfinite(state.item_table).all()
        assert (state.item_table[:, 0] > 0).all()
        assert state.first_moment.shape == (50, 3 * min(server_round, 3))
        assert state.steps == server_round
        assert before.steps == server_round - 1, "the state before is left alone"
    assert np.square(state.item_table).sum(axis=1).mean() == pytest.approx(1.0, rel=1e-4)
