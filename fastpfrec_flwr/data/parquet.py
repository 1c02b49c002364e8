"""Parquet tables to `Interactions`. Columns are found by their names; rows stand for lines in errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError, bad_line
from fastpfrec_flwr.data.formats import COLUMN_NAMES, match_columns
from fastpfrec_flwr.data.interactions import IdMap, Ids, Interactions, id_problem


def _pyarrow() -> tuple[Any, Any]:
    """Import pyarrow where it is used: it takes longer than a whole call of a client."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

    return pyarrow, pyarrow.parquet


def read_parquet(path: Path, ids: Ids, min_weight: float | None) -> Interactions:
    """Read a parquet file with columns for user, item and, where there are such, weight and timestamp.

    Raises
    ------
    DataError if it is no parquet file, lacks columns, is empty, or holds a missing id or number, naming the row.
    """
    pa, pq = _pyarrow()

    try:
        schema_names = list(pq.read_schema(path).names)
        columns = match_columns(schema_names)
        if columns is None:
            known = ", ".join(sorted(COLUMN_NAMES["user"])[:4]), ", ".join(sorted(COLUMN_NAMES["item"])[:4])
            raise DataError(
                f"{path}: no user and item columns among {', '.join(schema_names)}. "
                f"Name them user and item (known names: {known[0]}, ...; {known[1]}, ...)"
            )
        positions = [columns.user, columns.item, columns.weight, columns.timestamp]
        table = pq.read_table(path, columns=[schema_names[p] for p in positions if p is not None])
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error}). Write it anew") from error
    if table.num_rows == 0:
        raise DataError(f"{path}: the table is empty. Give a file with at least one interaction")

    def column(position: int) -> Any:
        return table.column(schema_names[position]).combine_chunks()

    weights = None if columns.weight is None else _numbers(path, "weight", column(columns.weight))
    if weights is not None and min_weight is None and (weights <= 0).any():
        row = int(np.flatnonzero(weights <= 0)[0])
        remedy = "Remove it, or say with min-weight from which weight on an interaction counts"
        raise bad_line(path, row + 1, f"weight {weights[row]:g} is not above zero", remedy, unit="row")
    return Interactions(
        path,
        _codes(path, column(columns.user), ids.users),
        _codes(path, column(columns.item), ids.items),
        weights,
        None if columns.timestamp is None else _numbers(path, "timestamp", column(columns.timestamp)),
        "parquet",
        table.num_rows,
    )


def _codes(path: Path, column: Any, ids: IdMap) -> NDArray[np.int32]:
    """Convert one column of ids to codes, by way of its distinct values."""
    pa, _ = _pyarrow()
    if column.null_count:
        row = column.is_null().to_pylist().index(True) + 1
        raise bad_line(path, row, "an id is missing (null)", "Give every interaction a user and an item id", unit="row")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
        wrong = ~(np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2**53))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            problem = f"the id {values[row]} is no whole number"
            raise bad_line(path, row + 1, problem, "Store ids as integers or text", unit="row")
        column = pa.array(values.astype(np.int64))
    try:
        encoded = column.cast(pa.string()).dictionary_encode()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: ids are neither numbers nor text ({error}). Store ids as integers or text") from error
    distinct = [value.strip() for value in encoded.dictionary.to_pylist()]
    for code, value in enumerate(distinct):
        wrong_id = id_problem(value) or ("an id holds a line break" if "\n" in value or "\0" in value else None)
        if wrong_id:
            row = encoded.indices.to_pylist().index(code) + 1
            raise bad_line(path, row, wrong_id, "Give every interaction a user and an item id", unit="row")
    codes: NDArray[np.int32] = np.array(ids.encode(distinct), dtype=np.int32)[encoded.indices.to_numpy()]
    return codes


def _numbers(path: Path, what: str, column: Any) -> NDArray[np.float64]:
    """Convert one column to finite floats; dates become their integer value."""
    pa, _ = _pyarrow()
    try:
        if pa.types.is_date(column.type):  # counted in days or milliseconds, by its width
            column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
        elif pa.types.is_temporal(column.type):
            column = column.cast(pa.int64())
        column = column.cast(pa.float64()).fill_null(float("nan"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: column {what} holds no numbers ({error}). Store it as numbers") from error
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        problem = f"{what} {values[row]} is not a finite number"
        raise bad_line(path, row + 1, problem, f"Give a finite {what}", unit="row")
    return values
