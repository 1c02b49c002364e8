"""Where commands print: titles, ids and paths are other people's text, never markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console(width: int | None = None) -> Console:
    """A console on stdout that prints `[old]` and `:100:` as they stand; rich is imported where something is printed."""
    from rich.console import Console

    return Console(width=width, markup=False, emoji=False)
