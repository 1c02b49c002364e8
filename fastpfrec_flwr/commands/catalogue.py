"""`fastpfrec catalogue make | show | extend | fill`. Everything heavy is imported inside, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors

app = typer.Typer(no_args_is_help=True, help="The items that server and devices agree on: ids, rows, titles, versions.")

File = Annotated[Path, typer.Argument(help="A catalogue file.")]
Titles = Annotated[
    Path | None, typer.Option(help="Titles: MovieLens' u.item, RecBole's .item, or a table of id and title.")
]
Reserve = Annotated[int, typer.Option(help="Rows for items to come.", min=0)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")]


@app.command()
def make(
    name_or_path: Annotated[str, typer.Argument(help="A data set, named or a path; or a text file of ids with --ids.")],
    output: Output = Path("catalogue.json"),
    ids: Annotated[
        bool, typer.Option("--ids", help="The path is a list of item ids, one a line, in row order.")
    ] = False,
    titles: Titles = None,
    fetch_titles: Annotated[
        bool, typer.Option("--fetch-titles", help="Fetch the titles of a named data set that has them (ml-100k).")
    ] = False,
    reserve: Reserve = 0,
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder that holds <data-set>/...")] = "",
    min_weight: Annotated[
        float, typer.Option(help="As in the run: items with a lower rating only do not count.")
    ] = 0.0,
) -> None:
    """Make a catalogue of the items of a data set, as a run with the default split has them, or of a list of ids."""
    with plain_errors():
        from fastpfrec_flwr.catalogue import Catalogue
        from fastpfrec_flwr.recommend.history import ids_of_text
        from fastpfrec_flwr.recommend.titles import read_titles, titles_of

        known = read_titles(titles) if titles is not None else {}
        if fetch_titles:
            from fastpfrec_flwr.data.fetching import fetch_titles as fetch

            known = titles_of(fetch(name_or_path), "the titles fetched")
        if ids:
            path = Path(name_or_path).expanduser()
            items, name = ids_of_text(_text(path), str(path)), path.stem
        else:
            from fastpfrec_flwr.config import default_values, parse_run_config
            from fastpfrec_flwr.data.preparation import prepare, split_settings

            config = parse_run_config({**default_values(), "data-set": name_or_path, "min-weight": min_weight})
            split = prepare(name_or_path, data_dir or None, split_settings(config)).load()
            items, name = split.item_ids.tolist(), split.name
        catalogue = Catalogue(tuple(items), reserve, 1, {i: known[i] for i in items if i in known}, name)
        _save(catalogue, output)


def _save(catalogue, path: Path) -> None:  # type: ignore[no-untyped-def]
    from fastpfrec_flwr.catalogue import CatalogueError

    try:
        catalogue.save(path)
    except OSError as error:
        raise CatalogueError(
            f"{path}: cannot be written ({error.strerror or error}); make its folder writable"
        ) from error
    facts = catalogue.facts()
    typer.echo(
        f"{path}: {catalogue.label}, {facts['items']} items, {facts['reserved']} rows reserved, {facts['titles']} titles"
    )


@app.command()
def show(file: File, item: Annotated[list[str] | None, typer.Option(help="Say the row of this item.")] = None) -> None:
    """Say what a catalogue holds; it is checked against its hash on the way."""
    with plain_errors():
        from fastpfrec_flwr.catalogue import Catalogue, CatalogueError

        catalogue = Catalogue.load(file)
        for key, value in catalogue.facts().items():
            typer.echo(f"{key}: {value}")
        for each in item or []:
            row = catalogue.row(each)
            if row is None:
                raise CatalogueError(f"item {each!r} is not in the catalogue; see `fastpfrec catalogue extend`")
            typer.echo(f"item {each}: row {row}" + (f", {catalogue.title(row)}" if catalogue.title(row) else ""))


@app.command()
def extend(
    file: File,
    items: Annotated[Path, typer.Option(help="Ids of the new items, one a line or JSON.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; empty: over the old one.")
    ] = None,
    titles: Titles = None,
    reserve: Annotated[int, typer.Option(help="Reserve so many rows more; changes the table's shape.", min=0)] = 0,
) -> None:
    """Give new items the reserved rows: the next version. No row moves."""
    with plain_errors():
        from fastpfrec_flwr.catalogue import Catalogue
        from fastpfrec_flwr.recommend.history import ids_of_text
        from fastpfrec_flwr.recommend.titles import read_titles

        new = ids_of_text(_text(items), str(items))
        old = Catalogue.load(file)
        known = read_titles(titles) if titles is not None else {}
        everything = {*old.ids, *new}
        _save(old.extended(new, {i: t for i, t in known.items() if i in everything}, reserve), output or file)


def _text(path: Path) -> str:
    from fastpfrec_flwr.catalogue import CatalogueError

    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: the ids cannot be read ({error}); give a text file, one id a line") from error


@app.command()
def fill(
    model: Annotated[Path, typer.Argument(help="A run folder or an exported model, of the version before.")],
    catalogue: Annotated[Path, typer.Option("--catalogue", help="The extended catalogue.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write (.npz).")],
    interactions: Annotated[
        Path | None,
        typer.Option(help="Who chose what, new items among it: their rows come from what was chosen with them."),
    ] = None,
) -> None:
    """Bring a model up to an extended catalogue without training: rows of new items from what they are chosen with."""
    with plain_errors():
        from fastpfrec_flwr.catalogue import Catalogue
        from fastpfrec_flwr.recommend.cold_start import filled
        from fastpfrec_flwr.recommend.errors import ModelError
        from fastpfrec_flwr.recommend.export import export_model
        from fastpfrec_flwr.recommend.history import read_histories
        from fastpfrec_flwr.recommend.loading import load_model
        from fastpfrec_flwr.recommend.model import LocalModel

        before = load_model(model)
        if not isinstance(before, LocalModel):
            raise ModelError(f"{model}: an ONNX file cannot be filled; give the run folder")
        histories = list(read_histories(interactions).values()) if interactions is not None else []
        after, users = filled(before, Catalogue.load(catalogue), histories)
        done = export_model(after, output)
    empty = sum(count == 0 for count in users.values())
    typer.echo(f"{len(users)} new items, {len(users) - empty} filled; {empty} that nobody has chosen yet stay at zero")
    typer.echo(f"{done.path}: {done.bytes:,} bytes, SHA-256 {done.sha256}")
