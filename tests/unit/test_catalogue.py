"""The catalogue: rows that never move, a hash that says which, and files that cannot be changed unnoticed."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr.catalogue import Catalogue, CatalogueError, label

IDS = st.lists(st.text(min_size=1, max_size=8).filter(lambda t: "\n" not in t and t[0] != "~"), min_size=1, unique=True)


def test_hash_by_hand():
    catalogue = Catalogue(("b", "a"), reserved=1)
    assert catalogue.row_names == ["b", "a", "~reserved-2"]
    assert catalogue.hash == hashlib.sha256(b"b\na\n~reserved-2").hexdigest()[:16]
    assert (catalogue.num_items, catalogue.num_rows, catalogue.row("a"), catalogue.row("c")) == (2, 3, 1, None)


def test_known_items_are_mapped_and_the_rest_counted():
    catalogue = Catalogue(("x", "y", "z"))
    assert catalogue.rows_of(["z", "new", "x", "z", "newer", "new"]) == ([2, 0], 2)
    assert catalogue.rows_of([]) == ([], 0)


def test_new_items_take_reserved_rows_and_no_row_moves():
    first = Catalogue(("x", "y"), reserved=3, titles={"x": "Ex"}, name="shop")
    second = first.extended(["n", "y", "m"], {"n": "New"})
    assert second.ids == ("x", "y", "n", "m")
    assert (second.num_rows, second.reserved, second.version) == (first.num_rows, 1, 2)
    assert second.titles == {"x": "Ex", "n": "New"}
    assert second.hash != first.hash
    with pytest.raises(CatalogueError, match=r"2 new items need a row and 1 rows are reserved; reserve 1 more"):
        second.extended(["p", "q"])
    assert second.extended(["p", "q"], more=1).num_rows == 6


@given(ids=IDS, reserved=st.integers(0, 3), version=st.integers(1, 9), data=st.data())
def test_file_and_row_names_give_back_what_went_in(tmp_path_factory, ids, reserved, version, data):
    titles = {each: data.draw(st.text(min_size=1, max_size=5)) for each in ids if data.draw(st.booleans())}
    catalogue = Catalogue(tuple(ids), reserved, version, titles, "n")
    path = tmp_path_factory.mktemp("c") / "catalogue.json"
    catalogue.save(path)
    assert Catalogue.load(path) == catalogue == Catalogue.from_json(catalogue.to_json(), "here")
    again = Catalogue.of_rows(catalogue.row_names)
    assert (again.ids, again.reserved, again.hash) == (catalogue.ids, reserved, catalogue.hash)


def test_titles_and_version_do_not_change_the_hash():
    assert Catalogue(("a",), titles={"a": "A"}, version=5).hash == Catalogue(("a",)).hash


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((), "at least one item"),
        (("a", "b", "a"), "'a' stands twice"),
        (("a", "~reserved-1"), "cannot be an item's id"),
        (("a\nb",), "cannot be an item's id"),
        (("",), "cannot be an item's id"),
    ],
)
def test_bad_ids_are_refused(ids, words):
    with pytest.raises(CatalogueError, match=words):
        Catalogue(ids)


def test_reserved_names_between_items_are_refused():
    with pytest.raises(CatalogueError, match="between the items"):
        Catalogue.of_rows(["a", "~reserved-1", "b"])


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "c.json"
    with pytest.raises(CatalogueError, match=r"cannot be read .*copy the server's"):
        Catalogue.load(path)
    Catalogue(("a", "b")).save(path)
    good = json.loads(path.read_text())
    for change, words in (
        ({"items": [["b", ""], ["a", ""]]}, "changed by hand"),
        ({"format": "other"}, "is no catalogue"),
        ({"format-version": 2}, r"format 2, this app reads 1; upgrade"),
        ({"items": [["a"]]}, "no readable catalogue"),
        ({"reserved": -1}, "must be >= 0"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(CatalogueError, match=words):
            Catalogue.load(path)
    path.write_text("[1]")
    with pytest.raises(CatalogueError, match="no readable catalogue"):
        Catalogue.load(path)


def test_labels():
    assert label(3, "ab") == "catalogue version 3 (hash ab)"
    assert label(0, "ab") == "the catalogue of a data set (hash ab)"
