"""What newcomers get: `python -m benchmarks.newcomers users | items`.

`users`: a fifth of the users takes no part in the training. They are then recommended to from the first n items of theirs, with
a private vector fitted on the spot and without one, and their other items are the truth.

`items`: a twentieth of the items is unknown while the model is trained. Then their rows are left as drawn, filled from what they
are chosen with, trained alone on the devices, or trained with all others from the start, which is what they could be at best.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.__main__ import DataDir, Output
from benchmarks.setup import configuration
from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.console import plain_console
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.data.types import Split
from fastpfrec_flwr.evaluation.metrics import metrics, per_user_metrics, sum_up
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.recommend.cold_start import filled, grown
from fastpfrec_flwr.recommend.loading import load_run
from fastpfrec_flwr.recommend.model import LocalModel, best_rows

app = typer.Typer(add_completion=False, help=__doc__)
TOP = 20
Histories = Sequence[NDArray[np.int64]]


def known_pairs(split: Split) -> list[NDArray[np.int64]]:
    """Each user's items of train, validation and test: here who is asked decides what is held back, not the split."""
    parts = (split.train, split.validation, split.test)
    return [np.concatenate([part.row(u) for part in parts]).astype(np.int64) for u in range(split.num_users)]


def write(path: Path, ids: list[str], histories: Histories, users: NDArray[np.int64]) -> Path:
    """Lines `user item` of some users."""
    lines = [f"u{u},{ids[row]}\n" for u in users.tolist() for row in histories[u].tolist()]
    path.write_text("user,item\n" + "".join(lines))
    return path


def train(config: RunConfig, folder: Path, data: Path, catalogue: Path, **changes: Any) -> LocalModel:
    """A run on a file of one's own under a catalogue."""
    from fastpfrec_flwr.simulation.run import simulate

    values = {
        **config.to_flat_dict(), "data-set": str(data), "data-dir": "", "catalogue": str(catalogue), "split": "random",
        "test-fraction": 0.01, "validation-fraction": 0.01, "refit": False, "evaluate-every": 0, "checkpoint-every": 0,
        "output-dir": str(folder), "state-dir": str(folder / "state"), **changes,
    }  # fmt: skip
    simulate(values, 1)
    return load_run(folder)


def figures(lists: NDArray[np.int32], truth: Histories) -> dict[str, float]:
    """Metrics of lists against each user's truth."""
    ends = np.cumsum([len(each) for each in truth], dtype=np.int64)
    rows = Rows(np.concatenate(truth).astype(np.int32), ends - np.array([len(each) for each in truth]), ends)
    found = metrics(sum_up(per_user_metrics(lists, rows)))
    return {name: found[name] for name in ("ndcg@10", "ndcg@20", "hit_ratio_micro@20", "hit_rate_user@20")}


def ranked(
    model: LocalModel, histories: Histories, choices: NDArray[np.bool_] | None = None, fit: bool = True
) -> NDArray[np.int32]:
    """(users, 20) rows; `choices` ((rows,) True) are all there is to rank, None for everything; `fit` a private vector first."""
    lists = np.full((len(histories), TOP), -1, np.int32)
    for place, history in enumerate(histories):
        scores = model.scores(history, model.fitted(history) if fit else None)
        if choices is not None:
            scores[~choices] = -np.inf
        best = best_rows(scores, TOP)
        lists[place, : len(best)] = best
    return lists


def by_popularity(counts: NDArray[np.int64], histories: Histories) -> NDArray[np.int32]:
    """(users, 20) most chosen items that the user has not."""
    lists = np.empty((len(histories), TOP), np.int32)
    for place, history in enumerate(histories):
        scores = counts.astype(np.float32)
        scores[history] = -np.inf
        lists[place] = best_rows(scores, TOP)
    return lists


