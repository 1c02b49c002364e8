"""Histories as people keep them: a list of ids, or the very file of interactions that a device trains on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fastpfrec_flwr.recommend.errors import ModelError


def read_history(source: str, user: str = "") -> list[str]:
    """Ids of the items that somebody has chosen.

    Parameters
    ----------
    source : a path, or `-` for standard input. JSON (a list of ids, or an object with such a list under `items`), text with one
        id a line, or interactions in any format that a data set may have.
    user : whose, where interactions are of several users.

    Raises
    ------
    ModelError, DataError if it cannot be read or is of several users.
    """
    if source == "-":
        return ids_of_text(sys.stdin.read(), "standard input")
    path = Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig") if path.suffix not in (".parquet", ".pq") else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: the history cannot be read ({error}); give a file of item ids, one a line"
        ) from error
    if text is not None and (path.suffix == ".json" or text.lstrip()[:1] in ("[", "{") or _is_list(text)):
        return ids_of_text(text, str(path))
    return _of_interactions(path, user)


def _is_list(text: str) -> bool:
    """One field on every line: a list of ids, no interactions."""
    return all(len(line.replace(",", " ").replace(";", " ").split()) <= 1 for line in text.splitlines())


def ids_of_text(text: str, where: str) -> list[str]:
    """Ids from JSON, or one a line.

    Raises
    ------
    ModelError if it is JSON of another shape.
    """
    if text.lstrip()[:1] not in ("[", "{"):
        return [line.strip().rstrip(",;") for line in text.splitlines() if line.strip().rstrip(",;")]
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise ModelError(f"{where}: is no JSON ({error}); give a list of item ids") from error
    except RecursionError:
        raise ModelError(f"{where}: its JSON is nested too deeply; give a list of item ids") from None
    if isinstance(found, dict):
        found = found.get("items")
    if not isinstance(found, list) or not all(isinstance(each, str | int) for each in found):
        raise ModelError(f'{where}: must be a list of item ids, or {{"items": [...]}}; got {type(found).__name__}')
    return [str(each) for each in found]


def read_histories(path: Path) -> dict[str, list[str]]:
    """User id -> ids of the items chosen, from a file of interactions in any format that a data set may have.

    Raises
    ------
    DataError naming the line that cannot be read.
    """
    from fastpfrec_flwr.data.interactions import Ids
    from fastpfrec_flwr.data.reading import read_files

    ids = Ids()
    found = read_files({"all": path}, ids, None)["all"]
    items = ids.items.ids()
    histories: dict[str, dict[str, None]] = {user: {} for user in ids.users.ids()}
    of_code = list(histories.values())
    for user, item in zip(found.users.tolist(), found.items.tolist(), strict=True):
        of_code[user][items[item]] = None
    return {user: list(chosen) for user, chosen in histories.items()}


def _of_interactions(path: Path, user: str) -> list[str]:
    histories = read_histories(path)
    if user:
        if user not in histories:
            raise ModelError(f"{path}: has no user {user!r}; look at the file's user ids")
        return histories[user]
    if len(histories) > 1:
        raise ModelError(f"{path}: holds {len(histories)} users; say whose history is meant with --user")
    return next(iter(histories.values()), [])
