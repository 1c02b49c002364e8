"""What is wrong with a configuration, in plain words: the key, the rule and the value got."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from fastpfrec_flwr.config_models import BASELINES


def explain(finding: Any, known: Sequence[str]) -> str:
    """One line of plain words for one of pydantic's findings; `known` are the keys that there are."""
    key = str(finding["loc"][0]) if finding["loc"] else ""
    kind = finding["type"]
    context = finding.get("ctx", {})
    if kind == "extra_forbidden":
        close = get_close_matches(key, known, n=1)
        return f"unknown key {key!r}" + (
            f"; did you mean {close[0]!r}?" if close else "; see pyproject.toml for the keys"
        )
    if kind == "missing":
        return f"{key} is missing; its default stands in pyproject.toml under [tool.flwr.app.config]"
    if kind == "value_error":
        return str(context["error"])
    rules = {
        "greater_than": "must be > {gt}",
        "greater_than_equal": "must be >= {ge}",
        "less_than": "must be < {lt}",
        "less_than_equal": "must be <= {le}",
        "literal_error": "must be one of {expected}",
        "string_too_short": "must not be empty",
        "finite_number": "must be a finite number",
        "int_type": "must be an integer",
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "string_type": "must be a string",
        "string_pattern_mismatch": "must be 'fastpfrec', 'flwr:<name>' or '<module>:<class>'",
    }
    if key == "model":
        rules["string_pattern_mismatch"] = f"must be fastpfrec, {', '.join(BASELINES)}, or '<module>:<class>'"
    rule = rules.get(kind, finding["msg"]).format(**context) if kind in rules else finding["msg"]
    return f"{key} {rule}, got {finding['input']!r}"
