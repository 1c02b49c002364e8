"""Random bytes and spoiled replies."""

import numpy as np
import pytest
from contents import BODY, ITEMS, K, arrays_of, decode, good_content, npy
from flwr.app import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import RefusedError

GOOD_BYTES = messages.encode_array(np.zeros((6, K), np.float32)).data


def mutated(original):
    """Some bytes replaced, cut or added."""
    place = st.integers(0, len(original))
    edit = st.tuples(place, st.integers(0, 4), st.binary(max_size=6))

    def apply(edits):
        data = original
        for start, cut, new in edits:
            data = data[:start] + new + data[start + cut :]
        return data

    return st.lists(edit, min_size=1, max_size=3).map(apply)


literal = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
headers = st.fixed_dictionaries(
    {
        "descr": st.just("<f4") | literal,
        "fortran_order": st.just(False) | literal,
        "shape": st.just((6, K)) | st.lists(st.integers(-2, 2**70), max_size=3).map(tuple) | literal,
    }
)
some_bytes = (
    st.binary(max_size=300)
    | st.binary(max_size=200).map(lambda tail: GOOD_BYTES[:10] + tail)
    | mutated(GOOD_BYTES)
    | st.builds(npy, headers, st.just(BODY) | st.binary(max_size=100))
    | st.builds(npy, st.binary(max_size=200), st.just(BODY))
)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@settings(max_examples=500, deadline=None)
@given(some_bytes, st.just((6, K)) | st.lists(st.integers(-2, 2**70), max_size=3).map(tuple))
def test_any_bytes_are_an_array_or_refused(data, shape):
    array = Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=data)
    try:
        found = messages.decode_array(array, "it", "float32", (None, K))
    except RefusedError as error:
        assert str(error).startswith("it: ")  # noqa: PT017
        return
    assert found.dtype == np.float32
    assert found.shape == shape
    assert found.nbytes <= len(data)
    assert found.flags.aligned


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_reply_is_decoded_or_refused(data):
    content = good_content()
    good = arrays_of(content)
    name = data.draw(st.sampled_from(sorted(good)))
    old = content["uploads"][name]
    kind = data.draw(st.sampled_from(["bytes", "numbers", "figures"]))
    if kind == "bytes":
        new = data.draw(mutated(old.data))
        content["uploads"][name] = Array(dtype=old.dtype, shape=tuple(old.shape), stype=old.stype, data=new)
    elif kind == "numbers":
        content["uploads"][name] = Array(data.draw(arrays(good[name].dtype, good[name].shape)))
    else:
        value = data.draw(st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.integers(-9, 9), max_size=2))
        content["train"][data.draw(st.sampled_from(sorted(content["train"])))] = value
    try:
        decoded = decode(content)
    except RefusedError as error:
        assert len(str(error)) > 10  # noqa: PT017
        return
    uploads = decoded.uploads
    assert uploads.num_clients + len(decoded.refused) == 3
    assert np.isfinite(uploads.values).all()
    assert len(uploads.rows) == len(uploads.values) == uploads.pointer[-1]
    assert ((uploads.rows >= 0) & (uploads.rows < ITEMS)).all()
    for j in range(uploads.num_clients):
        mine = uploads.rows[uploads.pointer[j] : uploads.pointer[j + 1]]
        assert len(mine) > 0
        assert (np.diff(mine) > 0).all()
