"""What is encoded comes back, and only what is private can be encoded."""

import numpy as np
import pytest
from contents import CLIENTS, COVER, ITEMS, ROUND, Changes, K, answer, changes, decode, privatized, sums_of
from flwr.app import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, Order, RefusedError, TrainReport
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism, NoNoise, PrivatizedUploads
from fastpfrec_flwr.trusted_node.uploads import Uploads


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["float32", "float64", "int32", "int64", "uint64"]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    )
)
def test_arrays_round_trip(array):
    encoded = messages.encode_array(array)
    found = messages.decode_array(encoded, "it", str(array.dtype), array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.shape == array.shape
    assert not found.flags.writeable
    # Flower reads ours and we read Flower's.
    assert encoded.numpy().tobytes() == array.tobytes()
    theirs = messages.decode_array(Array(array), "it", str(array.dtype), (None,) * array.ndim)
    assert theirs.tobytes() == array.tobytes()


def test_views_and_columns_are_encoded_by_value():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (table.T, table[:, ::2], np.asfortranarray(table)):
        found = messages.decode_array(messages.encode_array(view), "it", "float32", view.shape)
        np.testing.assert_array_equal(found, view)


text = st.text(st.characters(codec="utf-8"), max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
folder = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
orders = st.builds(Order, text, folder, folder, whole, whole, st.booleans(), st.booleans(), whole)


@settings(max_examples=50, deadline=None)
@given(orders)
def test_orders_round_trip(order):
    assert messages.decode_query(messages.encode_query(order)) == order


@settings(max_examples=50, deadline=None)
@given(
    orders, st.integers(0, 5), st.lists(st.sampled_from(["validation", "test"]), min_size=1, max_size=2, unique=True)
)
def test_train_and_evaluate_round_trip(order, items, parts):
    table = np.random.default_rng(items).normal(size=(items, K)).astype(np.float32)
    model = messages.encode_model(table)
    found, found_order = messages.decode_train(messages.encode_train(model, order), K)
    np.testing.assert_array_equal(found, table)
    assert found_order == order
    found, found_order, found_parts = messages.decode_evaluate(messages.encode_evaluate(model, order, parts), K)
    np.testing.assert_array_equal(found, table)
    assert (found_order, found_parts) == (order, parts)


@pytest.mark.parametrize(("precision", "share"), [("float32", 1.0), ("float16", 0.5), ("int8", 0.25 + 1 / (4 * 64))])
def test_a_table_travels_in_fewer_bytes(precision, share):
    table = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    table[7] = 0.0
    model = messages.encode_model(table, np.arange(50.0), precision)
    assert sum(len(model[key].data) for key in model if key != "item-counts") == pytest.approx(
        table.nbytes * share, abs=400
    )
    order = Order("c", "s", "train", 1, 5, True)
    content = messages.encode_train(model, order)
    found, _ = messages.decode_train(content, 64)
    step = {"float32": 0.0, "float16": 2.0**-11, "int8": 1 / 127}[precision]
    assert (np.abs(found - table).max(axis=1) <= step * np.abs(table).max(axis=1)).all()
    assert found.dtype == np.float32
    assert not found.flags.writeable
    np.testing.assert_array_equal(messages.decode_item_counts(content, 50), np.arange(50.0, dtype=np.float32))


@pytest.mark.parametrize("exponent", [-21, 6])
def test_exponents_that_no_table_has_are_refused(exponent):
    model = messages.encode_model(np.ones((3, K), np.float32), precision="int8")
    model["item-exponents"] = messages.encode_array(np.full(3, exponent, np.int8))
    with pytest.raises(RefusedError, match="item-exponents: must be -20 to 5"):
        messages.decode_train(messages.encode_train(model, Order("c", "s", "train", 1, 5, True)), K)


@settings(max_examples=50, deadline=None)
@given(st.builds(Description, st.integers(-1, 99), st.integers(0, 10**9), st.integers(1, 2**62), text, text, text))
def test_descriptions_round_trip(description):
    assert messages.decode_description(answer(messages.encode_description(description))) == description


@settings(max_examples=50, deadline=None)
@given(st.lists(text, min_size=1, max_size=5), text)
def test_catalogues_round_trip(item_ids, report):
    reply = answer(messages.encode_catalogue(item_ids, report))
    assert messages.decode_catalogue(reply, len(item_ids)) == (item_ids, report)
    with pytest.raises(RefusedError, match="strings"):
        messages.decode_catalogue(reply, len(item_ids) + 1)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(["validation", "test"]), st.integers(0, 10**6).map(sums_of), min_size=1))
