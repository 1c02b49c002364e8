"""Uploads in fewer bits, and whole tables without row numbers."""

import dataclasses

import numpy as np
import pytest
from contents import CLIENTS, COVER, ITEMS, ORDER, ROUND, Changes, K, answer, decode, good_content, privatized

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import RefusedError, TrainReport
from fastpfrec_flwr.privacy.eight_bits import EightBits, from_eight_bits, to_eight_bits
from fastpfrec_flwr.privacy.mechanism import Clip, HalfPrecision, LaplaceMechanism


def test_half_precision_arrives_as_float32_and_only_where_it_was_asked_for():
    content = messages.encode_uploads(
        privatized(HalfPrecision(LaplaceMechanism(Clip(0, 0), COVER, dense=True))), TrainReport(ROUND, 0, 1.5, 9)
    )
    decoded = messages.decode_uploads(answer(content), ROUND, CLIENTS, ITEMS, K, COVER, 1, "float16")
    assert decoded.uploads.values.dtype == np.float32
    np.testing.assert_array_equal(decoded.uploads.values, privatized().values.astype(np.float16).astype(np.float32))
    with pytest.raises(RefusedError, match="float16"):
        decode(content)
    with pytest.raises(RefusedError, match="float32"):
        messages.decode_uploads(answer(good_content()), ROUND, CLIENTS, ITEMS, K, COVER, 1, "float16")


def bytes_content(num_items=0, keys=(1, 2, 3)):
    mechanism = EightBits(LaplaceMechanism(Clip(0, 0), COVER, dense=True))
    return messages.encode_uploads(privatized(mechanism, keys), TrainReport(ROUND, 0, 1.5, 9), num_items)


def decode_bytes(content, cover=COVER):
    return messages.decode_uploads(answer(content), ROUND, CLIENTS, ITEMS, K, cover, 1, "int8")


def test_a_byte_a_coordinate_arrives_as_float32_and_only_where_it_was_asked_for():
    found = decode_bytes(bytes_content()).uploads
    assert found.values.dtype == np.float32
    assert not found.values.flags.writeable
    np.testing.assert_array_equal(found.values, from_eight_bits(*to_eight_bits(privatized().values)))
    with pytest.raises(RefusedError, match="unknown keys \\['exponents'\\]"):
        decode(bytes_content())
    with pytest.raises(RefusedError, match="missing keys \\['exponents'\\]"):
        decode_bytes(good_content())


@pytest.mark.parametrize("wrong", [6, 127, -21, -128])
def test_exponents_out_of_range_are_refused(wrong):
    content = bytes_content()
    exponents = content["uploads"]["exponents"].numpy().copy()
    exponents[2] = wrong
    content["uploads"]["exponents"] = messages.encode_array(exponents)
    with pytest.raises(RefusedError, match="exponents: must be -20 to 5"):
        decode_bytes(content)


def test_exponents_of_another_number_are_refused():
    content = bytes_content()
    content["uploads"]["exponents"] = messages.encode_array(np.zeros(5, np.int8))
    with pytest.raises(RefusedError, match="exponents: shape"):
        decode_bytes(content)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_whole_tables_travel_without_row_numbers(precision):
    """A real device's dense upload: each client's rows are all of them, so they need not be said."""
    if precision == "int8":
        content = bytes_content(ITEMS, keys=None)
    else:
        content = messages.encode_uploads(privatized(keys=None), TrainReport(ROUND, 0, 1.5, 9), ITEMS)
    assert content["uploads"]["rows"].shape == (0,)
    found = messages.decode_uploads(answer(content), ROUND, CLIENTS, ITEMS, K, COVER, 1, precision)
    assert not found.refused
    assert found.uploads.rows.tolist() == list(range(ITEMS)) * 3
    assert found.uploads.pointer.tolist() == [0, ITEMS, 2 * ITEMS, 3 * ITEMS]
    assert found.uploads.values.shape == (3 * ITEMS, K)


def test_rows_may_be_left_out_of_whole_tables_only():
    content = messages.encode_uploads(privatized(), TrainReport(ROUND, 0, 1.5, 9), ITEMS)
    assert content["uploads"]["rows"].shape == (6,), "touched rows are said"
    content["uploads"]["rows"] = messages.encode_array(np.empty(0, np.int32))
    with pytest.raises(RefusedError, match="values: shape"):
        decode(content)
    # Whole tables by the pointer, values of one client only: nothing of the claimed size is made.
    content = messages.encode_uploads(privatized(keys=None), TrainReport(ROUND, 0, 1.5, 9), ITEMS)
    values = content["uploads"]["values"].numpy()[:ITEMS].copy()
    content["uploads"]["values"] = messages.encode_array(values)
    with pytest.raises(RefusedError, match="values: shape"):
        decode(content)


def test_a_simulated_upload_that_touches_every_row_keeps_its_row_numbers():
    """Its cover noise is still to be drawn, on no rows: it must not be taken for a whole noised table."""
    everything = Changes(
        np.tile(np.arange(ITEMS, dtype=np.int32), 2),
        np.array([0, ITEMS, 2 * ITEMS]),
        np.ones((2 * ITEMS, K), np.float32),
    )
    mechanism = LaplaceMechanism(Clip(0, 0), COVER, dense=True)
    nonces, keys = np.array([1, 2], np.uint64), np.array([3, 4], np.uint64)
    content = messages.encode_uploads(
        mechanism.privatize(everything, nonces, keys, ITEMS), TrainReport(ROUND, 0, 0.0, 0), ITEMS
    )
    found = decode(content)
    assert found.refused == []
    assert found.uploads.rows.tolist() == 2 * list(range(ITEMS))
    assert found.uploads.cover_scale == COVER


def test_bytes_of_a_row():
    assert [messages.row_bytes(precision, 64) for precision in ("float32", "float16", "int8")] == [256, 128, 65]


@pytest.mark.parametrize("name", ["../../home", "a/b", "", ".", "x" * 65, "a\n", "ä"])
def test_an_order_cannot_name_a_folder_of_the_device(name):
    for field in ("state_id", "phase"):
        content = messages.encode_query(dataclasses.replace(ORDER, **{field: name}))
        with pytest.raises(RefusedError, match=f"order: {field.replace('_', '-')} must be letters"):
            messages.decode_query(content)
