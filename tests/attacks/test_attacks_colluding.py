"""Attacks of liars who know each other's uploads: the published formulas on uploads worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import ITEMS, K, filled, own_of, scene_of

from fastpfrec_flwr.attacks.colluding import Alie, Ipm, MinMax, Sybil, alie_z, min_max_step
from fastpfrec_flwr.attacks.forging import Moments

# Mean: row 0 (2, 2), row 1 (1, 0). Deviation: row 0 (1, 0), row 1 (1, 0).
OWN = own_of({0: [1.0, 2.0]}, {0: [3.0, 2.0], 1: [2.0, 0.0]})


def test_moments():
    moments = Moments.of(OWN, scene_of())
    assert moments.touched.tolist() == [2, 1, 0, 0, 0, 0]
    assert moments.mean.tolist() == [[2, 2], [1, 0]] + [[0, 0]] * 4
    assert moments.deviation.tolist() == [[1, 0], [1, 0]] + [[0, 0]] * 4
    covered = Moments.of(OWN, scene_of(cover_scale=0.1))
    assert covered.mean.tolist() == moments.mean.tolist()
    np.testing.assert_allclose(covered.deviation[2:], 0.1 * np.sqrt(2))  # Laplace(0.1) on rows that nobody carries
    np.testing.assert_allclose(covered.deviation[1], [np.sqrt(1 + 0.01), 0.1])  # one of two lacks it


def test_z_of_alie():
    """50 clients, 24 of them liars: 2 more make a majority, z = Phi^-1(24 / 26) (section 3 of the paper)."""
    assert alie_z(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert alie_z(256, 77) == pytest.approx(0.5519, abs=1e-4)  # 52 more: Phi^-1(127 / 179)
    assert alie_z(10, 6) > 5  # a majority needs nobody else


def test_alie():
    scene = scene_of(attack_strength=0.5, attack_noise=False)
    assert filled(Alie().forge(OWN, scene), 1) == {0: [1.5, 2.0], 1: [0.5, 0.0]}
    bare = scene_of(cover_scale=0.1, attack_strength=0.5, attack_noise=False)
    forged = filled(Alie().forge(OWN, bare), 0)
    assert forged == filled(Alie().forge(OWN, bare), 1)
    np.testing.assert_allclose(forged[5], [-0.5 * 0.1 * np.sqrt(2)] * 2, rtol=1e-6)


def test_noised_forgeries_differ_by_their_noise_alone():
    many = own_of(*[{0: [1.0, 2.0]}] * 400)
    forgery = Alie().forge(many, scene_of(cover_scale=0.1, attack_strength=0.5))
    values = np.array([list(filled(forgery, i).values()) for i in range(many.count)])  # (liars, items, k)
    assert values.shape == (400, ITEMS, K)
    assert (values - values.mean(axis=0)).std() == pytest.approx(0.1 * np.sqrt(2), rel=0.06)
    np.testing.assert_allclose(values.mean(axis=0)[1:], -0.5 * 0.1 * np.sqrt(2), atol=4 * 0.1414 / 20)


def test_ipm():
    scene = scene_of(attack_strength=0.5, attack_noise=False)
    assert filled(Ipm().forge(OWN, scene), 0) == {0: [-1.0, -1.0], 1: [-0.5, -0.0]}


def test_ipm_turns_the_average_around():
    """All send the same: with 3 liars of 10 the average of all is -0.1 (n - m) / n of it."""
    honest = np.array([1.0, 2.0])
    liars = own_of(*[{0: honest}] * 3)
    scene = scene_of(attack_fraction=0.3, attack_noise=False)
    lie = np.array(filled(Ipm().forge(liars, scene), 0)[0])
    np.testing.assert_allclose((7 * honest + 3 * lie) / 10, -0.07 * honest, rtol=1e-6)


def test_min_max():
    """Two uploads 2 apart: mean (1, 0), direction (-1, 0); one step away the far one is 2 away."""
    own = own_of({0: [0.0, 0.0]}, {0: [2.0, 0.0]})
    moments = Moments.of(own, scene_of())
    assert min_max_step(own, moments, ITEMS) == pytest.approx(1.0)
    assert min_max_step(own, moments, ITEMS, slack=5.0) == pytest.approx(2.0)  # 3 away is allowed
    scene = scene_of(attack_noise=False)
    np.testing.assert_allclose(filled(MinMax().forge(own, scene), 0)[0], [0.0, 0.0], atol=1e-6)
    twice = scene_of(attack_noise=False, attack_strength=2.0)
    np.testing.assert_allclose(filled(MinMax().forge(own, twice), 0)[0], [-1.0, 0.0], atol=1e-6)


values = st.floats(-10, 10, width=32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, ITEMS - 1), st.tuples(values, values), min_size=1), min_size=2, max_size=6)
)
def test_min_max_goes_as_far_as_it_may(uploads):
    own = own_of(*uploads)
    moments = Moments.of(own, scene_of())
    step = min_max_step(own, moments, ITEMS)
    dense = np.zeros((own.count, ITEMS, K))
    for i in range(own.count):
        dense[i, own.rows[own.segment(i)]] = own.values[own.segment(i)]
    apart = max(np.linalg.norm(a - b) for a in dense for b in dense)

    def farthest(g):
        return max(np.linalg.norm(moments.mean - g * moments.deviation - each) for each in dense)

    assert farthest(step) <= apart + 1e-4 * (1 + apart)
    if apart > 1e-3:
        assert farthest(step + 1e-2 + 0.01 * step) > apart - 1e-4 * (1 + apart)


@pytest.mark.parametrize("cover", [0.0, 0.1])
def test_sybils_send_the_same_bytes(cover):
    forgery = Sybil().forge(OWN, scene_of(cover_scale=cover))
    assert filled(forgery, 0) == filled(forgery, 1)
    assert filled(forgery, 1)[0] == [1.0, 2.0]
    assert len(filled(forgery, 1)) == (1 if cover == 0 else ITEMS)
    assert filled(Sybil().forge(OWN, scene_of(attack_strength=3.0)), 1) == {0: [3.0, 6.0]}
