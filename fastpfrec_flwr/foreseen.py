"""Errors whose text says all that somebody needs to go on, and how a command says them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Foreseen(Exception):
    """Bad input, or a state of the world that a program must expect: the message is for people, a traceback would not help."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Inside a command: say what can be foreseen in plain words and leave with status 2; anything else keeps its traceback."""
    try:
        yield
    except Foreseen as error:
        import typer

        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
