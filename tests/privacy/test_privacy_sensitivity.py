"""The clamp of coordinates, and how far two clipped uploads can be apart in the norms that the ledger counts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fastpfrec_flwr.privacy.clipping import clamp
from fastpfrec_flwr.privacy.ledger import laplace_upload, sensitivity
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT, Clip

LARGEST = float(np.finfo(np.float32).max)
SUBNORMAL = 1e-42
FLOATS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, SUBNORMAL, -SUBNORMAL, LARGEST, -LARGEST, math.nan, math.inf, -math.inf]),
)
TABLES = arrays(np.float32, (4, 3), elements=FLOATS)


def table(*rows):
    return np.array(rows, np.float32)


# ---- the clamp -------------------------------------------------------------------------------------------------------


def test_clamp_by_hand():
    values = table([3, -4, 0.25], [0, SUBNORMAL, -0.5])
    clamp(values, 0.5)
    np.testing.assert_array_equal(values, table([0.5, -0.5, 0.25], [0, SUBNORMAL, -0.5]))


def test_clamp_of_some_columns_and_of_none():
    values = table([3, -4, 9])
    clamp(values, 1.0, 2)
    np.testing.assert_array_equal(values, table([1, -1, 9]))
    clamp(values, 0.0)
    np.testing.assert_array_equal(values, table([1, -1, 9]))


@pytest.mark.parametrize("bound", [0.1, 0.3, 1e-3, 1 / 3, 0.7])
def test_a_bound_that_float32_cannot_hold_is_not_exceeded(bound):
    values = table([LARGEST, -LARGEST, 1.0])
    clamp(values, bound)
    assert np.abs(values.astype(np.float64)).max() <= bound
    np.testing.assert_allclose(np.abs(values), bound, rtol=2e-7)


def test_clamp_comes_first_then_rows_then_the_whole_and_counts_are_left_alone():
    values = table([30, -40, COUNT_UNIT], [0.1, 0, 3 * COUNT_UNIT])
    Clip(1.0, 0.0, False, True, 2.0).apply(values)
    # (2, -2) of norm 2.83, brought to 1.
    np.testing.assert_allclose(values, [[math.sqrt(0.5), -math.sqrt(0.5), 32], [0.1, 0, 32]], rtol=3e-6)


def test_rows_that_are_not_finite_are_still_found_behind_a_clamp():
    values = table([1, 2], [math.nan, 1], [math.inf, 1], [1, -math.inf])
    Clip(0, 0, False, False, 0.5).apply(values)
    np.testing.assert_array_equal(values, table([0.5, 0.5], [0, 0], [0, 0], [0, 0]))


@settings(deadline=None, max_examples=200)
@given(TABLES, st.floats(1e-3, 100))
def test_clamp_keeps_what_is_inside_and_its_order(values, bound):
    before = values.copy()
    clamp(values, bound)
    finite = np.isfinite(before)
    assert (np.abs(values[finite].astype(np.float64)) <= bound).all()
    inside = finite & (np.abs(before.astype(np.float64)) <= np.float32(bound * (1 - 1e-6)))
    np.testing.assert_array_equal(values[inside], before[inside])
    assert (np.sign(values[finite]) == np.sign(before[finite])).all()
    again = values.copy()
    clamp(again, bound)
    np.testing.assert_array_equal(again, values)


# ---- sensitivities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clips", "l1", "l2"),
    [
        # 25 items of 4 columns: d = 100, sqrt d = 10.
        ((0.0, 3.0, False, 0.0), 60.0, 6.0),
        ((0.0, 3.0, True, 0.0), 6.0, 6.0),
        ((2.0, 0.0, False, 0.0), 200.0, 20.0),
        ((0.0, 0.0, False, 0.5), 100.0, 10.0),
        ((2.0, 3.0, False, 0.5), 60.0, 6.0),
        ((0.0, 3.0, True, 0.01), 2.0, 0.2),
        ((0.0, 8.0, False, 0.5), 100.0, 10.0),
        ((0.0, 0.0, False, 0.0), math.inf, math.inf),
    ],
)
def test_sensitivity_by_hand(clips, l1, l2):
    row, joint, in_l1, coordinate = clips
    apart = sensitivity(row, joint, in_l1, coordinate, 25, 4)
    assert apart.l1 == pytest.approx(l1)
    assert apart.l2 == pytest.approx(l2)


def test_per_coordinate_figures_of_the_design():
    """c = 0.5, lambda = 0.1: 10 d, on Yelp (7,421 x 64) 4,749,440."""
    guarantee = laplace_upload(0.1, 0, 0, False, 7421, 64, True, coordinate_bound=0.5)
    assert guarantee.epsilon == pytest.approx(4_749_440)
    assert "2 c d / lambda" in guarantee.reason


@settings(deadline=None, max_examples=300)
@given(
    TABLES,
    TABLES,
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([0.0, 1.3]),
    st.booleans(),
    st.sampled_from([0.0, 0.4]),
)
def test_no_two_uploads_are_further_apart(one, other, row, joint, l1, coordinate):
    apart = sensitivity(row, joint, l1, coordinate, 4, 3)
    clip = Clip(row, joint, l1, False, coordinate)
    clip.apply(one)
    clip.apply(other)
    difference = one.astype(np.float64) - other.astype(np.float64)
    assert np.isfinite(difference).all()
    assert np.abs(difference).sum() <= apart.l1 * (1 + 1e-9)
    assert np.sqrt((difference**2).sum()) <= apart.l2 * (1 + 1e-9)
