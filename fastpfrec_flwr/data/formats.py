"""What kind of file is this? Decided on the whole file, and on all files of a data set together.

Two layouts of text: **columns** (`user item [weight [timestamp]]`, one pair a line) and **user lines** (`user item item
...`, one user a line, as LightGCN and NGCF publish them). With a header the names decide. Without one, three numbers on
a line could be either, so the rule looks at all lines:

1. every line has 2, 3 or 4 fields, the same number on each: columns, unless no user stands on two lines here and
   another file of the same data set (the train file first) is certainly made of user lines;
2. most lines have 2, 3 or 4 fields and users recur on several lines: columns, and the other lines are errors;
3. else: user lines.

Case 1 misreads user lines only if every user of every file has the same one, two or three items.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastpfrec_flwr.data.errors import DataError, bad_line
from fastpfrec_flwr.data.textfile import PAIRS_REMEDY, Fields, field_splitter, guess_separator, read_blocks, split_block

Layout = Literal["columns", "user lines"]

_THINGS = {
    "item",
    "movie",
    "product",
    "book",
    "business",
    "location",
    "track",
    "song",
    "artist",
    "news",
    "video",
    "poi",
}
COLUMN_NAMES: dict[str, frozenset[str]] = {
    "user": frozenset({"user", "userid", "uid", "u", "username", "reviewerid", "customerid", "visitorid"}),
    "item": frozenset({"iid", "i", "asin", "parentasin", "isbn"} | _THINGS | {thing + "id" for thing in _THINGS}),
    "weight": frozenset({"weight", "rating", "ratings", "score", "value", "count", "stars", "overall", "label"}),
    "timestamp": frozenset({"timestamp", "time", "ts", "unixreviewtime", "unixtime"}),
}
COUNTED_FIELDS = 6  # a line with more fields than columns can have is counted as one of six
_TYPED = re.compile(r"^(.+):(token|float|token_seq|float_seq)$")
HEADER_REMEDY = "Name the columns user and item (and weight, timestamp, where there are such) in the first line"


@dataclass(frozen=True)
class Columns:
    """Position of each column; `width` fields make a line."""

    user: int
    item: int
    weight: int | None
    timestamp: int | None
    width: int


@dataclass(frozen=True)
class TextFormat:
    """How to read one text file. `columns` is None for user lines."""

    separator: str | None
    header: bool
    columns: Columns | None
    label: str


@dataclass(frozen=True)
class _Survey:
    path: Path
    separator: str | None
    first: tuple[int, Fields]
    header: Columns | None
    typed: bool
    counts: Counter[int]
    users_recur: bool

    def verdict(self) -> Layout | None:
        """Return the layout of a file without a header, or None where it could be either."""
        width, frequency = self.counts.most_common(1)[0]
        pairs_like = 2 <= width <= 4
        if pairs_like and self.users_recur and 2 * frequency >= self.counts.total():
            return "columns"
        if pairs_like and len(self.counts) == 1:
            return None
        return "user lines"


def match_columns(names: list[str]) -> Columns | None:
    """Find the columns of a header by their names; None if there is no user or no item among them.

    A name with a digit in it is none: `u1,i1` is a first interaction.
    """
    bare = [match[1] if (match := _TYPED.match(name)) else name for name in names]
    plain = ["" if re.search(r"\d", name) else re.sub(r"[^a-z]", "", name.lower()) for name in bare]
    found = {
        role: next((position for position, name in enumerate(plain) if name in known), None)
        for role, known in COLUMN_NAMES.items()
    }
    if found["user"] is None or found["item"] is None:
        return None
    return Columns(found["user"], found["item"], found["weight"], found["timestamp"], len(names))


def _survey(path: Path) -> _Survey:
    """Read a file once and count; nothing is kept of it."""
    counts: Counter[int] = Counter()
    first: tuple[int, Fields] | None = None
    header, typed, separator = None, False, None
    seen: set[str] = set()
    recur = False
    for number, lines in read_blocks(path):
        if first is None:
            offset = next((i for i, line in enumerate(lines) if line.strip()), None)
            if offset is None:
                continue
            separator = guess_separator(lines[offset])
            first = (number + offset, field_splitter(separator)(lines[offset]))
            split = field_splitter(separator, COUNTED_FIELDS - 1)
            header = match_columns(first[1])
            typed = all(_TYPED.match(name) for name in first[1])
            if typed and header is None:
                found = ", ".join(first[1])
                raise bad_line(path, first[0], f"the header ({found}) has no user_id and item_id", HEADER_REMEDY)
            if header is not None:
                lines = lines[offset + 1 :]
            else:
                _refuse_unknown_header(path, first, split_block(lines[offset + 1 : offset + 50], split))
        rows = split_block(lines, split)
        counts.update(map(len, rows))
        if not recur:
            users = [row[0] for row in rows]
            before = len(seen)
            seen.update(users)
            recur = len(seen) - before < len(users)
    if first is None:
        raise DataError(f"{path}: nothing but blank lines. {PAIRS_REMEDY}")
    if not counts:
        raise DataError(f"{path}: a header and no interactions. Give a file with at least one interaction")
    return _Survey(path, separator, first, header, typed, counts, recur)


def _refuse_unknown_header(path: Path, first: tuple[int, Fields], rest: list[Fields]) -> None:
    """Two words over two columns of numbers would else be read as one more user and item."""
    words = len(first[1]) >= 2 and not any(re.search(r"\d", name) for name in first[1])
    if words and rest and all(len(row) >= 2 and row[0].isdigit() and row[1].isdigit() for row in rest):
        names = ", ".join(first[1])
        raise bad_line(path, first[0], f"this looks like a header with unknown column names ({names})", HEADER_REMEDY)


def detect_text(paths: list[Path]) -> list[TextFormat]:
    """Decide how to read the text files of one data set.

    Parameters
    ----------
    paths : the train file (or the only file) first.

    Raises
    ------
    DataError for an empty file, one column, a header without user and item.
    """
    surveys = [_survey(path) for path in paths]
    verdicts = [survey.verdict() for survey in surveys if survey.header is None]
    fallback: Layout = next((verdict for verdict in verdicts if verdict is not None), "columns")
    return [_format(survey, fallback) for survey in surveys]


def _format(survey: _Survey, fallback: Layout) -> TextFormat:
    name = {None: "blanks", "\t": "tab", ",": "comma", ";": "semicolon", "::": "::"}[survey.separator]
    number, fields = survey.first
    if set(survey.counts) == {1}:
        value = fields[0] if len(fields[0]) <= 60 else fields[0][:57] + "..."
        raise bad_line(
            survey.path,
            number,
            f"one column only ({value!r})",
            "An interaction needs a user and an item, parted by blanks, a tab, a comma or ::",
        )
    if survey.header is not None:
        label = "RecBole .inter" if survey.typed else f"columns by {name}, with header"
        return TextFormat(survey.separator, True, survey.header, label)
    if (survey.verdict() or fallback) == "user lines":
        return TextFormat(survey.separator, False, None, f"one line a user, by {name}")
    width = next(width for width, _ in survey.counts.most_common() if 2 <= width <= 4)
    columns = Columns(0, 1, 2 if width > 2 else None, 3 if width > 3 else None, width)
    roles = " ".join(["user", "item", "weight", "timestamp"][:width])
    return TextFormat(survey.separator, False, columns, f"columns `{roles}` by {name}")
