"""The command line. Everything heavy is imported inside the commands, so that help comes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fastpfrec_flwr.audit.commands import audit
from fastpfrec_flwr.commands import catalogue, device, recommending
from fastpfrec_flwr.experiments.commands import app as experiment_app
from fastpfrec_flwr.foreseen import plain_errors
from fastpfrec_flwr.report.commands import report

app = typer.Typer(no_args_is_help=True, add_completion=False)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: which there are, fetch or import one, look at one.")
app.add_typer(data_app, name="data")
app.add_typer(experiment_app, name="experiment")
app.add_typer(device.app, name="device")
app.command()(report)
app.add_typer(catalogue.app, name="catalogue")
for command in (recommending.recommend, recommending.export, recommending.measure, recommending.serve):
    app.command()(command)
app.command()(audit)


def _tell_version(wanted: bool) -> None:
    """Print what is installed, with what a report of a fault needs beside it, and leave."""
    if wanted:
        import platform
        from importlib.metadata import distributions

        from fastpfrec_flwr import __version__
        from fastpfrec_flwr.files import source_fingerprint

        found = {each.name.lower(): each.version for each in distributions()}
        beside = ", ".join(
            f"{name} {found.get(name, 'not installed')}" for name in ("flwr", "torch", "numpy", "numba", "ray")
        )
        typer.echo(
            f"fastpfrec {__version__} (source {source_fingerprint()})\nPython {platform.python_version()}, {beside}"
        )
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="What is installed, and leave.")
    ] = False,
) -> None:
    """FastPFRec: federated recommendation on Flower."""


NameOrPath = Annotated[str, typer.Argument(help="A named data set, or a path of your own.")]
DataDir = Annotated[str, typer.Option("--data-dir", help="Folder that holds <data-set>/...")]
Settings = Annotated[
    list[str] | None,
    typer.Option("-c", "--run-config", help="A TOML file, or 'key=value ...'; repeatable, the later wins."),
]
Split = Annotated[str, typer.Option("--split", help="auto | released | chronological | random")]


def _run_config(options: list[str] | None, **changes: str) -> dict[str, Any]:
    """Defaults, `-c` options, then options of their own; checked, with absolute paths."""
    from fastpfrec_flwr.config import default_values, parse_run_config
    from fastpfrec_flwr.simulation.options import merge_options, with_absolute_paths

    values = merge_options(options or [], default_values())
    values |= {key.replace("_", "-"): value for key, value in changes.items() if value}
    values = with_absolute_paths(values)
    parse_run_config(values)
    return values


@data_app.command("list")
def list_command(data_dir: DataDir = "") -> None:
    """List the named data sets and where they were found."""
    from rich.table import Column, Table

    from fastpfrec_flwr.console import plain_console
    from fastpfrec_flwr.data.commands import list_data_sets

    with plain_errors():
        table = Table("name", Column("found", overflow="fold"), "origin")
        for row in list_data_sets(data_dir or None):
            table.add_row(row["name"], row["found"], row["origin"])
        plain_console().print(table)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A named data set.")],
    from_dir: Annotated[Path | None, typer.Option("--from", help="Import from this folder instead of the net.")] = None,
) -> None:
    """Fetch a named data set from its public home, or import it: later runs find it without any setting."""
    from fastpfrec_flwr.data.commands import fetch as fetch_data

    with plain_errors(), _progress_bar() as progress:
        directory = fetch_data(name, from_dir, progress)
    typer.echo(f"{name}: in {directory}")


@data_app.command()
def show(name_or_path: NameOrPath, data_dir: DataDir = "", split: Split = "", run_config: Settings = None) -> None:
    """Read and split a data set and say what was read and dropped."""
    from rich.table import Column, Table

    from fastpfrec_flwr.console import plain_console

    with plain_errors(), _progress_bar() as progress:
        from fastpfrec_flwr.config import parse_run_config
        from fastpfrec_flwr.data.commands import report_of
        from fastpfrec_flwr.data.preparation import prepare_run

        values = _run_config(run_config, data_set=name_or_path, data_dir=data_dir, split=split)
        config = parse_run_config(values)
        report = report_of(prepare_run(config, progress))
    table = Table("what", Column("value", overflow="fold"))
    for key, value in report.items():
        for line, cell in _lines(key, value):
            table.add_row(line.replace("_", " "), cell)
    plain_console().print(table)


def _lines(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Nested parts of a report as lines of their own."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _lines(f"{key}: {inner}", each)
    elif isinstance(value, list):
        for number, each in enumerate(value, 1):
            yield from _lines(f"{key} {number}", each)
    else:
        yield key, "-" if value is None else str(value)


@app.command()
def simulate(
    run_config: Settings = None,
    num_supernodes: Annotated[int, typer.Option(help="Simulated SuperNodes; the figures do not depend on it.")] = 2,
    output_dir: Annotated[
        str, typer.Option(help="The run folder; empty: a new one under the user's data folder.")
    ] = "",
    data_dir: DataDir = "",
) -> None:
    """Run the app that `flwr run` runs, in this process: same keys, same figures bit for bit."""
    with plain_errors():
        values = _run_config(run_config, output_dir=output_dir, data_dir=data_dir)
        from fastpfrec_flwr.simulation.run import simulate as run

        run(values, num_supernodes)


@app.command()
def privacy(
    run_config: Settings = None,
    data_dir: DataDir = "",
    users: Annotated[int, typer.Option(help="Users; 0: those of the data set.")] = 0,
    items: Annotated[int, typer.Option(help="Items; 0: those of the data set.")] = 0,
    delta: Annotated[float, typer.Option(help="Delta of every line that needs one.")] = 1e-5,
    colluding: Annotated[int, typer.Option(help="Clients of a round that tell the observer their own noise.")] = 0,
    deployed: Annotated[bool, typer.Option(help="Real devices: each may be asked in every round.")] = False,
    target_epsilon: Annotated[float, typer.Option(help="Propose the noise for this epsilon; 0: do not.")] = 0.0,
    observer: Annotated[
        str, typer.Option(help="Whom the target is for: trusted node | server | final model.")
    ] = "trusted node",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print what a configuration costs in privacy, against whom and why, without running it."""
    import json

    from fastpfrec_flwr.console import plain_console
    from fastpfrec_flwr.privacy.proposal import OBSERVERS

    if observer not in OBSERVERS:
        raise typer.BadParameter(f"must be one of {', '.join(OBSERVERS)}", param_hint="--observer")
    for name, value, lowest in (("--users", users, 0), ("--items", items, 0), ("--colluding", colluding, 0)):
        if value < lowest:
            raise typer.BadParameter(f"must be >= {lowest}, got {value}", param_hint=name)
    if not 0 < delta < 1:
        raise typer.BadParameter(f"must be > 0 and < 1, got {delta}", param_hint="--delta")
    with plain_errors():
        from fastpfrec_flwr.config import parse_run_config
        from fastpfrec_flwr.model.named import build_layout
        from fastpfrec_flwr.privacy.exposure import build_ledger
        from fastpfrec_flwr.privacy.lines import Setting
        from fastpfrec_flwr.privacy.printing import print_ledger, print_proposal
        from fastpfrec_flwr.privacy.proposal import propose_noise

        config = parse_run_config(_run_config(run_config, data_dir=data_dir))
        if not (users and items):
            found = _users_and_items(config)
            users, items = users or found[0], items or found[1]
        setting = Setting(config, users, build_layout(config).rows(items), deployed, colluding, delta)
        ledger = build_ledger(setting)
        proposal = propose_noise(setting, target_epsilon, observer) if target_epsilon else None
    if as_json:
        told = ledger.to_dict() | ({"proposal": proposal.to_dict()} if proposal else {})
        typer.echo(json.dumps(told, indent=2))
        return
    console = plain_console()
    print_ledger(ledger, console)
    if proposal:
        print_proposal(proposal, config.noise_scale if config.noise != "none" else 0.0, console)


