"""Lines of a text file, in blocks, with their numbers. Byte-order marks, Windows line ends and blank lines are fine."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

from fastpfrec_flwr.data.errors import DataError, bad_line

BLOCK_BYTES = 1 << 20

PAIRS_REMEDY = "Give a file with one interaction per line: user item [weight [timestamp]]"

Fields = list[str]
Row = tuple[int, Fields]


def check_readable(path: Path) -> None:
    """Raise `DataError` unless `path` is a file with something in it that may be read."""
    if not path.exists():
        raise DataError(f"{path}: no such file. Check data-set and data-dir; paths must be absolute for `flwr run`")
    if not path.is_file():
        raise DataError(f"{path}: not a file. Give a file of interactions, or a directory that holds one")
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty. {PAIRS_REMEDY}")
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the permissions of the file") from error


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, lines without their ends) block by block, so that size does not matter.

    Raises
    ------
    DataError if the file cannot be read or is not UTF-8 text, naming the line.
    """
    check_readable(path)
    number = 1
    with path.open("rb") as file:
        while block := file.read(block_bytes):
            block += file.readline()
            if number == 1:
                block = block.removeprefix(b"\xef\xbb\xbf")
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError as error:
                line = number + block.count(b"\n", 0, error.start)
                raise bad_line(
                    path, line, f"byte 0x{block[error.start]:02x} is not UTF-8 text", "Save the file as UTF-8"
                ) from error
            if "\0" in text:
                line = number + text.count("\n", 0, text.index("\0"))
                raise bad_line(path, line, "a NUL byte, so this is no UTF-8 text", "Save the file as UTF-8")
            # A lone carriage return ends a line too. splitlines() would split at more than that, inside of ids.
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            if lines[-1] == "":
                lines.pop()
            yield number, lines
            number += len(lines)


def guess_separator(line: str) -> str | None:
    """Return the separator of a line: `::`, tab, comma or semicolon; None means any run of blanks."""
    for separator in ("::", "\t", ",", ";"):
        if separator in line:
            # "7<tab>1 2 3": digits parted by both tabs and spaces are a user and a list of items.
            mixed = separator == "\t" and " " in line and all(part.isdigit() for part in line.split())
            return None if mixed else separator
    return None


def field_splitter(separator: str | None, limit: int = -1) -> Callable[[str], Fields]:
    """Return the function that parts a line into its fields, without blanks around them; quotes as in CSV.

    Parameters
    ----------
    limit : at most so many cuts, the rest of the line stays in the last field; for those who only count.
    """
    if separator is None:
        return str.split if limit < 0 else lambda line: line.split(None, limit)
    if separator == "::":
        return lambda line: [field.strip() for field in line.split("::")]

    def split(line: str) -> Fields:
        if '"' in line:
            # Not strict: a stray quote inside a tab-separated title is no reason to refuse the file.
            return [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
        # Most files have no blanks to strip, and this is where the time of reading goes.
        fields = line.split(separator, limit)
        return [field.strip() for field in fields] if " " in line else fields

    return split


def split_block(lines: list[str], split: Callable[[str], Fields]) -> list[Fields]:
    """Return the fields of every line that is not blank."""
    return [split(line) for line in lines if line and not line.isspace()]


def find_line(first: int, lines: list[str], split: Callable[[str], Fields], wrong: Callable[[Fields], bool]) -> Row:
    """Return number and fields of the first line that `wrong` holds for; to be called when there is one."""
    for number, line in enumerate(lines, start=first):
        if line and not line.isspace() and wrong(fields := split(line)):
            return number, fields
    raise AssertionError("find_line was called although no line is wrong")
