"""The products against NumPy, at every size that leaves part of a tile over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.products import add_transposed_product, multiply, multiply_narrow


def matrix(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(found, exact):
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_by_hand():
    a = np.array([[1, 2], [0, -1]], np.float32)
    b = np.zeros((2, 8), np.float32)
    b[:, :2] = [[3, 4], [5, 6]]
    out = np.full((2, 8), 9, np.float32)
    multiply_narrow(a, b, 2, 2, 8, out)
    np.testing.assert_array_equal(out[:, :2], [[13, 16], [-5, -6]])
    np.testing.assert_array_equal(out[:, 2:], 0)


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 40), depth=st.integers(1, 70), tiles=st.integers(1, 7), seed=st.integers(0, 1000))
def test_narrow(rows, depth, tiles, seed):
    a, b = matrix(seed, rows + 2, depth + 3), matrix(seed + 1, depth + 1, 8 * tiles)
    out = np.full((rows + 2, 8 * tiles), 7, np.float32)
    multiply_narrow(a, b, rows, depth, 8 * tiles, out)
    close(out[:rows], a[:rows, :depth] @ b[:depth])
    assert (out[rows:] == 7).all()


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 70), depth=st.integers(1, 40), tiles=st.integers(1, 5), seed=st.integers(0, 1000))
def test_wide_and_transposed(rows, depth, tiles, seed):
    a, b = matrix(seed, rows * (depth + 2)), matrix(seed + 1, depth, 16 * tiles)
    out = np.full((rows + 1, 16 * tiles), 7, np.float32)
    multiply(a, b, rows, depth + 2, depth, out)
    close(out[:rows], a.reshape(rows, depth + 2)[:, :depth] @ b)
    assert (out[rows:] == 7).all()
    turned = matrix(seed + 2, depth * (rows + 3))
    before = out.copy()
    add_transposed_product(turned, b, rows, rows + 3, depth, out)
    close(out[:rows], before[:rows] + turned.reshape(depth, rows + 3)[:, :rows].T @ b)
    assert (out[rows:] == 7).all()


@pytest.mark.parametrize("rows", [1, 5, 9, 64])
def test_a_row_does_not_depend_on_how_many_there_are(rows):
    """Bit for bit for a narrow product of 8 or 16 columns: the local step's results may not depend on the cohort."""
    a, b = matrix(3, 64, 64), matrix(4, 64, 16)
    whole, part = np.empty((64, 16), np.float32), np.empty((64, 16), np.float32)
    multiply_narrow(a, b, 64, 64, 16, whole)
    multiply_narrow(a, b, rows, 64, 16, part)
    np.testing.assert_array_equal(part[:rows], whole[:rows])
