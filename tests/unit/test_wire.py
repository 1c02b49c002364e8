"""Arrays inside their own message: what NumPy reads back, and when there is no message to be had."""

import gc
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr.wire import message_of, npy_header, sendable


@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64", "uint64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_numpy_reads_the_message_back(shape, dtype, seed):
    array = sendable(shape, dtype)
    wanted = np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
    array[...] = wanted
    message = message_of(array)
    assert type(message) is bytes
    np.testing.assert_array_equal(np.load(io.BytesIO(message)), wanted)
    assert np.load(io.BytesIO(message)).dtype == wanted.dtype


def test_the_message_is_what_numpy_itself_writes():
    array = sendable((2, 3), "float32")
    array[...] = 1.5
    file = io.BytesIO()
    np.save(file, np.full((2, 3), 1.5, np.float32))
    written, message = file.getvalue(), message_of(array)
    # NumPy puts a comma and a blank before the closing brace; the elements lie at the same place.
    assert len(message) == len(written)
    assert message[128:] == written[128:]


def test_nothing_is_copied_and_the_message_can_not_change_any_more():
    array = sendable((1000, 64), "float32")
    array[...] = 2.0
    message = message_of(array)
    assert np.shares_memory(np.frombuffer(message, np.uint8), array)
    assert message_of(array) is message
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 3.0


def test_the_array_keeps_its_message_alive():
    array = sendable((1 << 16,), "int64")
    array[...] = 7
    gc.collect()
    others = [bytes(1 << 19) for _ in range(20)]
    assert (array == 7).all()
    assert len(others) == 20


@pytest.mark.parametrize(
    "other",
    [
        lambda array: array[:3],
        lambda array: array.reshape(-1),
        lambda array: array.T,
        lambda array: array.view(np.int32),
        lambda array: array.copy(),
        lambda array: np.zeros((4, 5), np.float32),
    ],
)
def test_anything_but_the_whole_array_has_no_message(other):
    assert message_of(other(sendable((4, 5), "float32"))) is None


@pytest.mark.parametrize("shape", [(0,), (5,), (123_456_789, 64)])
def test_elements_are_aligned(shape):
    assert len(npy_header(np.dtype("float32"), shape)) % 64 == 0
