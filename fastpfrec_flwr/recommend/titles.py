"""Titles of items from the files that data sets bring: MovieLens' `u.item`, RecBole's `.item`, or a table with a header."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fastpfrec_flwr.catalogue import CatalogueError

_TITLES = ("title", "name", "label")
_IDS = ("id", "item", "iid", "isbn", "asin", "itemid", "movieid")


def read_titles(path: Path) -> dict[str, str]:
    """Id -> title.

    Parameters
    ----------
    path : lines of fields apart by tab, `|`, `::` or comma. With a header that names a title (or name), columns go by it; else the
        first is the id and the second the title. UTF-8, or Latin-1 as MovieLens has it.

    Raises
    ------
    CatalogueError if it cannot be read or has one field a line.
    """
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise CatalogueError(
            f"{path}: the titles cannot be read ({error.strerror or error}); look at the path"
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return titles_of(text, str(path))


def titles_of(text: str, where: str) -> dict[str, str]:
    """Id -> title from a file's text, see `read_titles`."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise CatalogueError(f"{where}: holds no titles; give lines with an id and a title")
    separator = next((each for each in ("\t", "|", "::", ",") if each in lines[0]), None)
    if separator is None:
        raise CatalogueError(f"{where}: its first line has one field ({lines[0]!r}); give lines with an id and a title")
    # Only tables with commas quote: elsewhere a quotation mark is a title's own, and quoting would swallow the lines after it.
    rows = _quoted_rows(lines, where) if separator == "," else [line.split(separator) for line in lines]
    # `movie_title:token_seq` has two words before its type; "The Name of the Rose" has more and is no header.
    names = [re.findall(r"[a-z]+", name.split(":")[0].lower()) for name in rows[0]]
    names = [words if len(words) <= 2 else [] for words in names]
    title = next((i for i, words in enumerate(names) if set(words) & set(_TITLES)), None)
    if title is None:
        item, title = 0, 1
    else:
        item = next((i for i, name in enumerate(names) if i != title and set(name) & set(_IDS)), 0)
        rows = rows[1:]
    return {row[item].strip(): row[title].strip() for row in rows if len(row) > max(item, title) and row[item].strip()}


def _quoted_rows(lines: list[str], where: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines))
    except csv.Error as error:
        raise CatalogueError(
            f"{where}: the titles are no CSV ({error}); look for a quotation mark that is not closed, or separate by tabs"
        ) from error
