"""Histories and titles in the forms that people have them."""

import io

import pytest

from fastpfrec_flwr.catalogue import CatalogueError
from fastpfrec_flwr.recommend import ModelError
from fastpfrec_flwr.recommend.history import read_histories, read_history
from fastpfrec_flwr.recommend.titles import read_titles


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("h.txt", "50\n181\n\n 7 \n", ["50", "181", "7"]),
        ("h.txt", "50,\n181,\n", ["50", "181"]),
        ("h.json", '["50", 181]', ["50", "181"]),
        ("h.json", '{"items": ["a b"]}', ["a b"]),
        ("h.txt", "", []),
        ("h.csv", "user,item,rating\nu,50,5\nu,181,3\nu,50,4\n", ["50", "181"]),
        ("h.txt", "4 50 1\n4 181 1\n", ["50", "181"]),
    ],
)
def test_histories(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert read_history(str(tmp_path / name)) == expected


def test_of_several_users_one_is_chosen(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("user,item\nu,1\nv,2\nu,3\n")
    assert read_history(str(path), "u") == ["1", "3"]
    assert read_histories(path) == {"u": ["1", "3"], "v": ["2"]}
    with pytest.raises(ModelError, match=r"holds 2 users; say whose"):
        read_history(str(path))
    with pytest.raises(ModelError, match="has no user 'w'"):
        read_history(str(path), "w")


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("5\n6\n"))
    assert read_history("-") == ["5", "6"]


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"other": 1}', "must be a list"), ("[1.5]", "must be a list"), ("[1", "no JSON"), ("[" * 100_000, "too deeply")],
)
def test_bad_json_is_refused(tmp_path, text, words):
    (tmp_path / "h.json").write_text(text)
    with pytest.raises(ModelError, match=words):
        read_history(str(tmp_path / "h.json"))
    with pytest.raises(ModelError, match="cannot be read"):
        read_history(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("1|Toy Story (1995)|01-Jan-1995||x\n2|Léon|1\n".encode("latin-1"), {"1": "Toy Story (1995)", "2": "Léon"}),
        (b"item_id:token\tmovie_title:token_seq\trelease_year:token\n1\tToy Story\t1995\n", {"1": "Toy Story"}),
        (b'title,year,item\n"A, B",9,x\n', {"x": "A, B"}),
        (b"1::Toy Story::Animation\n", {"1": "Toy Story"}),
        (b'1\t"Heroes" of old\n2\t"Unclosed\n3\tThird\n', {"1": '"Heroes" of old', "2": '"Unclosed', "3": "Third"}),
        (b'1|"Unclosed|x\n2|Second|x\n', {"1": '"Unclosed', "2": "Second"}),
        (b"1\t" + b"long " * 40_000 + b"\n", {"1": ("long " * 40_000).strip()}),
        ("﻿id,name\n1,Öl\n".encode(), {"1": "Öl"}),
    ],
)
def test_titles(tmp_path, data, expected):
    (tmp_path / "t").write_bytes(data)
    assert read_titles(tmp_path / "t") == expected


@pytest.mark.parametrize("data", [b"", b"one\ntwo\n"])
def test_files_without_titles_are_refused(tmp_path, data):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(CatalogueError, match="give lines with an id and a title"):
        read_titles(tmp_path / "t")


def test_a_quotation_mark_that_is_never_closed_is_named(tmp_path):
    (tmp_path / "t.csv").write_text('1,"Unclosed\n' + "2,Second\n" * 20_000)
    with pytest.raises(CatalogueError, match=r"t\.csv: the titles are no CSV .* not closed"):
        read_titles(tmp_path / "t.csv")
