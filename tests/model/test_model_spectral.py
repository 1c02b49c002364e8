"""Codes and least squares of the spectral encoder: hand-worked figures, and what must hold for any table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.model.spectral import WHITENING, code_factors, fill_codes, solved_vectors

ITEMS = np.array([0, 2, 1], np.int32)
POINTER = np.array([0, 2, 3], np.int64)


def table_of(vectors) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    return np.hstack([np.full((len(vectors), 1), 7.0, np.float32), vectors])


def test_codes_by_hand():
    """Two items with F = (3, 0) and (0, 4): h = (.6, .8); a fifth of the squared length is the count's."""
    factors = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 4.0]], np.float32)
    out = np.empty((3, 3), np.float32)
    fill_codes(factors, ITEMS, POINTER, 0, 2, 0.2, 10.0, out)
    each = 10 / np.sqrt(2)
    first = [each * np.sqrt(0.2), each * np.sqrt(0.8) * 0.6, each * np.sqrt(0.8) * 0.8]
    np.testing.assert_allclose(out[0], first, rtol=1e-6)
    np.testing.assert_allclose(out[1], first, rtol=1e-6)
    np.testing.assert_allclose(out[2], [10 * np.sqrt(0.2), 10 * np.sqrt(0.8), 0.0], rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.01, 0.9))
def test_an_upload_is_as_long_as_it_may_be(seed, n, share):
    factors = np.random.default_rng(seed).normal(size=(20, 5)).astype(np.float32)
    out = np.empty((n, 6), np.float32)
    fill_codes(factors, np.arange(n, dtype=np.int32), np.array([0, n]), 0, 1, share, 3.0, out)
    assert np.linalg.norm(out) == pytest.approx(3.0, rel=1e-5)


def test_a_code_of_nothing_leaves_the_count_alone():
    out = np.empty((3, 3), np.float32)
    fill_codes(np.zeros((3, 2), np.float32), ITEMS, POINTER, 0, 2, 0.25, 2.0, out)
    np.testing.assert_allclose(out[2], [1.0, 0.0, 0.0])


def test_factors_of_orthogonal_columns():
    """Columns of squared lengths 4 and 16: each is divided by that plus the ridge, .05 times their mean of 10."""
    vectors = np.array([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    ridge = WHITENING * 10
    expected = vectors / (np.array([4.0, 16.0]) + ridge) * ridge
    np.testing.assert_allclose(code_factors(table_of(vectors)), expected, rtol=1e-6)


def test_factors_turn_with_the_table():
    """No basis is preferred: sums of codes from devices with other libraries still add up."""
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(40, 4))
    turn, _ = np.linalg.qr(generator.normal(size=(4, 4)))
    np.testing.assert_allclose(
        code_factors(table_of(vectors @ turn)), code_factors(table_of(vectors)) @ turn, rtol=1e-4, atol=1e-6
    )


def test_user_vectors_solve_their_least_squares():
    generator = np.random.default_rng(4)
    vectors = generator.normal(size=(30, 5))
    table = table_of(vectors)
    starts, ends = np.array([0, 3, 3]), np.array([3, 3, 10])
    items = generator.choice(30, 10, replace=False).astype(np.int32)
    found = solved_vectors(table, items, starts, ends, 0.1, 0.5)
    rows = table.astype(np.float64)
    rows /= np.sqrt((rows**2).sum(axis=1).mean())
    for u in (0, 2):
        own = rows[items[starts[u] : ends[u]]]
        expected = np.linalg.solve(0.1 * rows.T @ rows + 0.5 * np.eye(6) + own.T @ own, own.sum(axis=0))
        np.testing.assert_allclose(found[u], expected, rtol=1e-4, atol=1e-6)
    assert not found[1].any()
    scaled = solved_vectors(table * 5, items, starts, ends, 0.1, 0.5)
    np.testing.assert_allclose(found, scaled, rtol=1e-4, atol=1e-6)
