"""What a report expects where in a run's files; entries that are something else are named and left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A shape is a type (`str`, or `float` for a finite number or null), `[shape]` for a list, or an object of the shapes of its
# keys, "*" standing for those that are not named. Keys of no shape may hold anything.
_FIGURES = {"*": float}
CONFIG: Mapping[str, Any] = {"config": {}, "versions": {}, "data": {"report": {}}, "model": str, "source": str}
SUMMARY: Mapping[str, Any] = {
    "data_set": str,
    "protocol": str,
    "rounds": float,
    "test": _FIGURES,
    "validation": _FIGURES,
    "seconds": _FIGURES,
    "bytes": _FIGURES,
    "nodes": _FIGURES,
    "clients": {"reasons": {}, "skip_reasons": {}, "*": float},
    "attack": {
        **dict.fromkeys(("attackers", "honest", "bad_nodes", "good_nodes"), _FIGURES),
        **dict.fromkeys(("damage", "honest_ndcg", "exposure"), float),
    },
    "privacy": {"lines": [{}]},
}
RECORD: Mapping[str, Any] = dict.fromkeys(("variant", "data_set", "key", "status", "error", "finished_at"), str)
LINE: Mapping[str, Any] = {"phase": str, "round": float, "loss": float, "validation": _FIGURES}
# What the files themselves leave open.
_MAY_BE_NULL = {"privacy", "attack", "error", "finished_at", "model"}


def fitting(values: Mapping[str, Any], shape: Mapping[str, Any], where: str, notices: list[str]) -> dict[str, Any]:
    """The entries that are as a shape wants them; the others are told with their place, what they must be, and what they are.

    Parameters
    ----------
    where : the file, with the line or the keys that lead here.
    """
    kept = {}
    for key, value in values.items():
        wanted = shape.get(key, shape.get("*"))
        if value is None and key in _MAY_BE_NULL:
            continue
        fits, found = _fitted(value, wanted, f"{where}, {key}", notices)
        if fits:
            kept[key] = found
    return kept


def _fitted(value: Any, wanted: Any, where: str, notices: list[str]) -> tuple[bool, Any]:
    """Whether a value is of its shape, and what of it is."""
    if wanted is None:
        return True, value
    if wanted is float:
        if isinstance(value, float) and not math.isfinite(value):
            return True, None
        fits, rule = value is None or (isinstance(value, int | float) and not isinstance(value, bool)), "a number"
    elif wanted is str:
        fits, rule = isinstance(value, str), "a text"
    elif isinstance(wanted, list):
        fits, rule = isinstance(value, list), "a list"
    else:
        fits, rule = isinstance(value, dict), "an object"
    if not fits:
        shown = repr(value)
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        notices.append(f"{where}: must be {rule}, got {shown}: left out")
        return False, None
    if isinstance(wanted, list):
        each = [_fitted(one, wanted[0], f"{where} {i}", notices) for i, one in enumerate(value, 1)]
        return True, [found for good, found in each if good]
    return True, fitting(value, wanted, where, notices) if isinstance(wanted, Mapping) else value
