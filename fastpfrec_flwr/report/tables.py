"""What a table is, whatever format it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Value = float | int | str | None


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes
    ----------
    text : as people read it. value : what it is sorted by. parts : what the CSV file holds for it, by column name; empty where
        the text will do. strong : whether it is the best of its kind. note : what a reader may want to know besides.
    """

    text: str
    value: Value = None
    parts: Mapping[str, Value] = field(default_factory=dict)
    strong: bool = False
    note: str = ""


@dataclass(frozen=True)
class Column:
    """One column; numbers stand at the right. `note` explains the heading."""

    title: str
    align: Literal["left", "right"] = "right"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    key : its file name. caption : what it shows and by which protocol. notes : below it. csv_only : too long for a page.
    """

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    csv_only: bool = False

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.key}: every row must have {len(self.columns)} cells")


def words(text: str, name: str, note: str = "") -> Cell:
    """A cell of text; `name` is its CSV column."""
    return Cell(text, text, {name: text}, note=note)


def number(text: str, value: float | None, name: str, note: str = "", strong: bool = False) -> Cell:
    """A cell of one number; `name` is its CSV column."""
    return Cell(text, value, {name: value}, strong, note)
