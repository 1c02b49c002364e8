"""What a round, an evaluation and a whole run cost; every table's figures can be kept as JSON and compared.

`python -m benchmarks round | phases | kernels | reference | central | evaluation | check | memory | growth | startup | flwr |
repeats`, and `compare`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.output import Line, ratios, report, show
from fastpfrec_flwr.foreseen import Foreseen

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
DataDir = Annotated[str, typer.Option(help="Folder of the named data sets; empty: what was fetched before.")]
Output = Annotated[str, typer.Option(help="JSON file for the figures.")]


@app.command("round")
def round_cost(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: str = "256,1024",
    rounds: int = 15,
    super_nodes: int = 2,
    negatives: Annotated[int, typer.Option(help="Size of the shared negative set; 0: the data set's own.")] = 0,
    output: Output = "",
) -> None:
    """Milliseconds of one round in-process, everything included (messages, state, check, average, server step)."""
    from benchmarks.rounds import rounds_of

    changes = {"num_negatives": negatives} if negatives else {}
    figures = rounds_of(_parts(data_sets), data_dir, _numbers(clients), rounds, super_nodes, **changes)
    report("round", figures, output)


@app.command()
def phases(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: str = "256",
    rounds: int = 15,
    super_nodes: int = 2,
    threads: Annotated[int, typer.Option(help="With 1 the phases add up; with more, those of SuperNodes overlap.")] = 1,
    output: Output = "",
) -> None:
    """Where the milliseconds of a round go, phase by phase, and what none of them names."""
    from benchmarks.phases import measured

    figures = measured(_parts(data_sets), data_dir, _numbers(clients), rounds, super_nodes, threads)
    report("phases", figures, output)


@app.command()
def reference(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: Annotated[int, typer.Option(help="Clients of a measured round; both costs grow in proportion.")] = 32,
    repeats: int = 5,
    threads: int = 0,
    output: Output = "",
) -> None:
    """Milliseconds a client: a model, an optimiser and a state dict for each, against the cohort's kernels with their noise."""
    from benchmarks.cohort import measured

    figures: list[Line] = []
    for loop, kernels in measured(_parts(data_sets), data_dir, clients, repeats, threads):
        figures += [loop, kernels]
        times_faster = loop["median_ms"] / kernels["median_ms"]
        typer.echo(f"{loop['data_set']}: the cohort takes 1/{times_faster:.0f} of the time")
    report("reference", figures, output)


@app.command()
def kernels(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: int = 256,
    repeats: int = 15,
    threads: Annotated[int, typer.Option(help="0: what the process was given.")] = 0,
    torch_compile: Annotated[bool, typer.Option(help="Measure torch.compile too, which needs a C++ compiler.")] = True,
    negatives: Annotated[int, typer.Option(help="Size of the shared negative set; 0: the data set's own.")] = 0,
    output: Output = "",
) -> None:
    """Milliseconds of a cohort's local step: compiled here, by autograd, by torch's operators, by torch.compile; interleaved."""
    from benchmarks.kernels import measured

    changes = {"num_negatives": negatives} if negatives else {}
    figures = measured(_parts(data_sets), data_dir, clients, repeats, threads, torch_compile, **changes)
    report("kernels", figures, output)


@app.command()
def central(
    data_dir: DataDir = "",
    data_sets: str = "gowalla-100k,gowalla-1m",
    clients: int = 256,
    repeats: int = 5,
    batch: Annotated[int, typer.Option(help="Pairs of a central step; 0: a quarter of all, as it is run.")] = 0,
    threads: int = 0,
    processor: Annotated[bool, typer.Option(help="Of the processor instead of the clock: for a busy machine.")] = False,
    output: Output = "",
) -> None:
    """Milliseconds of an epoch of central LightGCN (3 layers, every train pair once), beside a round and a pass over all users."""
    from benchmarks.central import measured

    figures = measured(_parts(data_sets), data_dir, clients, repeats, batch, threads, processor)
    report("central", figures, output)


