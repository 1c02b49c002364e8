"""A byte a coordinate: the step of a row, its bounds, and exact sums of what arrives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr.privacy.eight_bits import EightBits, from_eight_bits, to_eight_bits
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism
from fastpfrec_flwr.privacy.noise import GRID


class Changes:
    def __init__(self, values):
        self.changes = values
        self.rows = np.arange(len(values), dtype=np.int32)
        self.pointer = np.array([0, len(values)])


def test_by_hand():
    """127 fits with step 1, 128 needs step 2; half steps go to the even multiple; a tiny row has the grid's step."""
    values = np.array(
        [[127, 1, -3, 0.5], [128, 1, 3, -254], [0.5, 0.25, 0, -0.5], [0, 0, 0, 0], [3e-6, -1e-6, 0, 0]], np.float32
    )
    multiples, exponents = to_eight_bits(values)
    assert exponents.tolist() == [0, 1, -7, -20, -20]
    assert multiples.tolist() == [[127, 1, -3, 0], [64, 0, 2, -127], [64, 32, 0, -64], [0, 0, 0, 0], [3, -1, 0, 0]]
    assert from_eight_bits(multiples, exponents)[2].tolist() == [0.5, 0.25, 0, -0.5]


@given(st.integers(0, 2**32 - 1), st.floats(-18, 12))
def test_every_value_is_off_by_half_a_step_at_most(seed, size):
    generator = np.random.default_rng(seed)
    values = (generator.standard_normal((7, 16)) * 2.0**size).astype(np.float32).clip(-4064, 4064)
    multiples, exponents = to_eight_bits(values)
    step = np.ldexp(1.0, exponents.astype(int))[:, None]
    assert (np.abs(from_eight_bits(multiples, exponents) - values) <= step / 2).all()
    largest = np.abs(values).max(axis=1)
    assert ((largest > 63 * step[:, 0]) | (exponents == -20)).all(), "a smaller step would have done"
    assert (from_eight_bits(multiples, exponents) % GRID == 0).all()


def test_beyond_what_an_upload_may_hold_values_are_cut():
    multiples, exponents = to_eight_bits(np.array([[1e9, -np.inf, 0, 1]], np.float32))
    assert exponents.tolist() == [5]
    assert from_eight_bits(multiples, exponents).tolist() == [[4064, -4064, 0, 0]]


def test_sums_are_the_same_in_any_order():
    generator = np.random.default_rng(1)
    values = from_eight_bits(*to_eight_bits(generator.laplace(0, 0.1, (500, 8)).astype(np.float32))).astype(np.float64)
    assert (values.sum(axis=0) == values[generator.permutation(500)].sum(axis=0)).all()


def test_under_the_noise_the_rounding_cannot_be_seen():
    """Dense noise of scale 0.1: the error's variance is below 0.1 % of the noise's, and it has no mean."""
    mechanism = LaplaceMechanism(Clip(0, 0), 0.1, dense=True)
    nonces = np.array([1], np.uint64)
    zeros = np.zeros((20_000, 64), np.float32)
    keys = np.array([5], np.uint64)
    whole = mechanism.privatize(Changes(zeros.copy()), nonces, keys, 20_000)
    small = EightBits(mechanism).privatize(Changes(zeros.copy()), nonces, keys, 20_000)
    assert small.values.dtype == np.int8
    assert small.cover_scale == 0.1
    error = from_eight_bits(small.values, small.exponents) - whole.values
    assert error.var() < 1e-3 * whole.values.var()
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(error.size)
    assert EightBits(mechanism).noise_scale == 0.1


def test_uploads_of_bytes_are_made_by_a_mechanism_too():
    from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads

    with pytest.raises(TypeError, match=r"Mechanism\.privatize"):
        PrivatizedUploads(*[np.zeros(1)] * 4, 0.0, object(), np.zeros(1, np.int8))
