"""`fastpfrec experiment list | run | status`. Everything heavy is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors

if TYPE_CHECKING:
    from fastpfrec_flwr.experiments.cells import Cell
    from fastpfrec_flwr.experiments.study import Study
    from fastpfrec_flwr.experiments.suite import Suite

app = typer.Typer(no_args_is_help=True, help="Studies: many runs that answer one question, as the paper's tables do.")

NameOrFile = Annotated[
    str, typer.Argument(help="A shipped suite's name, or a TOML file of your own (docs/studies.md).")
]


@app.command("list")
def list_command() -> None:
    """List the shipped suites: what each shows, and what it takes."""
    from fastpfrec_flwr.experiments.suite import load_suite, shipped_names

    with plain_errors():
        for name in shipped_names():
            suite = load_suite(name)
            runs = len(suite.data_sets) * len(suite.variants) * len(suite.seeds)
            few = len(suite.quick.data_sets) * len(suite.quick.variants or suite.variants) * len(suite.quick.seeds)
            more = f" (and, when asked for, {', '.join(suite.other_data_sets)})" if suite.other_data_sets else ""
            typer.echo(f"{name}: {suite.question}")
            typer.echo(
                f"    {len(suite.variants)} variants, {len(suite.seeds)} seeds, on {', '.join(suite.data_sets)}{more}"
            )
            typer.echo(f"    {runs} runs; --quick: {few}")
    typer.echo("tuning: each model's settings by one space and budget; --model M --data-sets D (docs/baselines.md)")


@app.command()
def run(
    name: NameOrFile,
    quick: Annotated[bool, typer.Option("--quick", help="The suite's small version: a few minutes.")] = False,
    data_sets: Annotated[str, typer.Option(help="Some data sets, separated by commas.")] = "",
    seeds: Annotated[str, typer.Option(help="Some seeds, separated by commas.")] = "",
    variants: Annotated[str, typer.Option(help="Some variants, separated by commas.")] = "",
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder that holds <data-set>/...")] = "",
    output_dir: Annotated[str, typer.Option(help="The study folder; empty: one by the suite's name.")] = "",
    workers: Annotated[int, typer.Option(help="Runs side by side; 0: one a core, or one where time is measured.")] = 0,
    model: Annotated[str, typer.Option(help="Of `tuning`: the models, separated by commas; empty: all.")] = "",
) -> None:
    """Run a suite: what is done stays done, what failed or is missing is run; call it again to go on.

    `tuning` is no suite but the search for each model's settings: docs/baselines.md.
    """
    with plain_errors():
        if name == "tuning":
            _refuse_of_suites({"--quick": quick, "--seeds": seeds, "--variants": variants, "--workers": workers})
            _tune(model, data_sets, data_dir, output_dir)
            return
        from fastpfrec_flwr.experiments.cells import Choice, cells_of
        from fastpfrec_flwr.experiments.study import Study, default_study
        from fastpfrec_flwr.experiments.suite import SuiteError, load_suite, placed_data_set

        if model:
            raise SuiteError(f"--model is of `experiment run tuning` alone, got {model!r}; a suite takes --variants")
        suite = load_suite(name)
        if workers < 0:
            raise SuiteError(f"--workers must be >= 0, got {workers}")
        chosen = [placed_data_set(each, Path.cwd()) for each in _listed(data_sets)]
        choice = Choice(quick, chosen, _numbers(seeds), _listed(variants))
        cells = cells_of(suite, choice, str(Path(data_dir).expanduser().absolute()) if data_dir else "")
        path = Path(output_dir).expanduser().absolute() if output_dir else default_study(suite.name, quick)
        study = Study(path)
        with study.lock():
            study.write(suite, cells, quick)
            status = _run_all(suite, study, cells, workers)
    raise typer.Exit(status)


def _refuse_of_suites(options: dict[str, object]) -> None:
    """An option that tuning has no use for must not look as if it were heeded."""
    from fastpfrec_flwr.experiments.suite import SuiteError

    for option, value in options.items():
        if value:
            raise SuiteError(
                f"{option} is of suites; `tuning` takes --model, --data-sets, --data-dir and --output-dir, got {option} "
                f"{value!r}. Budget and seed stand in experiments/tuning.toml"
            )


def _tune(models: str, data_sets: str, data_dir: str, output_dir: str) -> None:
    from fastpfrec_flwr.experiments.study import default_study
    from fastpfrec_flwr.experiments.tuning import tune_all

    root = Path(output_dir).expanduser().absolute() if output_dir else default_study("tuning", False)
    data = str(Path(data_dir).expanduser().absolute()) if data_dir else ""
    tune_all(_listed(models), _listed(data_sets), root, data, typer.echo)


def _run_all(suite: Suite, study: Study, cells: list[Cell], workers: int) -> int:
    """Run, and say how it ended; the exit status."""
    import signal

    from fastpfrec_flwr.experiments.runner import default_workers, run_cells
    from fastpfrec_flwr.experiments.show import LiveShow

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    many = workers or default_workers(suite.timed)
    typer.echo(f"{suite.title}: {len(cells)} runs in {study.path}", err=True)
    if suite.timed and many > 1:
        typer.echo(f"note: this suite measures time; {many} runs side by side slow each other down", err=True)
    try:
        with LiveShow(study, len(cells)) as show:
            state = run_cells(study, cells, many, show)
    except KeyboardInterrupt:
        typer.echo(
            "\ninterrupted: finished runs are kept, those in flight begin again. Go on with the same command; see\n"
            f"  fastpfrec experiment status {study.path}",
            err=True,
        )
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    _print_tables(study.path)
    typer.echo(f"study folder: {study.path}")
    if state.failed:
        typer.echo(f"{state.failed} of {state.total} runs failed; the same command tries them again:", err=True)
        typer.echo(f"  fastpfrec experiment status {study.path} says why", err=True)
    return int(state.failed > 0)


@app.command()
def status(
    name: Annotated[str, typer.Argument(help="A study folder, a suite's name, or its file.")],
    quick: Annotated[bool, typer.Option("--quick", help="The quick study of that name.")] = False,
) -> None:
    """Say how far a study is, why runs failed, and what it found so far."""
    from fastpfrec_flwr.console import plain_console

    with plain_errors():
        from fastpfrec_flwr.experiments.study import default_study
        from fastpfrec_flwr.experiments.suite import load_suite
        from fastpfrec_flwr.experiments.table import status_table

        path = Path(name).expanduser().absolute()
        if not path.is_dir():
            path = default_study(load_suite(name).name, quick)
        table, failures = status_table(path)
        console = plain_console()
        console.print(str(path), highlight=False)
        console.print(table)
        for line in failures:
            console.print(line, highlight=False, soft_wrap=True)
        _print_tables(path)


def _print_tables(path: Path) -> None:
    from fastpfrec_flwr.console import plain_console
    from fastpfrec_flwr.experiments.table import study_tables

    console = plain_console()
    for table in study_tables(path):
        console.print(table)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    from fastpfrec_flwr.experiments.suite import SuiteError

    parts = _listed(text)
    if wrong := [part for part in parts if not re.fullmatch("[0-9]{1,18}", part)]:
        raise SuiteError(f"--seeds must be whole numbers separated by commas, got {wrong[0]!r}")
    return [int(part) for part in parts]
