"""What a round, an evaluation and a whole run cost; every table's figures can be kept as JSON and compared.

`python -m benchmarks round | phases | reference | central | evaluation | check | memory | growth | startup | flwr | repeats`, and
`compare`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.output import ratios, report, show, spread
from benchmarks.processes import resident_mb
from benchmarks.setup import ROOT, configuration, training

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
DataDir = Annotated[str, typer.Option(help="Folder of the named data sets; empty: what was fetched before.")]
Output = Annotated[str, typer.Option(help="JSON file for the figures.")]
_WARM_UP = 3


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
    figures = []
    with contextlib.ExitStack() as stack:
        runs: list[Any] = []
        for data_set in data_sets.split(","):
            for count in (int(c) for c in clients.split(",")):
                changes = {"num_negatives": negatives} if negatives else {}
                config = configuration(data_set, data_dir, clients_per_round=count, **changes)
                runs.append((data_set, count, *stack.enter_context(training(config, super_nodes)), []))
        for server_round in range(1, rounds + _WARM_UP + 1):
            for _, _, strategy, grid, times in runs:  # interleaved: a slow moment of the machine hits all alike
                began = time.perf_counter()
                strategy.run_round(grid, server_round)
                times.append(time.perf_counter() - began)
        for data_set, count, _, _, times in runs:
            figures.append({"data_set": data_set, "clients": count, **spread(times[_WARM_UP:])})
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
    from benchmarks.phases import stopwatch

    figures = []
    for data_set in data_sets.split(","):
        for count in (int(c) for c in clients.split(",")):
            config = configuration(data_set, data_dir, clients_per_round=count, threads=threads)
            times: dict[str, list[float]] = {}
            with training(config, super_nodes) as (strategy, grid):
                for server_round in range(1, rounds + _WARM_UP + 1):
                    with stopwatch() as watch:
                        began = time.perf_counter()
                        strategy.run_round(grid, server_round)
                        total = time.perf_counter() - began
                    if server_round > _WARM_UP:
                        named = sum(watch.seconds.values())
                        for phase, seconds in {
                            **watch.seconds,
                            "everything else": total - named,
                            "round": total,
                        }.items():
                            times.setdefault(phase, []).append(seconds)
            whole = float(np.median(times["round"]))
            for phase, spent in times.items():
                share = float(np.median(spent)) / whole
                figures.append(
                    {"data_set": data_set, "clients": count, "phase": phase, **spread(spent), "share": share}
                )
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
    import torch

    from benchmarks.cohort import real_cohort
    from benchmarks.reference import run_round
    from fastpfrec_flwr.client.build import build_mechanism
    from fastpfrec_flwr.parallel import available_threads

    given = available_threads(threads)
    torch.set_num_threads(given)
    figures = []
    for data_set in data_sets.split(","):
        cohort = real_cohort(configuration(data_set, data_dir), clients)
        mechanism, each = build_mechanism(cohort.config, given), cohort.clients()
        loop, kernels = [], []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            run_round(cohort.table, each, cohort.weights, cohort.config, refresh=False)
            middle = time.perf_counter()
            mechanism.privatize(cohort.train(given), cohort.keys, cohort.keys, len(cohort.table))
            loop.append((middle - began) / clients)
            kernels.append((time.perf_counter() - middle) / clients)
        for kind, times in (("one by one", loop), ("cohort", kernels)):
            figures.append({"data_set": data_set, "clients": clients, "kind": kind, **spread(times[1:])})
        times_faster = float(np.median(loop[1:]) / np.median(kernels[1:]))
        typer.echo(f"{data_set}: the cohort takes 1/{times_faster:.0f} of the time")
    report("reference", figures, output)


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
    import torch

    from benchmarks.central import lightgcn
    from fastpfrec_flwr.parallel import available_threads

    given = available_threads(threads)
    torch.set_num_threads(given)
    clock = time.process_time if processor else time.perf_counter
    figures = []
    for data_set in data_sets.split(","):
        config = configuration(data_set, data_dir, clients_per_round=clients, threads=given)
        epochs, rounds = [], []
        model = lightgcn(config, batch)
        with training(config, 2) as (strategy, grid):
            for number in range(1, repeats + 2):  # in turn: a slow moment of the machine hits both
                began = clock()
                model.run_epoch()
                middle = clock()
                strategy.run_round(grid, number)
                epochs.append(middle - began)
                rounds.append(clock() - middle)
        passes = [each * model.graph.num_users / clients for each in rounds]
        for kind, count, times in (
            ("central epoch", model.settings.batches, epochs),
            ("round", 1, rounds),
            ("rounds of all users", -(-model.graph.num_users // clients), passes),
        ):
            figures.append({"data_set": data_set, "kind": kind, "steps": count, **spread(times[1:])})
    report("central", figures, output)


@app.command()
def evaluation(
    data_dir: DataDir = "", data_sets: str = "gowalla-100k,gowalla-1m", repeats: int = 5, output: Output = ""
) -> None:
    """Milliseconds of one federated evaluation of all users on the validation part, in-process."""
    figures = []
    for data_set in data_sets.split(","):
        with training(configuration(data_set, data_dir), 2) as (strategy, grid):
            times = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                strategy.evaluate(grid, 1, ["validation"])
                times.append(time.perf_counter() - began)
            figures.append({"data_set": data_set, **spread(times[1:])})
    report("evaluation", figures, output)


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
    from dataclasses import replace

    from flwr.app import ConfigRecord

    from fastpfrec_flwr import messages
    from fastpfrec_flwr.server.build import build_tier
    from fastpfrec_flwr.trusted_node.alignment import NoCrossCheck
    from fastpfrec_flwr.trusted_node.detection import NoCheck
    from fastpfrec_flwr.trusted_node.tier import TrustedNodes

    config = configuration(
        data_set, data_dir, clients_per_round=clients, num_trusted_nodes=1, threads=1, alignment_z_threshold=alignment
    )
    with training(config, 1) as (strategy, grid):
        table = strategy.state.item_table
        asked = strategy.configure_train(1, strategy.encode_model(), ConfigRecord(), grid)
        (reply,) = grid.send_and_receive(asked)
        k = config.embedding_dim
        uploads = messages.decode_uploads(reply, 1, clients, len(table), k, config.effective_noise_scale).uploads
    figures = []
    tier = build_tier(config, 1)
    assert isinstance(tier, TrustedNodes)
    bare = replace(tier, check=NoCheck(), cross_check=NoCrossCheck())
    now = time.process_time if processor else time.perf_counter  # one thread, so both mean the same
    for kind, sent in (("simulated", uploads), ("as deployed", whole_tables(uploads, len(table)))):
        for name, each in (("mean alone", bare), ("checks and mean", tier)):
            times = []
            for _ in range(repeats + 1):
                began = now()
                each.collect([sent], len(table), 1)
                times.append(now() - began)
            figures.append({"uploads": kind, "node does": name, **spread(times[1:])})
    report("check", figures, output)


@app.command()
def memory(data_dir: DataDir = "", data_set: str = "gowalla-100k", rounds: int = 1000, output: Output = "") -> None:
    """Resident memory after each tenth of many rounds of 256 clients: it should be flat."""
    figures = []
    with training(configuration(data_set, data_dir, clients_per_round=256), 2) as (strategy, grid):
        for server_round in range(1, rounds + 1):
            strategy.run_round(grid, server_round)
            if server_round % max(rounds // 10, 1) == 0:
                figures.append({"round": server_round, "resident_mb": resident_mb()})
    report("memory", figures, output)


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

    report("startup", measured(data_sets.split(","), data_dir, repeats), output)


@app.command()
def flwr(
    data_set: str = "ml-100k",
    data_dir: DataDir = "",
    rounds: int = 40,
    super_nodes: Annotated[str, typer.Option(help="Numbers of simulated SuperNodes.")] = "2",
    output: Output = "",
) -> None:
    """Median milliseconds of a round under `flwr run` and in-process: the difference is Flower's and Ray's."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pairs = f'data-set="{data_set}" data-dir="{data_dir}" num-rounds={rounds} evaluate-every=0 report-loss=false'
        for count in super_nodes.split(","):
            for kind in ("flwr run", "in-process"):
                out = Path(folder) / f"{kind.replace(' ', '-')}-{count}"
                own = f'{pairs} output-dir="{out}"'
                if kind == "flwr run":
                    flower = str(Path(sys.executable).with_name("flwr"))
                    federation = f"num-supernodes={count} client-resources-num-cpus=1"
                    command = [flower, "run", str(ROOT), "--stream", "-c", own, "--federation-config", federation]
                else:
                    command = [sys.executable, "-m", "fastpfrec_flwr", "simulate", "-c", own, "--num-supernodes", count]
                subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                seconds = json.loads((out / "summary.json").read_text())["seconds"]
                median = 1e3 * seconds["round_median"]
                figures.append(
                    {"kind": kind, "super_nodes": int(count), "median_ms": median, "total_s": seconds["total"]}
                )
    report("flwr", figures, output)


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


def whole_tables(uploads: Any, num_items: int) -> Any:
    """Simulated dense uploads as real devices send them: noise on every row."""
    from fastpfrec_flwr.trusted_node.detection import norms_of
    from fastpfrec_flwr.trusted_node.points import UploadPoints
    from fastpfrec_flwr.trusted_node.uploads import Uploads

    clients = uploads.num_clients
    points = UploadPoints.gather([uploads], [np.arange(clients)], num_items, 1)
    values = np.concatenate([points.table(j) for j in range(clients)])
    rows = np.tile(np.arange(num_items, dtype=np.int32), clients)
    whole = Uploads(points.uploads.nonces, np.arange(clients + 1, dtype=np.int64) * num_items, rows, values, 0.0)
    return whole.with_norms(norms_of(values, whole.pointer, values.shape[1]))


if __name__ == "__main__":
    app()