def test_metric_sums_round_trip(sums):
    assert messages.decode_metric_sums(answer(messages.encode_metric_sums(sums))) == sums


@pytest.mark.parametrize("keys", [(1, 2, 3), None])
@pytest.mark.parametrize("dense", [False, True])
def test_uploads_round_trip(keys, dense):
    uploads = privatized(LaplaceMechanism(Clip(1, 0), COVER, dense), keys)
    report = TrainReport(ROUND, 0, 0.25, 3)
    decoded = decode(messages.encode_uploads(uploads, report), cover=uploads.cover_scale)
    assert (decoded.report, decoded.refused) == (report, [])
    for name in ("nonces", "pointer", "rows", "values"):
        np.testing.assert_array_equal(getattr(decoded.uploads, name), getattr(uploads, name))
    assert decoded.uploads.cover_scale == uploads.cover_scale


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_uploads_round_trip(data):
    lengths = data.draw(st.lists(st.integers(1, ITEMS), min_size=0, max_size=CLIENTS))
    rows = [np.sort(data.draw(st.permutations(range(ITEMS)))[:length]) for length in lengths]
    count = sum(lengths)
    values = data.draw(arrays(np.float32, (count, K), elements=st.floats(-4096, 4096, width=32)))
    mine = Changes(np.concatenate([*rows, []]).astype(np.int32), np.cumsum([0, *lengths], dtype=np.int64), values)
    nonces = np.array(
        data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(lengths), max_size=len(lengths))), np.uint64
    )
    uploads = NoNoise(Clip(0, 0)).privatize(mine, nonces, None, ITEMS)
    decoded = decode(messages.encode_uploads(uploads, TrainReport(ROUND, 0, 0.0, 0)), cover=0.0)
    assert decoded.refused == []
    for name in ("nonces", "pointer", "rows", "values"):
        np.testing.assert_array_equal(getattr(decoded.uploads, name), getattr(uploads, name))


def test_whole_noised_tables_stand_for_cover_noise():
    """A device's dense upload brings all rows: the same thing as touched rows plus cover, with no cover left to draw."""
    uploads = privatized(LaplaceMechanism(Clip(0, 0), COVER, dense=True), None)
    assert (uploads.cover_scale, len(uploads.rows)) == (0.0, 3 * ITEMS)
    decoded = decode(messages.encode_uploads(uploads, TrainReport(ROUND, 0, 0.0, 0)))
    assert decoded.refused == []
    assert decoded.uploads.cover_scale == COVER


def test_touched_rows_without_cover_are_refused_in_a_dense_round():
    uploads = privatized(LaplaceMechanism(Clip(0, 0), COVER, dense=False))
    decoded = decode(messages.encode_uploads(uploads, TrainReport(ROUND, 0, 0.0, 0)))
    assert decoded.uploads.num_clients == 0
    assert len(decoded.refused) == 3
    assert "rows missing" in decoded.refused[0]


# ---- only what is private leaves -------------------------------------------------------------------------------------


def test_nothing_but_privatized_uploads_is_encoded():
    good = privatized()
    fields = {name: getattr(good, name) for name in ("nonces", "pointer", "rows", "values", "cover_scale")}

    class Lookalike(PrivatizedUploads):
        pass

    for other in (Uploads(**fields), changes(), fields, None, good.values, Lookalike(**fields, seal=good.seal)):
        with pytest.raises(TypeError, match="only PrivatizedUploads"):
            messages.encode_uploads(other, TrainReport(ROUND, 0, 0.0, 0))