@app.command()
def users(
    data_set: str = "gowalla-100k",
    data_dir: DataDir = "",
    rounds: int = 100,
    seed: int = 1,
    threads: int = 1,
    output: Output = "",
) -> None:
    """New users, by the number of items that are known of them."""
    config = configuration(data_set, data_dir, num_rounds=rounds, seed=seed, threads=threads)
    split = prepare_run(config).load()
    ids, pairs = split.item_ids.tolist(), known_pairs(split)
    generator = derive_generator(seed, "new users")
    order = generator.permutation(split.num_users)
    held, kept = order[: split.num_users // 5], np.sort(order[split.num_users // 5 :])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Catalogue(tuple(ids)).save(folder / "c.json")
        model = train(config, folder / "run", write(folder / "kept.csv", ids, pairs, kept), folder / "c.json")
    counts = np.bincount(np.concatenate([pairs[u] for u in kept.tolist()]), minlength=len(ids))
    # The same users at every length: those with ten items left when sixteen are known.
    asked = [u for u in held.tolist() if len(pairs[u]) >= 26]
    shuffled = [generator.permutation(pairs[u]) for u in asked]
    rows: list[dict[str, Any]] = []
    for known in (0, 1, 2, 4, 8, 16):
        history = [each[:known] for each in shuffled]
        # The truth is the same too: what comes after the sixteenth.
        truth = [np.sort(each[16:]) for each in shuffled]
        rows.append(
            {"items known": known, "by": "model", "users": len(asked), **figures(ranked(model, history), truth)}
        )
        if known:
            plain = figures(ranked(model, history, fit=False), truth)
            rows.append({"items known": known, "by": "model, no vector fitted", "users": len(asked), **plain})
        if known in (0, 16):
            popular = figures(by_popularity(counts, history), truth)
            rows.append({"items known": known, "by": "popularity", "users": len(asked), **popular})
    show(f"{data_set}: {len(asked)} users that took no part in training", rows, output)


@app.command()
def items(
    data_set: str = "gowalla-100k",
    data_dir: DataDir = "",
    rounds: int = 100,
    new_rounds: Annotated[int, typer.Option(help="Rounds in which new rows are trained alone.")] = 30,
    seed: int = 1,
    threads: int = 1,
    output: Output = "",
) -> None:
    """New items: those of the held-back users' items that are new, ranked among everything and among the new ones alone."""
    config = configuration(data_set, data_dir, num_rounds=rounds, seed=seed, threads=threads)
    split = prepare_run(config).load()
    generator = derive_generator(seed, "new items")
    count = split.num_items // 20
    # New items stand at the end of the catalogue.
    order = generator.permutation(split.num_items)
    place = np.argsort(order)
    ids = [split.item_ids[i] for i in order.tolist()]
    pairs = [np.sort(place[row]) for row in known_pairs(split)]
    known = split.num_items - count
    drawn = generator.permutation(split.num_users)
    held, kept = drawn[: split.num_users // 5], np.sort(drawn[split.num_users // 5 :])
    old = [row[row < known] for row in pairs]
    asked = [u for u in held.tolist() if len(old[u]) and len(old[u]) < len(pairs[u])]
    history, truth = [old[u] for u in asked], [pairs[u][pairs[u] >= known] for u in asked]
    is_new = np.arange(split.num_items) >= known
    models: dict[str, LocalModel] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = Catalogue(tuple(ids[:known]), count)
        second = first.extended(ids[known:])
        first.save(folder / "1.json")
        second.save(folder / "2.json")
        before = write(folder / "before.csv", ids, old, kept)
        after = write(folder / "after.csv", ids, pairs, kept)
        base = train(config, folder / "base", before, folder / "1.json")
        drawn_rows = grown(base, second)
        drawn_rows.table[known:] = base.table[known:]
        models["rows as drawn"] = drawn_rows
        panel = [[ids[row] for row in pairs[u].tolist()] for u in kept.tolist()]
        models["filled from what they are chosen with"], _ = filled(base, second, panel)
        models[f"trained alone, {new_rounds} rounds"] = train(
            config, folder / "alone", after, folder / "2.json", **{
                "initial-model": str(folder / "base"), "train-items": "new", "num-rounds": new_rounds,
            },
        )  # fmt: skip
        models[f"all trained from the start, {rounds} rounds"] = train(config, folder / "all", after, folder / "2.json")
    rows = []
    for title, model in models.items():
        rows.append(
            {"new rows": title, "among": "all items", "users": len(asked), **figures(ranked(model, history), truth)}
        )
        among = figures(ranked(model, history, is_new), truth)
        rows.append({"new rows": title, "among": "new items", "users": len(asked), **among})
    show(f"{data_set}: {count} of {split.num_items} items new, {len(asked)} users", rows, output)


def show(title: str, rows: list[dict[str, Any]], output: str) -> None:
    """Print the rows, and keep them."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    plain_console().print(table)
    if output:
        Path(output).write_text(json.dumps({"title": title, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    app()
