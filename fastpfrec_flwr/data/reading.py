"""Text files to `Interactions`, with an error that names the line for everything that is not one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError, bad_line
from fastpfrec_flwr.data.formats import HEADER_REMEDY, TextFormat, detect_text
from fastpfrec_flwr.data.interactions import IdMap, Ids, Interactions, id_problem
from fastpfrec_flwr.data.textfile import Fields, check_readable, field_splitter, find_line, read_blocks, split_block

ID_REMEDY = "Give every interaction a user and an item id, or remove the line"
WEIGHT_REMEDY = "Remove the line, or say with min-weight from which weight on an interaction counts"


def is_parquet(path: Path) -> bool:
    """Tell a parquet file by its first bytes, whatever its name."""
    check_readable(path)
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def read_files(paths: dict[str, Path], ids: Ids, min_weight: float | None) -> dict[str, Interactions]:
    """Read all files of a data set.

    Parameters
    ----------
    paths : role ("all", "train", "validation", "test") -> file; formats may differ from file to file.
    ids : filled with the ids met.
    min_weight : where None, weights of zero and less are errors; else the caller drops what is below.

    Raises
    ------
    DataError naming file and line.
    """
    text = [role for role in paths if not is_parquet(paths[role])]
    formats = dict(zip(text, detect_text([paths[role] for role in text]), strict=True))
    found = {}
    for role, path in paths.items():
        if role not in formats:
            from fastpfrec_flwr.data.parquet import read_parquet  # pyarrow is slow to import

            found[role] = read_parquet(path, ids, min_weight)
        elif formats[role].columns is None:
            found[role] = _read_user_lines(path, formats[role], ids, allow_empty=role in ("validation", "test"))
        else:
            found[role] = _read_columns(path, formats[role], ids, min_weight)
    return found


def _read_columns(path: Path, text_format: TextFormat, ids: Ids, min_weight: float | None) -> Interactions:
    columns = text_format.columns
    assert columns is not None
    split = field_splitter(text_format.separator)
    users, items, weights, times = [], [], [], []
    count, header_left = 0, text_format.header
    for first, lines in read_blocks(path):
        if header_left:
            offset = next((i for i, line in enumerate(lines) if line.strip()), len(lines) - 1)
            header_left = not lines[offset].strip()
            first, lines = first + offset + 1, lines[offset + 1 :]
        rows = split_block(lines, split)
        if not rows:
            continue
        count += len(rows)
        block = (first, lines, split)
        _check_widths(path, columns.width, rows, block)
        fields = list(zip(*rows, strict=True))
        users.append(_encode(path, ids.users, fields[columns.user], block, slice(columns.user, columns.user + 1)))
        items.append(_encode(path, ids.items, fields[columns.item], block, slice(columns.item, columns.item + 1)))
        if columns.weight is not None:
            values = _numbers(path, "weight", fields[columns.weight], block, columns.weight)
            if min_weight is None and (values <= 0).any():
                raise _no_choice(path, block, columns.weight)
            weights.append(values)
        if columns.timestamp is not None:
            times.append(_numbers(path, "timestamp", fields[columns.timestamp], block, columns.timestamp))
    return Interactions(
        path,
        np.concatenate(users),
        np.concatenate(items),
        np.concatenate(weights) if weights else None,
        np.concatenate(times) if times else None,
        text_format.label,
        count + text_format.header,
    )


def _read_user_lines(path: Path, text_format: TextFormat, ids: Ids, allow_empty: bool) -> Interactions:
    """Read `user item item ...`; a user on several lines is the union of them.

    A user without items is refused in a train file, where nothing could be learned for her, and counted elsewhere.
    """
    split = field_splitter(text_format.separator)
    users: list[NDArray[np.int32]] = []
    items: list[NDArray[np.int32]] = []
    count = empty = 0
    for first, lines in read_blocks(path):
        rows = split_block(lines, split)
        # "user,item,item," and the like: a separator at the end of a line is no item.
        rows = [row[:-1] if len(row) > 1 and not row[-1] else row for row in rows]
        count += len(rows)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) - 1
        if not allow_empty and (lengths < 1).any():
            number, row = find_line(first, lines, split, lambda row: not any(row[1:]))
            problem = f"one field only ({row[0]!r}): user {row[0]} has no items"
            raise bad_line(path, number, problem, "Add the user's items, or remove the line")
        empty += int((lengths < 1).sum())
        block = (first, lines, split)
        codes = _encode(path, ids.users, (row[0] for row in rows if len(row) > 1), block, slice(0, 1))
        users.append(np.repeat(codes, lengths[lengths > 0]))
        items.append(_encode(path, ids.items, chain.from_iterable(map(_TAIL, rows)), block, slice(1, None)))
    if not any(map(len, items)):
        raise DataError(f"{path}: no user has an item. Give a file with lines `user item item ...`")
    return Interactions(path, np.concatenate(users), np.concatenate(items), None, None, text_format.label, count, empty)


_TAIL = itemgetter(slice(1, None))
Block = tuple[int, list[str], Callable[[str], Fields]]


def _no_choice(path: Path, block: Block, position: int) -> DataError:
    """Build the error for a weight that no interaction can have."""
    number, row = find_line(*block, lambda row: float(row[position]) <= 0)
    problem = f"weight {row[position]} is not above zero, so it does not say that the user chose the item"
    return bad_line(path, number, problem, WEIGHT_REMEDY)


def _check_widths(path: Path, width: int, rows: list[Fields], block: Block) -> None:
    if set(map(len, rows)) == {width}:
        return
    number, row = find_line(*block, lambda row: len(row) != width)
    remedy = "Give every line the same columns: user item [weight [timestamp]]"
    raise bad_line(path, number, f"{len(row)} field{'s' * (len(row) != 1)} where {width} are expected", remedy)


def _encode(path: Path, ids: IdMap, values: Iterable[str], block: Block, part: slice) -> NDArray[np.int32]:
    """Return the codes of a block's ids, which stand in fields `part`; each new id is looked at once."""
    before = len(ids)
    codes = np.array(ids.encode(values), dtype=np.int32)
    wrong = {value for value in ids.newest(len(ids) - before) if id_problem(value)}
    if wrong:
        number, row = find_line(*block, lambda row: any(value in wrong for value in row[part]))
        value = next(value for value in row[part] if value in wrong)
        raise bad_line(path, number, id_problem(value) or "", ID_REMEDY)
    return codes


def _numbers(path: Path, what: str, values: tuple[str, ...], block: Block, position: int) -> NDArray[np.float64]:
    """Convert a column to finite floats, or say which line prevents it."""
    distinct = set(values)
    try:
        # A rating takes few values: converting each of them once is several times faster.
        table = {value: float(value) for value in distinct}
        numbers = np.array([table[value] for value in values], dtype=np.float64)
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass
    number, row = find_line(*block, lambda row: not _is_finite(row[position]))
    remedy = {
        "weight": f"Give a finite number as weight. If this is a header: {HEADER_REMEDY.lower()}",
        "timestamp": "Give the time as a finite number, for example seconds since 1970",
    }[what]
    raise bad_line(path, number, f"{what} {row[position]!r} is not a finite number", remedy)


def _is_finite(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False
