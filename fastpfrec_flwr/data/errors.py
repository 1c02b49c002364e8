"""The one error of this room: input that cannot be used, said so that its owner can mend it."""

from __future__ import annotations

from pathlib import Path

from fastpfrec_flwr.foreseen import Foreseen


class DataError(Foreseen, ValueError):
    """Data that cannot be used. The message names file, line, value, the rule, and the remedy."""


def bad_line(file: Path | str, line: int, problem: str, remedy: str, unit: str = "line") -> DataError:
    """Build the error for one line of one file.

    Parameters
    ----------
    file : the file as the user knows it.
    line : 1-based.
    problem : what was found, with the offending value.
    remedy : what to do about it.
    unit : "line" for text, "row" for tables without lines.
    """
    return DataError(f"{file}, {unit} {line}: {problem}. {remedy}")
