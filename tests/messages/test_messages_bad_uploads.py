"""Every bad upload that we could think of costs its own client, with a reason."""

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from bad_contents import (
    drop_array,
    header,
    npz,
    renamed_array,
    with_array,
    with_figure,
    with_raw,
    with_record,
    with_values,
    without,
    without_figure,
)
from contents import BODY, CLIENTS, COVER, ITEMS, ORDER, ROUND, K, answer, arrays_of, decode, good_content, npy
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import RefusedError

SHAPES = {"nonces": (3,), "pointer": (4,), "rows": (6,), "values": (6, K)}
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
    "a structured dtype": (with_raw("values", data=npy(header([("a", "<f4")]), BODY)), "header cannot be read"),
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
    "negative sizes": (with_raw("values", data=npy(header(shape=(-6, -K)), BODY), shape=(-6, -K)), "header cannot be read"),
    "sizes of bool": (with_raw("rows", data=npy(header("<i4", (True,)), b"\0" * 4), shape=(1,)), "header cannot be read"),
    "a shape that is a list": (with_raw("values", data=npy(header(shape=[6, K]), BODY)), "header cannot be read"),
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


def test_where_the_number_of_rows_is_fixed_others_are_refused():
    """The good rows are 1 4 7 | 0 | 10 11; two each are wanted."""
    decoded = messages.decode_uploads(answer(good_content()), ROUND, CLIENTS, ITEMS, K, COVER, rows_each=2)
    assert decoded.uploads.nonces.tolist() == [33]
    assert decoded.refused == ["more or fewer rows than every upload has"] * 2


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