def _users_and_items(config: Any) -> tuple[int, int]:
    """Those of the configuration's data set, which is read and split if it has not been yet."""
    from fastpfrec_flwr.data.preparation import prepare_run

    with _progress_bar() as progress:
        split = prepare_run(config, progress).load()
    return split.num_users, split.num_items


@app.command()
def references(
    name_or_path: NameOrPath,
    data_dir: DataDir = "",
    split: Split = "",
    part: Annotated[str, typer.Option(help="test | validation")] = "test",
    run_config: Settings = None,
) -> None:
    """Measure popularity and ItemKNN, with the data in one place: what a federated model has to beat."""
    from rich.table import Table

    from fastpfrec_flwr.console import plain_console

    if part not in ("test", "validation"):
        raise typer.BadParameter("must be test or validation", param_hint="--part")
    with plain_errors(), _progress_bar() as progress:
        from fastpfrec_flwr.baselines.central import reference_metrics
        from fastpfrec_flwr.config import parse_run_config
        from fastpfrec_flwr.data.preparation import prepare_run

        config = parse_run_config(_run_config(run_config, data_set=name_or_path, data_dir=data_dir, split=split))
        prepared = prepare_run(config, progress)
        found = reference_metrics(prepared.load(), "test" if part == "test" else "validation")
    table = Table("metric", *(name.replace("_", " ") for name in found), title=f"{prepared.name}, {part}")
    for metric in next(iter(found.values())):
        table.add_row(metric, *(f"{values[metric]:.4f}" for values in found.values()))
    plain_console().print(table)


@contextmanager
def _progress_bar() -> Iterator[Any]:
    """A progress bar on stderr that appears with the first report of progress."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int | None) -> None:
        bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()
