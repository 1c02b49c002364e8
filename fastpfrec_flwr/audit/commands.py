"""`fastpfrec audit`. Everything heavy is imported inside the command, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors


def audit(
    run_config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help="A TOML file, or 'key=value ...'; repeatable, the later wins."),
    ] = None,
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder that holds <data-set>/...")] = "",
    users: Annotated[int, typer.Option(help="Users whose uploads are looked at.", min=2)] = 200,
    uploads: Annotated[int, typer.Option(help="Uploads of each user; decides the rounds.", min=1)] = 4,
    trials: Annotated[int, typer.Option(help="Canaries of each kind.", min=1000)] = 200_000,
    only: Annotated[str, typer.Option(help="Protections whose name has this in it.")] = "",
    output_dir: Annotated[str, typer.Option(help="Where the tables go; empty: nowhere but here.")] = "",
) -> None:
    """Attack the privacy of a configuration: what each observer can tell from its uploads, with and without each protection."""
    from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
    from fastpfrec_flwr.console import plain_console
    from fastpfrec_flwr.simulation.options import merge_options, with_absolute_paths

    console = plain_console()
    with plain_errors():
        values = merge_options(run_config or [], default_values()) | ({"data-dir": data_dir} if data_dir else {})
        config = parse_run_config(with_absolute_paths(values))
        if config.strategy != "fastpfrec":
            raise ConfigError(f"strategy must be 'fastpfrec' for an audit, got {config.strategy!r}")
        from fastpfrec_flwr.audit.protections import protections
        from fastpfrec_flwr.audit.running import run_audit, run_canaries
        from fastpfrec_flwr.audit.telling import canary_table, observers_table, write_audit

        chosen = [each for each in protections() if only in each.name]
        if not chosen:
            names = "; ".join(each.name for each in protections())
            raise ConfigError(f"--only {only!r} is in no protection's name; there are: {names}")
        folder = _writable(output_dir) if output_dir else None
        with console.status("") as status:
            found = run_audit(config, chosen, users, uploads, lambda name: status.update(f"run: {name}"))
            status.update("canaries")
            canaries = run_canaries(config, trials, config.seed)
    tables = [observers_table(found, users, uploads), canary_table(canaries)]
    for table in tables:
        _print(table, console)
    if folder is not None:
        whole = {
            "config": config.to_flat_dict(),
            "users": users,
            "uploads": uploads,
            "protections": [each.to_dict() for each in found],
            "canaries": [
                {
                    "mechanism": row.mechanism, "randomness": row.randomness, "method": row.method, "claim": row.claim,
                    "lower_bound": row.finding.lower_bound, "ceiling": row.finding.ceiling,
                    "trials": row.finding.trials, "delta": row.finding.delta, "as_expected": row.as_expected,
                }
                for row in canaries
            ],
        }  # fmt: skip
        write_audit(folder, tables, whole)
        console.print(f"written to {folder}", highlight=False)
    if not all(row.as_expected for row in canaries):
        typer.echo("error: a mechanism does not keep its claim, or a mutant was not caught; see the canaries", err=True)
        raise typer.Exit(1)


def _writable(output_dir: str) -> Path:
    """The folder, made and tried: an audit takes long, and its tables are written last."""
    from tempfile import TemporaryFile

    from fastpfrec_flwr.config import ConfigError

    folder = Path(output_dir).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output-dir must be a folder that can be written, got {str(folder)!r} ({error.strerror or error})"
        ) from error
    return folder


def _print(table: object, console: object) -> None:
    from rich.console import Console
    from rich.table import Table as Printed

    from fastpfrec_flwr.report.tables import Table

    assert isinstance(table, Table)
    assert isinstance(console, Console)
    printed = Printed(*(column.title for column in table.columns), title=table.caption)
    for row in table.rows:
        printed.add_row(*(cell.text for cell in row))
    console.print(printed)
    for note in table.notes:
        console.print(f"- {note}", highlight=False)
