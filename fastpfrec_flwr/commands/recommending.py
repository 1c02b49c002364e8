"""`fastpfrec recommend | export | measure | serve`. Everything heavy is imported inside, so that help comes at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors

if TYPE_CHECKING:
    from fastpfrec_flwr.recommend import Recommendations, Recommender

Model = Annotated[Path, typer.Option("--model", "-m", help="A run folder, or what `fastpfrec export` wrote.")]
CatalogueFile = Annotated[
    Path | None, typer.Option("--catalogue", help="A catalogue file with titles; it must be the model's own.")
]


def recommend(
    model: Model,
    history: Annotated[
        str, typer.Option(help="Item ids, one a line or JSON, or a file of interactions; - reads standard input.")
    ] = "",
    items: Annotated[str, typer.Option(help="Item ids apart by commas, in place of a file.")] = "",
    user: Annotated[str, typer.Option(help="Whose history, where the file has several users.")] = "",
    top: Annotated[int, typer.Option(help="How many.")] = 10,
    output: Annotated[str, typer.Option("--format", help="table | json | csv")] = "table",
    catalogue: CatalogueFile = None,
    without: Annotated[str, typer.Option(help="A file of ids to leave out beside those of the history.")] = "",
    state_dir: Annotated[
        Path | None, typer.Option(help="The device's state folder: its private vector then has a say.")
    ] = None,
    fit: Annotated[
        bool, typer.Option(help="Without a state: fit a private vector to the history, on this machine.")
    ] = True,
    user_number: Annotated[
        int | None, typer.Option(help="Number of the user in the state, where it holds several.")
    ] = None,
) -> None:
    """Recommend items to whoever has a history, on this machine: nothing is sent anywhere."""
    if output not in ("table", "json", "csv"):
        raise typer.BadParameter("must be table, json or csv", param_hint="--format")
    if bool(history) == bool(items):
        raise typer.BadParameter("give either --history FILE or --items ID,ID,...", param_hint="--history")
    if top < 1:
        raise typer.BadParameter(f"must be >= 1, got {top}", param_hint="--top")
    with plain_errors():
        from fastpfrec_flwr.recommend import Recommender
        from fastpfrec_flwr.recommend.device import private_vector
        from fastpfrec_flwr.recommend.history import read_history

        chosen = [each.strip() for each in items.split(",") if each.strip()] if items else read_history(history, user)
        recommender = Recommender.load(model, catalogue)
        private = None
        if state_dir is not None:
            private = private_vector(state_dir, _state_id(recommender), user_number)
        found = recommender.recommend(chosen, top, private, read_history(without) if without else (), fit)
    if found.unknown:
        typer.echo(f"note: {found.unknown} of {found.known + found.unknown} items are not in the catalogue", err=True)
    if not found.known:
        typer.echo("note: no item of the history is known; this is what suits most people", err=True)
    _print(found, output)


def _state_id(recommender: Recommender) -> str:
    return str(recommender.manifest.get("run", {}).get("state_id", ""))


def _print(found: Recommendations, output: str) -> None:
    if output == "json":
        typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    rows = [(str(each.rank), each.item, each.title, f"{each.score:.4f}") for each in found.items]
    if output == "csv":
        import csv
        import sys

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([("rank", "item", "title", "score"), *rows])
        return
    from rich.table import Table

    from fastpfrec_flwr.console import plain_console

    titled = any(title for _, _, title, _ in rows)
    table = Table("", "item", *(["title"] if titled else []), "score")
    for rank, item, title, score in rows:
        table.add_row(rank, item, *([title] if titled else []), score)
    plain_console().print(table)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    file_format: Annotated[str, typer.Option("--format", help="npz | safetensors | onnx")] = "npz",
    precision: Annotated[
        str, typer.Option(help="fp32 | fp16 | int8; `fastpfrec measure` says what each loses.")
    ] = "fp32",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; empty: model-<precision>.<format> in the run folder."),
    ] = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Write a run's model as one file with its manifest: for devices, other programs, other runtimes."""
    with plain_errors():
        from fastpfrec_flwr.recommend.errors import ModelError
        from fastpfrec_flwr.recommend.export import export_model
        from fastpfrec_flwr.recommend.loading import load_model
        from fastpfrec_flwr.recommend.model import LocalModel

        model = load_model(run, None if catalogue is None else _loaded(catalogue))
        if not isinstance(model, LocalModel):
            raise ModelError(f"{run}: an ONNX file cannot be exported again; give the run folder")
        path = output or (run if run.is_dir() else run.parent) / f"model-{precision}.{file_format}"
        done = export_model(model, path, file_format, precision)
    typer.echo(f"{done.path}: {done.bytes:,} bytes, SHA-256 {done.sha256}")
    typer.echo(f"manifest: {done.manifest}")


def _loaded(path: Path):  # type: ignore[no-untyped-def]
    from fastpfrec_flwr.catalogue import Catalogue

    return Catalogue.load(path)


def measure(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: Annotated[str, typer.Option(help="Folder that holds <data-set>/...; empty: as in the run.")] = "",
    users: Annotated[int, typer.Option(help="So many test users, drawn by seed; 0: all.", min=0)] = 0,
    formats: Annotated[str, typer.Option(help="Comma list of npz, safetensors, onnx.")] = "npz",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Export a run in every precision and measure what each is worth to the data set's test users."""
    with plain_errors():
        from fastpfrec_flwr.recommend.losses import export_losses

        rows = export_losses(run, data_dir, users, [each.strip() for each in formats.split(",") if each.strip()])
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from fastpfrec_flwr.console import plain_console

    table = Table("export", "MB", "HR@10", "NDCG@10", "HR@20", "NDCG@20", "same top 10", "ms a list", title=run.name)
    for row in rows:
        table.add_row(
            row["name"] + ("" if row["fitted"] else ", no fit"), f"{row['bytes'] / 1e6:.2f}",
            *(f"{row[key]:.4f}" for key in ("hit_ratio_micro@10", "ndcg@10", "hit_ratio_micro@20", "ndcg@20")),
            f"{row['overlap']:.4f}", f"{row['milliseconds']:.2f}",
        )  # fmt: skip
    plain_console().print(table)


def serve(
    model: Model,
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8321,
    host: Annotated[
        str, typer.Option(help="Whom to listen to; histories are private, so this machine only.")
    ] = "127.0.0.1",
    catalogue: CatalogueFile = None,
) -> None:
    """Answer POST /recommend {"items": [...], "k": 10} until Ctrl-C: the same API behind HTTP."""
    with plain_errors():
        from fastpfrec_flwr.recommend import Recommender
        from fastpfrec_flwr.recommend.serving import build_server

        server = build_server(Recommender.load(model, catalogue), host, port)
    typer.echo(f"listening on http://{host}:{server.server_address[1]}/recommend")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("stopped")
    finally:
        server.server_close()
