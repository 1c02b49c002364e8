"""Bad input: the message names file, line, value, rule and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastpfrec_flwr.data import DataError, SplitSettings, open_shard, prepare

TEXT = {
    "empty": ("", r"data\.txt: the file is empty\. Give"),
    "blank": ("\n \n", r"data\.txt: nothing but blank lines\. Give"),
    "header only": ("user,item\n", r"data\.txt: a header and no interactions\. Give"),
    "one column": ("12\n13\n", r"data\.txt, line 1: one column only \('12'\)\. .*needs a user and an item"),
    "wrong separator": ("1|2\n1|3\n", r"line 1: one column only \('1\|2'\)"),
    "weight": ("1 2 1\n1 3 many\n", r"data\.txt, line 2: weight 'many' is not a finite number\. Give a finite number"),
    "weight NaN": ("1 2 1\n1 3 1\n\n1 4 nan\n", r"data\.txt, line 4: weight 'nan' is not a finite number"),
    "weight infinite": ("1 2 1\n1 3 inf\n", r"line 2: weight 'inf' is not a finite number"),
    "weight zero": ("1 2 1\n1 3 0\n", r"line 2: weight 0 is not above zero.*min-weight"),
    "weight negative": ("1 2 1\n1 3 -2\n", r"line 2: weight -2 is not above zero.*min-weight"),
    "weight empty": ("1,2,1\n1,3,\n", r"line 2: weight '' is not a finite number"),
    "id NaN": ("1 2 1\n1 NaN 1\n", r"data\.txt, line 2: an id is missing \(found 'NaN'\)\. Give every interaction"),
    "id empty": ("1,2,1\n1,,1\n", r"line 2: an id is missing \(found ''\)"),
    "id negative": ("1 2 1\n1 -1 1\n", r"line 2: the id -1 is negative"),
    "time": (
        "user,item,timestamp\n1,2,2020-01-01\n",
        r"line 2: timestamp '2020-01-01' is not a finite number\. .*1970",
    ),
    "field missing": ("1 2 1\n1 3 1\n1 4\n1 5 1\n", r"data\.txt, line 3: 2 fields where 3 are expected\. Give"),
    "one field": ("1 2 1\n1 3 1\n1\n1 5 1\n", r"line 3: 1 field where 3 are expected"),
    "fields too many": ("1 2\n1 3\n1 4 7 8 9 6 5\n1 5\n", r"line 3: 7 fields where 2 are expected"),
    "short under header": ("user,item,rating\n1,2,3\n4,5\n", r"line 3: 2 fields where 3 are expected"),
    "unknown header": ("source target\n1 2\n1 3\n", r"line 1: this looks like a header with unknown column names"),
    "typed header": ("session_id:token\titem_id:token\n1\t2\n", r"line 1: the header .* has no user_id and item_id"),
    "header as weight": ("a1 b1 w\na1 b2 1\n", r"line 1: weight 'w' .*header"),
    "user without items": ("0 1 2 3 4\n1\n2 3\n", r"line 2: one field only \('1'\): user 1 has no items\. Add"),
    "id in user lines": ("0 1 2 3 4\n1 3 nan\n2 3\n", r"line 2: an id is missing"),
    "not utf-8": (b"1 2 1\n1 \xe9 1\n", r"data\.txt, line 2: byte 0xe9 is not UTF-8 text\. Save the file as UTF-8"),
    "utf-16": ("1 2 1\n".encode("utf-16"), r"line 1: byte 0xff is not UTF-8 text"),
    "nul": (b"1 2\n1 \x00\n", r"line 2: a NUL byte"),
}


@pytest.mark.parametrize(("content", "message"), TEXT.values(), ids=TEXT)
def test_text(content: str | bytes, message: str, write, read) -> None:
    with pytest.raises(DataError, match=message):
        read(write(content))


def test_wrong_line_far_into_a_long_file(write, read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastpfrec_flwr.data.textfile.read_blocks.__defaults__", (200,))
    lines = [f"{i // 3} {i} 1" for i in range(2000)]
    lines[1499] = "499 nan 1"
    with pytest.raises(DataError, match=r"line 1500: an id is missing"):
        read(write("\n".join(lines)))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'.*nowhere': no named data set \(ml-100k, .*synthetic\) and no file or directory"
    ):
        prepare(str(tmp_path / "nowhere"), None, SplitSettings())
    with pytest.raises(DataError, match=r"Did you mean gowalla-1m\?"):
        prepare("gowala-1m", None, SplitSettings())
    with pytest.raises(DataError, match=r"data-set is empty\. Give one of ml-100k, "):
        prepare("", None, SplitSettings())
    with pytest.raises(DataError, match=r"data-dir .*nowhere: no such directory"):
        prepare("ml-100k", str(tmp_path / "nowhere"), SplitSettings())


def test_directories_that_hold_no_data_set(tmp_path: Path, write) -> None:
    with pytest.raises(DataError, match=r"no file of interactions recognised \(found nothing\)"):
        prepare(str(tmp_path), None, SplitSettings())
    write("1 2\n", "test.txt")
    with pytest.raises(DataError, match=r"test\.txt without a train file"):
        prepare(str(tmp_path), None, SplitSettings())
    write("1 2\n", "train.txt")
    write("1,2\n", "train.csv")
    with pytest.raises(DataError, match=r"train\.csv and train\.txt could both be the train file"):
        prepare(str(tmp_path), None, SplitSettings())


def test_several_files_without_known_names(tmp_path: Path, write) -> None:
    write("1 2\n", "a.txt")
    write("1 2\n", "b.txt")
    with pytest.raises(DataError, match=r"recognised \(found a\.txt, b\.txt\)"):
        prepare(str(tmp_path), None, SplitSettings())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "b": [2]}, r"no user and item columns among a, b\. Name them"),
        ({"user": [1, None], "item": ["a", "b"]}, r"row 2: an id is missing \(null\)"),
        ({"user": [1.0, float("nan")], "item": ["a", "b"]}, r"row 2: the id nan is no whole number"),
        ({"user": [1, 2], "item": ["a", "nan"]}, r"row 2: an id is missing \(found 'nan'\)"),
        ({"user": [1, -2], "item": ["a", "b"]}, r"row 2: the id -2 is negative"),
        ({"user": [1, 2], "item": ["a", "b"], "rating": [1.0, None]}, r"row 2: weight nan is not a finite number"),
        ({"user": [1, 2], "item": ["a", "b"], "rating": [0.0, 1.0]}, r"row 1: weight 0 is not above zero"),
        ({"user": [1, 2], "item": ["a", "b"], "rating": ["x", "y"]}, r"column weight holds no numbers"),
        ({"user": [1, 2], "item": ["a", "b"], "time": [[1], [2]]}, r"column timestamp holds no numbers"),
        ({"user": [[1], [2]], "item": ["a", "b"]}, r"ids are neither numbers nor text"),
        ({"user": [b"\xff", b"a"], "item": ["a", "b"]}, r"ids are neither numbers nor text"),
        ({"user": [], "item": []}, r"the table is empty"),
    ],
)
def test_parquet(columns: dict[str, list[object]], message: str, tmp_path: Path, read) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "data.parquet")


def test_broken_parquet(write, read) -> None:
    with pytest.raises(DataError, match=r"not a readable parquet file"):
        read(write(b"PAR1 and nothing more", "data.parquet"))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"method": "temporal"}, r"split method must be one of auto, released, chronological, random, got 'temporal'"),
        ({"validation_fraction": -0.1}, r"validation-fraction must be a number >= 0 and < 1, got -0.1"),
        ({"test_fraction": 1}, r"test-fraction must be a number >= 0 and < 1, got 1"),
        ({"test_fraction": True}, r"test-fraction must be a number"),
        ({"test_fraction": float("nan")}, r"test-fraction must be"),
        ({"min_weight": float("inf")}, r"min-weight must be a finite number"),
    ],
)
def test_settings(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SplitSettings(**keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"method": "released"}, r"data\.txt: split method released needs a test file"),
        ({"method": "chronological"}, r"data\.txt: split method chronological needs timestamps"),
        ({"min_weight": 2}, r"data\.txt: min-weight is set but the file has no weights"),
    ],
)
def test_settings_that_the_data_contradict(keywords: dict[str, object], message: str, write) -> None:
    with pytest.raises(DataError, match=message):
        prepare(str(write("1 2\n1 3\n2 3\n")), None, SplitSettings(**keywords))  # type: ignore[arg-type]


def test_nothing_left(write) -> None:
    with pytest.raises(DataError, match=r"no train pair is left\. Lower min-weight"):
        prepare(str(write("1 2 1\n1 3 2\n")), None, SplitSettings(min_weight=9))


def test_shard_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"partition-id must be >= 0 and < num-partitions, got 2 of 2"):
        open_shard(tmp_path, 2, 2)
    with pytest.raises(DataError, match=r"no prepared data set .*Remove the directory"):
        open_shard(tmp_path, 0, 2)