@app.command()
def evaluation(
    data_dir: DataDir = "", data_sets: str = "gowalla-100k,gowalla-1m", repeats: int = 5, output: Output = ""
) -> None:
    """Milliseconds of one federated evaluation of all users on the validation part, in-process."""
    from benchmarks.rounds import evaluations

    report("evaluation", evaluations(_parts(data_sets), data_dir, repeats), output)


@app.command()
def check(
    data_dir: DataDir = "",
    data_set: str = "gowalla-1m",
    clients: int = 26,
    alignment: float = 6.0,
    repeats: int = 15,
    processor: Annotated[bool, typer.Option(help="Of the processor instead of the clock: for a busy machine.")] = False,
    output: Output = "",
) -> None:
    """Milliseconds of one trusted node in a round: distances, checks and mean, of simulated uploads and of whole noised tables."""
    from benchmarks.checks import measured

    report("check", measured(data_set, data_dir, clients, alignment, repeats, processor), output)


@app.command()
def memory(data_dir: DataDir = "", data_set: str = "gowalla-100k", rounds: int = 1000, output: Output = "") -> None:
    """Resident memory after each tenth of many rounds of 256 clients: it should be flat."""
    from benchmarks.rounds import resident_after

    report("memory", resident_after(data_set, data_dir, rounds), output)


@app.command()
def growth(
    rounds: int = 9,
    quick: Annotated[bool, typer.Option(help="Two tiny points, to see that it runs.")] = False,
    output: Output = "",
    plot: Annotated[str, typer.Option(help="PNG file for the curves.")] = "",
) -> None:
    """How a round's time, memory and bytes grow with users, items, clients, interactions and dimensions; fitted exponents."""
    from benchmarks import growth as growing

    figures = []
    for number, point in enumerate(asked := growing.points(quick), 1):
        figures.append(growing.measured(point, rounds))
        typer.echo(f"{number}/{len(asked)} {figures[-1]}", err=True)
    report("growth", figures, output)
    if not quick:
        show("exponents", growing.exponents(figures))
    if plot:
        growing.plot(figures, Path(plot))


@app.command()
def startup(
    data_dir: DataDir = "", data_sets: str = "gowalla-100k,gowalla-1m", repeats: int = 5, output: Output = ""
) -> None:
    """The command line's `--help`, a data set read for the first time, and opened again."""
    from benchmarks.startup import measured

    report("startup", measured(_parts(data_sets), data_dir, repeats), output)


@app.command()
def flwr(
    data_set: str = "ml-100k",
    data_dir: DataDir = "",
    rounds: int = 40,
    super_nodes: Annotated[str, typer.Option(help="Numbers of simulated SuperNodes.")] = "2",
    output: Output = "",
) -> None:
    """Median milliseconds of a round under `flwr run` and in-process: the difference is Flower's and Ray's."""
    from benchmarks.flower import measured

    report("flwr", measured(data_set, data_dir, rounds, _parts(super_nodes)), output)


@app.command()
def repeats(
    data_set: str = "ml-100k", data_dir: DataDir = "", runs: int = 10, rounds: int = 5, output: Output = ""
) -> None:
    """`flwr run` again and again: seconds to the first figures, cold and warm, and what stays of memory, disk, processes, ports."""
    from benchmarks.repeats import repeated

    figures = []
    for line in repeated(data_set, data_dir, runs, rounds):
        figures.append(line)
        typer.echo(f"{line['run']}/{runs} {line}", err=True)
    report("repeats", figures, output)


@app.command()
def compare(old: Path, new: Path) -> None:
    """Ratios of two files of figures, new over old, line by line where both speak of the same."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (old, new))
    for key in ("machine", "threads"):
        if before[key] != after[key]:
            typer.echo(f"{key} differs: {before[key]} and {after[key]}; ratios then say little", err=True)
    try:
        show(f"{after['name']}: {new} / {old}", ratios(before["figures"], after["figures"]))
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def _parts(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in _parts(text)]


def main() -> None:
    """Run a command; what can be foreseen (no data, say) is told without a traceback."""
    try:
        app()
    except Foreseen as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
