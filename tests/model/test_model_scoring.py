"""Inference vectors and the popularity bias, by hand."""

import math

import numpy as np

from fastpfrec_flwr.model.linear import popularity_bias
from fastpfrec_flwr.model.scoring import inference_user_vectors

TABLE = np.array([[1, 0], [0, 2], [4, 4], [9, 9]], np.float32)
WEIGHTS = np.array([1, 2, 0.5, 100], np.float32)


def vectors(rows, private, user_weight=0.25, neighbour_weight=0.75):
    items = np.array([item for row in rows for item in row], np.int32)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    starts = ends - np.array([len(row) for row in rows], np.int64)
    return inference_user_vectors(
        TABLE, WEIGHTS, items, starts, ends, np.array(private, np.float32), user_weight, neighbour_weight
    )


def test_vectors_by_hand():
    got = vectors([[0, 1], [2]], [[4, 8], [0, 0]])
    # 0.25 p + 0.75 n^(-1/2) sum w E: sums (1, 4) and (2, 2)
    scale = 0.75 / math.sqrt(2)
    np.testing.assert_allclose(got, [[1 + scale, 2 + 4 * scale], [1.5, 1.5]], rtol=1e-6)
    assert got.dtype == np.float32


def test_a_user_without_items_gets_the_mean_user():
    got = vectors([[0, 1], [], [2], []], [[4, 8], [100, 100], [0, 0], [-7, 1]])
    expected = (got[0] + got[2]) / 2
    np.testing.assert_allclose(got[[1, 3]], [expected, expected], rtol=1e-6)


def test_nobody_with_items_gives_zeros():
    assert not vectors([[], []], [[1, 1], [2, 2]]).any()
    assert vectors([], np.empty((0, 2))).shape == (0, 2)


def test_popularity_bias_by_hand():
    got = popularity_bias(np.array([-3, 0, 0.5, 1, 100], np.float32), 0.03)
    np.testing.assert_allclose(got, 0.03 * np.log([0.5, 0.5, 0.5, 1, 100]), rtol=1e-6)
