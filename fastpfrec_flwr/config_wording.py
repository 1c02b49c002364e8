"""How rules of the configuration write keys and values."""

from __future__ import annotations

Rules = list[tuple[bool, str]]


def shown(value: object) -> str:
    """A value as a configuration file writes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def kebab(name: str) -> str:
    """A field's name as its key."""
    return name.replace("_", "-")
