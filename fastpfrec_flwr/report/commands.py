"""`fastpfrec report`. Everything heavy is imported inside, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN-OR-STUDY...", help="Run folders and study folders.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the report; empty: `report` inside the first path."),
    ] = None,
) -> None:
    """Make tables (CSV, Markdown, LaTeX), plots (SVG, PNG) and one HTML page of runs and studies."""
    from fastpfrec_flwr.report.building import build_report

    with plain_errors():
        written = build_report(paths, output)
    for notice in written.notices:
        typer.echo(f"note: {notice}", err=True)
    typer.echo(f"report: {written.page} ({written.files} files)")
