"""Every format is recognised by itself and read to the same pairs."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.data.formats import detect_text
from fastpfrec_flwr.data.interactions import Ids, sort_ids
from fastpfrec_flwr.data.reading import read_files
from fastpfrec_flwr.data.textfile import read_blocks

PAIRS = [("7", "30"), ("7", "10"), ("2", "30"), ("9", "5")]

COLUMN_FILES = {
    "blanks, two columns": "7 30\n7 10\n2 30\n9 5\n",
    "blanks, many": "7   30\n7 10\n  2 30\n9\t5 \n",
    "blanks, weight": "7 30 1\n7 10 1\n2 30 1\n9 5 1\n",
    "tab, weight, time (u.data)": "7\t30\t3\t881250949\n7\t10\t3\t891717742\n2\t30\t1\t878887116\n9\t5\t2\t880606923\n",
    "double colon (ratings.dat)": "7::30::5::978300760\n7::10::3::978302109\n2::30::3::978301968\n9::5::4::978300275\n",
    "comma": "7,30\n7,10\n2,30\n9,5\n",
    "comma, blanks": "7, 30, 2.5\n7, 10, 1\n2, 30, 1e0\n9, 5, 4\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n7,30,4.0,964982703\n7,10,4.0,964981247\n2,30,0.5,9\n9,5,5.0,1\n",
    "csv, other order": ",item_id,stars,user_id\n0,30,1,7\n1,10,2,7\n2,30,3,2\n3,5,4,9\n",
    "semicolon": "user;item\n7;30\n7;10\n2;30\n9;5\n",
    "quotes": '"user","item"\n"7","30"\n"7","10"\n2,"30"\n9,5\n',
    "inter": (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "7\t30\t3\t8\n7\t10\t3\t8\n2\t30\t1\t9\n9\t5\t2\t9\n"
    ),
    "blanks, header": "user item weight\n7 30 1\n7 10 1\n2 30 1\n9 5 1\n",
}


@pytest.mark.parametrize("content", COLUMN_FILES.values(), ids=COLUMN_FILES)
@pytest.mark.parametrize("variant", ["as is", "windows", "bom", "blank end", "no end", "blank start"])
def test_column_files(content: str, variant: str, write, read) -> None:
    data = {
        "as is": content.encode(),
        "windows": content.replace("\n", "\r\n").encode(),
        "bom": b"\xef\xbb\xbf" + content.encode(),
        "blank end": (content + "\n  \n").encode(),
        "no end": content.rstrip("\n").encode(),
        "blank start": ("\n" + content).encode(),
    }[variant]
    pairs, _ = read(write(data))
    assert pairs == PAIRS


def test_weights_and_times_are_read(write, read) -> None:
    _, found = read(write(COLUMN_FILES["ratings.csv"]))
    np.testing.assert_array_equal(found.weights, [4, 4, 0.5, 5])
    np.testing.assert_array_equal(found.timestamps, [964982703, 964981247, 9, 1])
    assert found.format == "columns by comma, with header"
    assert found.lines == 5


@pytest.mark.parametrize(
    ("first", "second"), [("u1,i1,5", "u2,i1,3"), ("user_1,item_10,5", "user_2,item_10,3"), ("U1,I1,5", "U2,I1,3")]
)
def test_ids_with_a_digit_are_no_header(first: str, second: str, write, read) -> None:
    pairs, found = read(write(f"{first}\n{second}\n"))
    assert pairs == [tuple(line.split(",")[:2]) for line in (first, second)]
    assert found.format == "columns `user item weight` by comma"
    np.testing.assert_array_equal(found.weights, [5, 3])


def test_user_lines_of_ids_with_a_digit(write, read) -> None:
    pairs, _ = read(write("u1 i1 i2 i3\nu2 i2 i4\n"))
    assert pairs == [("u1", "i1"), ("u1", "i2"), ("u1", "i3"), ("u2", "i2"), ("u2", "i4")]


def test_a_column_that_is_not_ours_may_have_a_digit(write, read) -> None:
    assert read(write("user_id,item_id,feature_2\n7,30,1\n7,10,1\n2,30,1\n9,5,1\n"))[0] == PAIRS


def test_recbole_format_is_named(write, read) -> None:
    assert read(write(COLUMN_FILES["inter"]))[1].format == "RecBole .inter"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_user_lines(end: str, write, read) -> None:
    pairs, found = read(write(f"0 5 6 7{end}1 5{end}4 9 6 5 4 3"))
    assert pairs == [("0", "5"), ("0", "6"), ("0", "7"), ("1", "5"), *(("4", item) for item in "96543")]
    assert found.format == "one line a user, by blanks"


def test_user_lines_by_tab_and_blanks(write, read) -> None:
    assert read(write("0\t5 6 7\n1\t5\n"))[0] == [("0", "5"), ("0", "6"), ("0", "7"), ("1", "5")]


def test_user_on_two_lines_is_their_union(write, read) -> None:
    assert read(write("0 1 2 3 4 5 6\n1 2\n0 9 8 7 6 5 4 3\n"))[0][-1] == ("0", "3")


def test_empty_user_in_a_test_file_is_counted(write) -> None:
    ids = Ids()
    paths = {"train": write("0 1 2 3 4\n1 2\n", "train.txt"), "test": write("0 5\n1\n", "test.txt")}
    found = read_files(paths, ids, None)
    assert found["test"].empty_users == 1
    assert len(found["test"].users) == 1


def test_train_decides_what_three_numbers_mean(write) -> None:
    """`0 1 2` is two items beside a train file of user lines, and one item with a weight beside one of columns."""
    ambiguous = write("0 1 2\n1 2 3\n", "test.txt")
    lines = write("0 4 5 6 7\n1 2\n", "lines.txt")
    columns = write("0 4 1\n0 5 1\n1 6 1\n", "columns.txt")
    assert [shape.columns is None for shape in detect_text([lines, ambiguous])] == [True, True]
    assert [shape.columns is None for shape in detect_text([columns, ambiguous])] == [False, False]
    assert detect_text([ambiguous])[0].columns is not None


def test_parquet(tmp_path: Path, read) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "any.name"
    columns = {"userId": [7, 7, 2, 9], "movieId": ["30", "10", "30", "5"], "rating": [1.0, 2, 3, 4], "ts": [4, 3, 2, 1]}
    pq.write_table(pa.table(columns), path)
    pairs, found = read(path)
    assert pairs == PAIRS
    np.testing.assert_array_equal(found.timestamps, [4, 3, 2, 1])
    pq.write_table(
        pa.table({"user": pa.array([7.0, 7, 2, 9]), "item": pa.array(["30", "10", "30", "5"]).dictionary_encode()}),
        path,
    )
    assert read(path)[0] == PAIRS


def test_parquet_dates_are_their_numbers(tmp_path: Path, read) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    for kind in (pa.date32(), pa.date64(), pa.timestamp("ms")):
        days = pa.array([date(1970, 1, 4), date(1970, 1, 3), date(1970, 1, 2), date(1970, 1, 1)], pa.date32()).cast(
            kind
        )
        pq.write_table(pa.table({"user": [7, 7, 2, 9], "item": [30, 10, 30, 5], "time": days}), path)
        pairs, found = read(path)
        assert pairs == PAIRS
        # Parquet keeps no date64: it comes back as days.
        day = 86_400_000 if pa.types.is_timestamp(kind) else 1
        np.testing.assert_array_equal(found.timestamps, [3 * day, 2 * day, day, 0])


ID = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters='",;:\t|'), min_size=1, max_size=8
).filter(
    lambda text: (
        text.lower() not in {"nan", "null", "none", "<na>"} and text[0] != "-" and not text.startswith("\ufeff")
    )
)
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(
    pairs=st.lists(st.tuples(ID, ID), min_size=1, max_size=30),
    separator=st.sampled_from(["\t", ",", " ", "::"]),
    extra=st.integers(0, 2),
    end=st.sampled_from(["\n", "\r\n"]),
    header=st.booleans(),
)
def test_any_ids_round_trip(tmp_path, read, pairs, separator, extra, end, header) -> None:
    names = ["user_id", "item_id", "rating", "timestamp"][: 2 + extra]
    rows = [separator.join([user, item, "2.5", "12"][: 2 + extra]) for user, item in pairs]
    if not header:
        rows = [*rows, rows[0]]  # a user on two lines: certainly columns
    path = tmp_path / "round.txt"
    path.write_bytes((end.join([separator.join(names)] * header + rows) + end).encode())
    got, found = read(path)
    assert got == (pairs if header else [*pairs, pairs[0]])
    assert (found.weights is None) == (extra < 1)
    assert (found.timestamps is None) == (extra < 2)


@RELAXED
@given(
    st.dictionaries(
        st.integers(0, 999), st.lists(st.integers(0, 99_999), min_size=1, max_size=9), min_size=1, max_size=20
    )
)
def test_user_lines_round_trip(tmp_path, read, rows) -> None:
    rows[1000] = [1, 2, 3, 4, 5]  # more items than columns could be
    path = tmp_path / "round.txt"
    path.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in rows.items()))
    assert read(path)[0] == [(str(user), str(item)) for user, items in rows.items() for item in items]


def test_blocks_number_their_lines(write) -> None:
    path = write("".join(f"{i} {i}\n" for i in range(1000)))
    blocks = list(read_blocks(path, block_bytes=100))
    assert len(blocks) > 10
    for first, lines in blocks:
        assert [line.split()[0] for line in lines] == [str(first - 1 + i) for i in range(len(lines))]


def test_ids_sort_by_number_or_by_text() -> None:
    assert [["10", "9", "007", "7"][i] for i in sort_ids(["10", "9", "007", "7"])] == ["007", "7", "9", "10"]
    assert [["b10", "b9", "7"][i] for i in sort_ids(["b10", "b9", "7"])] == ["7", "b10", "b9"]
