"""Clipping: hand-worked figures, and what must hold for any upload."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fastpfrec_flwr.privacy.clipping import clip_joint, clip_rows
from fastpfrec_flwr.privacy.mechanism import Clip

LARGEST = float(np.finfo(np.float32).max)
NORMAL = float(np.finfo(np.float32).tiny)


def table(*rows):
    return np.array(rows, np.float32)


def l2(values):
    """Norm in float64, of a row or of a whole upload."""
    return float(np.sqrt((values.astype(np.float64) ** 2).sum()))


def l1(values):
    return float(np.abs(values.astype(np.float64)).sum())


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_rows_by_hand():
    values = table([3, 4], [0.3, 0.4], [0, 0], [-6, 8])
    assert clip_rows(values, 1.0)[0] == 0
    np.testing.assert_allclose(values, [[0.6, 0.8], [0.3, 0.4], [0, 0], [-0.6, 0.8]], rtol=3e-6)
    np.testing.assert_array_equal(values[1:3], table([0.3, 0.4], [0, 0]))


def test_joint_l2_by_hand():
    values = table([3, 0], [0, 4])  # norm 5
    clip_joint(values, 2.5, False)
    np.testing.assert_allclose(values, [[1.5, 0], [0, 2]], rtol=3e-6)


def test_joint_l1_by_hand():
    values = table([3, -1], [0, 4])  # norm 8
    clip_joint(values, 2.0, True)
    np.testing.assert_allclose(values, [[0.75, -0.25], [0, 1]], rtol=3e-6)


def test_rows_first_then_the_whole():
    """Rows 5 -> 1 and 1 stay 1: joint norm sqrt 2, brought to 1. The other order would give rows of norm .98 and .196."""
    values = table([3, 4], [0, 1])
    Clip(1.0, 1.0).apply(values)
    np.testing.assert_allclose(values, np.array([[0.6, 0.8], [0, 1]]) / np.sqrt(2), rtol=3e-6)


def test_zero_bound_is_no_bound():
    values = table([3e8, 4], [1, 2])
    before = values.copy()
    Clip(0.0, 0.0).apply(values)
    clip_joint(values, 0.0, True)
    np.testing.assert_array_equal(values, before)


# ---- extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_rows_that_are_not_finite_become_zero_and_are_counted(bad, bound):
    values = table([0.1, 0.2], [bad, 1], [1, bad], [0.3, 0])
    assert clip_rows(values, bound)[0] == 2
    np.testing.assert_array_equal(values, table([0.1, 0.2], [0, 0], [0, 0], [0.3, 0]))


@pytest.mark.parametrize("size", [1e16, 1e30, 3e38, LARGEST])
@pytest.mark.parametrize("k", [1, 3, 64])
def test_huge_rows_keep_their_direction(size, k):
    values = np.full((2, k), size, np.float32)
    assert clip_rows(values, 1.0)[0] == 0
    np.testing.assert_allclose(values, np.full((2, k), k**-0.5), rtol=3e-6)
    whole = np.full((2, k), size, np.float32)
    clip_joint(whole, 1.0, False)
    np.testing.assert_allclose(whole, np.full((2, k), (2 * k) ** -0.5), rtol=3e-6)
    whole = np.full((2, k), size, np.float32)
    clip_joint(whole, 1.0, True)
    np.testing.assert_allclose(whole, np.full((2, k), 1 / (2 * k)), rtol=3e-6)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-38, 1e-20])
def test_tiny_rows_stay(size):
    values = np.full((2, 5), size, np.float32)
    before = values.copy()
    assert clip_rows(values, 1.0)[0] == 0
    clip_joint(values, 1.0, False)
    clip_joint(values, 1.0, True)
    np.testing.assert_array_equal(values, before)


def test_squares_below_float32_are_still_measured():
    """1e-25 squared is zero in float32: a bound of 1e-26 must bite all the same."""
    values = table([1e-25, 0])
    clip_rows(values, 1e-26)
    assert 0.99e-26 < l2(values) <= 1e-26


@pytest.mark.parametrize("k", [64, 257, 1024])
def test_the_bound_holds_where_a_float32_sum_of_squares_is_off(k):
    """Equal elements round the same way at every step of a float32 sum: the norm just above the bound looks like below."""
    generator = np.random.default_rng(k)
    for _ in range(200):
        values = np.full((1, k), generator.uniform(0.5, 2), np.float32)
        exact = l2(values)
        for bound in (exact * (1 - 1e-9), exact * (1 + 1e-9)):
            clipped = values.copy()
            clip_rows(clipped, bound)
            assert l2(clipped) <= bound
            if bound >= exact:
                np.testing.assert_array_equal(clipped, values)
            whole = values.copy()
            clip_joint(whole, bound, False)
            assert l2(whole) <= bound


# ---- what holds for any upload ---------------------------------------------------------------------------------------

uploads = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.sampled_from([1, 3, 16, 64])),
    elements=st.floats(-LARGEST, LARGEST, width=32, allow_subnormal=True)
    | st.floats(-1, 1, width=32)
    | st.just(0.0)
    | st.just(0.25),
)
bounds = st.floats(1e-3, 1e6)


def assert_same_direction(before, after):
    """The larger elements are scaled by one factor; those near the smallest normal float lose digits."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    largest = np.abs(before).argmax()
    factor = after.flat[largest] / before.flat[largest]
    np.testing.assert_allclose(after, before * factor, rtol=3e-7, atol=NORMAL)


@settings(max_examples=150, deadline=None)
@given(uploads, bounds)
def test_any_row_ends_within_its_bound(values, bound):
    clipped = values.copy()
    assert clip_rows(clipped, bound)[0] == 0
    for before, after in zip(values, clipped, strict=True):
        assert l2(after) <= bound
        if l2(before) <= bound:
            assert after.tobytes() == before.tobytes()
        else:
            assert l2(after) >= bound * (1 - 3e-6)
            assert_same_direction(before, after)


@settings(max_examples=150, deadline=None)
@given(uploads, bounds, st.booleans())
def test_any_upload_ends_within_its_joint_bound(values, bound, manhattan):
    norm = l1 if manhattan else l2
    clipped = values.copy()
    clip_joint(clipped, bound, manhattan)
    assert norm(clipped) <= bound
    if norm(values) <= bound * (1 - 1e-12):
        assert clipped.tobytes() == values.tobytes()
    elif norm(values) > bound * (1 + 1e-12):
        assert norm(clipped) >= bound * (1 - 3e-6)
        assert_same_direction(values, clipped)


@settings(max_examples=100, deadline=None)
@given(uploads, bounds, bounds, st.booleans())
def test_both_bounds_hold_after_both_clips(values, row_bound, joint_bound, manhattan):
    once = values.copy()
    clip = Clip(row_bound, joint_bound, manhattan)
    clip.apply(once)
    assert all(l2(row) <= row_bound for row in once)
    assert (l1 if manhattan else l2)(once) <= joint_bound
    twice = once.copy()
    clip.apply(twice)
    assert twice.tobytes() == once.tobytes()
