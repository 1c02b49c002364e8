"""What crosses the wire: round trips, every bad upload that we could think of, and random bytes."""

import dataclasses
import io
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fastpfrec_flwr import messages
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.messages import Description, Order, RefusedError, TrainReport
from fastpfrec_flwr.privacy.eight_bits import EightBits, from_eight_bits, to_eight_bits
from fastpfrec_flwr.privacy.mechanism import Clip, HalfPrecision, LaplaceMechanism, NoNoise, PrivatizedUploads
from fastpfrec_flwr.trusted_node.uploads import Uploads

ITEMS, K, ROUND, CLIENTS = 12, 4, 7, 3
COVER = 0.1
ORDER = Order("code", "state", "train", ROUND, CLIENTS)


@pytest.fixture(autouse=True, scope="module")
def identity():
    """Flower builds messages inside a run only; this stands for one."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)


def answer(content):
    """A reply as the server gets it."""
    question = Message(messages.encode_query(ORDER), dst_node_id=2, message_type="train")
    return Message(content, reply_to=question)


@dataclasses.dataclass
class Changes:
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def changes():
    """Three clients with 3, 1 and 2 rows."""
    rows = np.array([1, 4, 7, 0, 10, 11], np.int32)
    values = np.arange(6 * K, dtype=np.float32).reshape(6, K) / 64
    return Changes(rows, np.array([0, 3, 4, 6]), values)


def privatized(mechanism=None, keys=(1, 2, 3)):
    mechanism = mechanism or LaplaceMechanism(Clip(0, 0), COVER, dense=True)
    chosen = None if keys is None else np.array(keys, np.uint64)
    return mechanism.privatize(changes(), np.array([11, 22, 33], np.uint64), chosen, ITEMS)


def good_content():
    return messages.encode_uploads(privatized(), TrainReport(ROUND, 0, 1.5, 9))


def decode(content, server_round=ROUND, clients=CLIENTS, cover=COVER):
    return messages.decode_uploads(answer(content), server_round, clients, ITEMS, K, cover)


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


def test_bytes_of_a_row():
    assert [messages.row_bytes(precision, 64) for precision in ("float32", "float16", "int8")] == [256, 128, 65]


@pytest.mark.parametrize("name", ["../../home", "a/b", "", ".", "x" * 65, "a\n", "ä"])
def test_an_order_cannot_name_a_folder_of_the_device(name):
    for field in ("state_id", "phase"):
        content = messages.encode_query(dataclasses.replace(ORDER, **{field: name}))
        with pytest.raises(RefusedError, match=f"order: {field.replace('_', '-')} must be letters"):
            messages.decode_query(content)


# ---- round trips -----------------------------------------------------------------------------------------------------


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


@settings(max_examples=50, deadline=None)
@given(st.builds(Description, st.integers(-1, 99), st.integers(0, 2**62), st.integers(1, 2**62), text, text, text))
def test_descriptions_round_trip(description):
    assert messages.decode_description(answer(messages.encode_description(description))) == description


@settings(max_examples=50, deadline=None)
@given(st.lists(text, min_size=1, max_size=5), text)
def test_catalogues_round_trip(item_ids, report):
    reply = answer(messages.encode_catalogue(item_ids, report))
    assert messages.decode_catalogue(reply, len(item_ids)) == (item_ids, report)
    with pytest.raises(RefusedError, match="strings"):
        messages.decode_catalogue(reply, len(item_ids) + 1)


def sums_of(users):
    half = 1 << 39
    return MetricSums(
        users, 3 * users, {10: users, 20: 2 * users}, {10: users, 20: users},
        {10: half * users, 20: half * users + users}, {10: 7 * users, 20: 5 * users},
    )  # fmt: skip


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


# ---- every bad upload ------------------------------------------------------------------------------------------------

SHAPES = {"nonces": (3,), "pointer": (4,), "rows": (6,), "values": (6, K)}


def arrays_of(content):
    return {name: array.numpy().copy() for name, array in content["uploads"].items()}


def with_array(name, change):
    """A content whose array `name` is what `change` makes of the good one."""

    def build():
        content = good_content()
        content["uploads"][name] = Array(np.asarray(change(arrays_of(content)[name])))
        return content

    return build


def with_values(index, value):
    def change(values):
        values[index] = value
        return values

    return with_array("values", change)


def with_raw(name, stype="numpy.ndarray", data=None, dtype=None, shape=None):
    def build():
        content = good_content()
        old = content["uploads"][name]
        content["uploads"][name] = Array(
            dtype=dtype or old.dtype, shape=shape or tuple(old.shape), stype=stype,
            data=old.data if data is None else data(old) if callable(data) else data,
        )  # fmt: skip
        return content

    return build


def npy(header, body=b""):
    """A version-1 npy file with any header, padded as NumPy does."""
    text = header if isinstance(header, bytes) else repr(header).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def npz(array):
    file = io.BytesIO()
    np.savez(file, array.numpy())
    return file.getvalue()


def header(descr="<f4", shape=(6, K), fortran=False):
    return {"descr": descr, "fortran_order": fortran, "shape": shape}


def with_record(key, record):
    def build():
        content = good_content()
        content[key] = record
        return content

    return build


def without(key):
    def build():
        content = good_content()
        del content[key]
        return content

    return build


def renamed_array(old, new):
    def build():
        content = good_content()
        found = dict(content["uploads"].items())
        found[new] = found.pop(old) if old else found["values"]
        content["uploads"] = ArrayRecord(found)
        return content

    return build


def drop_array(name):
    content = good_content()
    found = dict(content["uploads"].items())
    del found[name]
    content["uploads"] = ArrayRecord(found)
    return content


def with_figure(**figures):
    def build():
        content = good_content()
        for key, value in figures.items():
            content["train"][key.replace("_", "-")] = value
        return content

    return build


def without_figure(key):
    def build():
        content = good_content()
        del content["train"][key]
        return content

    return build


BODY = np.zeros((6, K), np.float32).tobytes()
HUGE = 10**12

REFUSED = {
    # shapes
    "wrong number of rows": (with_array("values", lambda v: v[:5]), r"values: shape \(5, 4\)"),
    "one more row": (with_array("values", lambda v: np.vstack([v, v[:1]])), r"values: shape \(7, 4\)"),
    "one row that would broadcast": (with_array("values", lambda v: v[:1]), r"values: shape \(1, 4\)"),
    "one column that would broadcast": (with_array("values", lambda v: v[:, :1]), r"values: shape \(6, 1\)"),
    "scalar": (with_array("values", lambda v: np.float32(1)), r"values: shape \(\)"),
    "transposed": (with_array("values", lambda v: v.T.copy()), r"values: shape \(4, 6\)"),
    "fortran order": (with_array("values", np.asfortranarray), "C order"),
    "flat": (with_array("values", lambda v: v.ravel()), r"values: shape \(24,\)"),
    "three axes": (with_array("values", lambda v: v[None]), r"values: shape \(1, 6, 4\)"),
    "empty values": (with_array("values", lambda v: v[:0]), r"values: shape \(0, 4\)"),
    "empty rows": (with_array("rows", lambda v: v[:0]), r"values: shape"),
    "empty pointer": (with_array("pointer", lambda v: v[:0]), r"pointer: shape \(0,\)"),
    "empty nonces": (with_array("nonces", lambda v: v[:0]), r"pointer: shape \(4,\)"),
    "scalar nonces": (with_array("nonces", lambda v: v[0]), r"nonces: shape \(\)"),
    # dtypes
    **{
        f"values of {dtype}": (with_array("values", lambda v, dtype=dtype: v.astype(dtype)), "values: dtype .* is not float32")
        for dtype in ("int64", "bool", "float64", "float16", "complex64", "S4", "U4", ">f4", "int32", "datetime64[s]")
    },
    "rows of int64": (with_array("rows", lambda v: v.astype(np.int64)), "rows: dtype"),
    "rows of float32": (with_array("rows", lambda v: v.astype(np.float32)), "rows: dtype"),
    "nonces of int64": (with_array("nonces", lambda v: v.astype(np.int64)), "nonces: dtype"),
    "pointer of int32": (with_array("pointer", lambda v: v.astype(np.int32)), "pointer: dtype"),
    "objects": (with_raw("values", data=npy(header("|O"), b"x" * 96), dtype="object"), "values: dtype"),
    "objects called float32": (with_raw("values", data=npy(header("|O"), BODY)), "values: dtype"),
    "a structured dtype": (with_raw("values", data=npy(header([("a", "<f4")]), BODY)), "values: dtype"),
    "dtype declared otherwise": (with_raw("values", dtype="float64"), "values: dtype"),
    # bytes
    "pickle": (with_raw("values", data=lambda a: pickle.dumps(a.numpy())), "not a version-1 npy"),
    "npz": (with_raw("values", data=npz), "not a version-1 npy"),
    "no bytes": (with_raw("values", data=b""), "not a version-1 npy"),
    "magic alone": (with_raw("values", data=b"\x93NUMPY\x01\x00"), "not a version-1 npy"),
    "npy version 2": (with_raw("values", data=lambda a: a.data[:6] + b"\x02\x00" + a.data[8:]), "not a version-1 npy"),
    "npy cut in its header": (with_raw("values", data=lambda a: a.data[:40]), "cut off"),
    "npy cut in its body": (with_raw("values", data=lambda a: a.data[:-1]), "bytes do not make 24 elements"),
    "npy with more bytes": (with_raw("values", data=lambda a: a.data + b"\0"), "bytes do not make 24 elements"),
    "a header of 64 kB": (with_raw("values", data=b"\x93NUMPY\x01\x00\xff\xff" + b" " * 70_000), "too long"),
    "a header that is not padded": (
        with_raw("values", data=b"\x93NUMPY\x01\x00" + struct.pack("<H", 61) + repr(header()).encode().ljust(61) + BODY),
        "not padded",
    ),
    "a header that claims 10^12 rows": (
        with_raw("values", data=npy(header(shape=(HUGE, K)), BODY), shape=(HUGE, K)), r"values: shape \(1000000000000, 4\)",
    ),
    "rows that claim to be 10^12": (
        with_raw("rows", data=npy(header("<i4", (HUGE,)), b"\0" * 24), shape=(HUGE,)), "bytes do not make 10{12} elements",
    ),
    "nonces that claim to be 10^12": (
        with_raw("nonces", data=npy(header("<u8", (HUGE,)), b"\0" * 24), shape=(HUGE,)), "bytes do not make 10{12} elements",
    ),
    "a size that overflows 64 bits to fit": (
        with_raw("rows", data=npy(header("<i4", (2**62 + 6,)), b"\0" * 24), shape=(2**62 + 6,)), "bytes do not make",
    ),
    "negative sizes": (with_raw("values", data=npy(header(shape=(-6, -K)), BODY), shape=(-6, -K)), "values: shape"),
    "sizes of bool": (with_raw("rows", data=npy(header("<i4", (True,)), b"\0" * 4), shape=(1,)), "rows: shape"),
    "a shape that is a list": (with_raw("values", data=npy(header(shape=[6, K]), BODY)), "values: shape"),
    "header and record disagree on the shape": (with_raw("values", shape=(6, K + 1)), "is not the declared"),
    "a header that is code": (with_raw("values", data=npy(b"__import__('os').getpid()", BODY)), "header cannot be read"),
    "a header of brackets": (with_raw("values", data=npy(b"[" * 900, BODY)), "header cannot be read"),
    "a header of minus signs": (with_raw("values", data=npy(b"-" * 900 + b"1", BODY)), "header cannot be read"),
    "a header with a null byte": (with_raw("values", data=npy(b"{\0}", BODY)), "header cannot be read"),
    "a header with an unhashable key": (with_raw("values", data=npy(b"{[]: 1}", BODY)), "header cannot be read"),
    "a header that is a number": (with_raw("values", data=npy(b"7", BODY)), "header cannot be read"),
    "a header that is a list": (with_raw("values", data=npy(b"[]", BODY)), "header cannot be read"),
    "an empty header": (with_raw("values", data=npy(b"", BODY)), "header cannot be read"),
    "a header without shape": (with_raw("values", data=npy({"descr": "<f4", "fortran_order": False}, BODY)), "header cannot"),
    "unknown stype": (with_raw("values", stype="pickle"), "serialisation 'pickle'"),
    "empty stype": (with_raw("values", stype=""), "serialisation ''"),
    # keys and records
    "missing array": (lambda: drop_array("values"), r"missing keys \['values'\]"),
    "renamed array": (renamed_array("values", "value"), r"missing keys \['values'\], unknown keys \['value'\]"),
    "extra array": (renamed_array(None, "more"), r"unknown keys \['more'\]"),
    "two array records": (with_record("more", ArrayRecord({})), "records must be cover, train, uploads"),
    "no uploads": (without("uploads"), "records must be"),
    "no cover": (without("cover"), "records must be"),
    "no train": (without("train"), "records must be"),
    "uploads of another kind": (with_record("uploads", ConfigRecord({})), "'uploads' of kind ArrayRecord"),
    "cover of another kind": (with_record("cover", MetricRecord({"cover-scale": COVER})), "'cover' of kind ConfigRecord"),
    "train of another kind": (with_record("train", ConfigRecord({})), "'train' of kind MetricRecord"),
    "nothing at all": (RecordDict, "records must be"),
    # cover
    **{
        f"cover of {value!r}": (with_record("cover", ConfigRecord({"cover-scale": value})), "cover-scale must be")
        for value in (0.2, -0.1, float("nan"), float("inf"), 0, 1, "0.1", True, [0.1])
    },
    "cover without its key": (with_record("cover", ConfigRecord({})), "missing keys"),
    # rounds and counts
    "last round's upload": (with_figure(server_round=ROUND - 1), "reply to round 6 in round 7"),
    "the next round": (with_figure(server_round=ROUND + 1), "reply to round 8 in round 7"),
    "round as a float": (with_figure(server_round=float(ROUND)), "server-round must be int"),
    "count -1": (with_figure(positives=-1), "figures make no sense"),
    "count NaN": (with_figure(positives=float("nan")), "positives must be int"),
    "count 10^12": (with_figure(positives=HUGE), "at most 3 clients and 36 positives"),
    "count in a list": (with_figure(positives=[9]), "positives must be int"),
    "no count": (without_figure("positives"), r"missing keys \['positives'\]"),
    "one count too many": (with_figure(num_examples=3), r"unknown keys \['num-examples'\]"),
    "skipped -1": (with_figure(skipped=-1), "figures make no sense"),
    "skipped 10^12": (with_figure(skipped=HUGE), "at most 3 clients"),
    "loss NaN": (with_figure(loss_sum=float("nan")), "figures make no sense"),
    "loss infinite": (with_figure(loss_sum=float("inf")), "figures make no sense"),
    "loss as int": (with_figure(loss_sum=1), "loss-sum must be float"),
    # pointers
    "pointer that starts late": (with_array("pointer", lambda p: p + np.array([1, 0, 0, 0])), "does not divide"),
    "pointer that ends early": (with_array("pointer", lambda p: p - np.array([0, 0, 0, 1])), "does not divide"),
    "pointer beyond the rows": (with_array("pointer", lambda p: p + np.array([0, 0, 0, 1])), "does not divide"),
    "pointer that goes back": (with_array("pointer", lambda p: p[[0, 2, 1, 3]]), "does not divide"),
    "pointer below zero": (with_array("pointer", lambda p: np.array([0, -1, 4, 6])), "does not divide"),
    "pointer whose differences wrap around": (
        with_array("pointer", lambda p: np.array([0, 2**63 - 1, -2, 6])), "does not divide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_replies_are_refused_with_a_reason(name):
    build, reason = REFUSED[name]
    content = build()
    reply = answer(content)
    with pytest.raises(RefusedError, match=reason):
        messages.decode_uploads(reply, ROUND, CLIENTS, ITEMS, K, COVER)


def rows_to(*rows):
    return with_array("rows", lambda _: np.array(rows, np.int32))


# The good rows are 1 4 7 | 0 | 10 11.
COSTS_ONE = {
    "NaN in one coordinate": (with_values((1, 2), np.nan), 0, "not finite"),
    "Inf": (with_values((3, 0), np.inf), 1, "not finite"),
    "-Inf": (with_values((5, 3), -np.inf), 2, "not finite"),
    "3e38": (with_values((0, 0), 3e38), 0, "beyond"),
    "-5000": (with_values((4, 1), -5000), 2, "beyond"),
    "NaN beside 3e38": (with_values((0, slice(0, 2)), [3e38, np.nan]), 0, "not finite"),
    "a row id of -1": (rows_to(-1, 4, 7, 0, 10, 11), 0, "out of range"),
    "the row after the last": (rows_to(1, 4, 7, ITEMS, 10, 11), 1, "out of range"),
    "the largest row id": (rows_to(1, 4, 7, 0, 10, 2**31 - 1), 2, "out of range"),
    "the smallest row id": (rows_to(1, 4, 7, -(2**31), 10, 11), 1, "out of range"),
    "a repeated row": (rows_to(1, 4, 4, 0, 10, 11), 0, "repeated or unsorted"),
    "unsorted rows": (rows_to(1, 4, 7, 0, 11, 10), 2, "repeated or unsorted"),
    "no rows": (with_array("pointer", lambda p: np.array([0, 3, 3, 6])), 1, "without rows"),
}


@pytest.mark.parametrize("name", COSTS_ONE)
def test_one_bad_upload_costs_its_own_client(name):
    build, client, reason = COSTS_ONE[name]
    content = build()
    if name == "no rows":  # the third client then has rows 0 10 11
        left = {0: [1, 4, 7], 2: [0, 10, 11]}
    else:
        all_rows = np.split(arrays_of(content)["rows"], [3, 4])
        left = {j: all_rows[j].tolist() for j in range(3) if j != client}
    decoded = decode(content)
    assert len(decoded.refused) == 1
    assert reason in decoded.refused[0]
    assert decoded.uploads.num_clients == 2
    assert decoded.uploads.nonces.tolist() == [[11, 22, 33][j] for j in left]
    found = np.split(decoded.uploads.rows, decoded.uploads.pointer[1:-1])
    assert [rows.tolist() for rows in found] == list(left.values())
    assert np.isfinite(decoded.uploads.values).all()
    good = arrays_of(content)["values"]
    keep = np.concatenate([np.arange(6)[np.isin(arrays_of(content)["rows"], rows)] for rows in left.values()])
    np.testing.assert_array_equal(decoded.uploads.values, good[keep])


def test_more_rows_than_the_table_has_cost_one_client():
    rows = np.arange(ITEMS + 1, dtype=np.int32)
    content = good_content()
    content["uploads"] = ArrayRecord(
        {
            "nonces": Array(np.array([5, 6], np.uint64)),
            "pointer": Array(np.array([0, ITEMS + 1, ITEMS + 2])),
            "rows": Array(np.append(rows, np.int32(3))),
            "values": Array(np.zeros((ITEMS + 2, K), np.float32)),
        }
    )
    decoded = decode(content)
    assert decoded.refused == ["row ids out of range"]
    assert decoded.uploads.nonces.tolist() == [6]


def test_all_clients_bad_leaves_an_empty_but_sound_reply():
    content = with_values(slice(None), np.nan)()
    decoded = decode(content)
    assert decoded.uploads.num_clients == 0
    assert len(decoded.refused) == 3
    assert decoded.uploads.pointer.tolist() == [0]
    assert decoded.uploads.values.shape == (0, K)


def test_more_clients_than_were_asked_are_refused():
    with pytest.raises(RefusedError, match="3 clients, at most 2 were asked"):
        decode(good_content(), clients=2, cover=COVER)


def test_errors_and_refusals_of_clients_carry_their_reason():
    question = Message(messages.encode_query(ORDER), dst_node_id=2, message_type="train")
    failed = Message(Error(code=3, reason="Traceback\n  File ...\n\nOutOfMemory: no room\n"), reply_to=question)
    for read in (
        lambda reply: messages.decode_uploads(reply, ROUND, CLIENTS, ITEMS, K, COVER),
        messages.decode_description,
        messages.decode_metric_sums,
        lambda reply: messages.decode_catalogue(reply, ITEMS),
    ):
        with pytest.raises(RefusedError, match=r"code 3.*OutOfMemory: no room$"):
            read(failed)
        with pytest.raises(RefusedError, match=r"no reason given"):
            read(Message(Error(code=3), reply_to=question))
        with pytest.raises(RefusedError, match=r"^out of date$"):
            read(answer(messages.encode_refusal("out of date")))
        with pytest.raises(RefusedError):
            read(answer(RecordDict({"refusal": MetricRecord({"reason": 1})})))
        with pytest.raises(RefusedError):
            read(answer(RecordDict()))


def test_a_header_of_a_trillion_rows_allocates_nothing():
    claims = [REFUSED[name][0]() for name in REFUSED if "10^12" in name and "claim" in name]
    assert len(claims) == 3
    replies = [answer(claim) for claim in claims]
    for reply in replies:  # whatever is set up once
        with pytest.raises(RefusedError):
            messages.decode_uploads(reply, ROUND, CLIENTS, ITEMS, K, COVER)
    tracemalloc.start()
    for reply in replies:
        with pytest.raises(RefusedError):
            messages.decode_uploads(reply, ROUND, CLIENTS, ITEMS, K, COVER)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


# ---- other bad messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("clients", True), ("clients", 1.0), ("report-loss", 1), ("phase", 3), ("server-round", "7"), ("restore", [1])],
)
def test_orders_of_wrong_types_are_refused(key, value):
    content = messages.encode_query(ORDER)
    content["order"][key] = value
    with pytest.raises(RefusedError, match=key):
        messages.decode_query(content)


@pytest.mark.parametrize(
    "change", [{"users": -1}, {"num-items": 0}, {"users": 1.5}, {"users": True}, {"data": 1}, {"x": 1}]
)
def test_bad_descriptions_are_refused(change):
    content = messages.encode_description(Description(0, 5, 9, "c", "d", "n"))
    for key, value in change.items():
        content["description"][key] = value
    with pytest.raises(RefusedError, match="description"):
        messages.decode_description(answer(content))


@pytest.mark.parametrize(
    "change",
    [
        {"users": -1}, {"users": 0.5}, {"users": float("nan")}, {"users": float("inf")}, {"users": 10**12}, {"users": [1]},
        {"hits-10": 10**12}, {"extra": 1}, {"ndcg-grid-10": 1 << 62},
    ],
)  # fmt: skip
def test_bad_metric_sums_are_refused(change):
    content = messages.encode_metric_sums({"test": sums_of(5)})
    for key, value in change.items():
        content["test"][key] = value
    with pytest.raises(RefusedError, match="evaluate reply"):
        messages.decode_metric_sums(answer(content))


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"], [1, 2], "ab", [True, False]])
def test_bad_catalogues_are_refused(ids):
    content = RecordDict({"catalogue": ConfigRecord({"item-ids": ids, "report": ""})})
    with pytest.raises(RefusedError, match="item-ids must be 2 strings"):
        messages.decode_catalogue(answer(content), 2)


# ---- fuzz ------------------------------------------------------------------------------------------------------------

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
