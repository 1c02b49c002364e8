"""Where commands print: titles, ids and paths are other people's text, never markup, and whole where a program reads them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Of a pipe or a file, where rich would take 80 columns and cut what does not fit; a table is no wider than what it holds.
_WIDE = 10_000


def plain_console() -> Console:
    """A console on stdout that prints `[old]` and `:100:` as they stand; rich is imported where something is printed."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDE, markup=False, emoji=False)
