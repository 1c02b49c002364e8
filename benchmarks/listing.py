"""How long a list takes: `python -m benchmarks.listing [--items 40981] [--dim 64] [--lists 200]`.

An exported model with a table of random rows, opened as a device opens it (`Recommender.load`), asked for ten items for histories
of several lengths with the vector fitted on the spot. Each list has a history of its own. What the values are changes no work.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.model.linear import LinearForm
from fastpfrec_flwr.recommend import LocalModel, Recommender
from fastpfrec_flwr.recommend.export import export_model

# The default recipe's form: c_p, c_g, a, dot products, no popularity.
_FORM = LinearForm(0.25, 0.75, 1.0, False, 0.0)


def main() -> None:
    """Print a line for each length of history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=40_981, help="as many as gowalla-1m has")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lists", type=int, default=200)
    options = parser.parse_args()
    generator = np.random.default_rng(1)
    ids = tuple(f"item-{n}" for n in range(options.items))
    table = generator.normal(0, 0.1, (options.items, options.dim)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        export_model(LocalModel(table, _FORM, Catalogue(ids)), path)
        began = time.perf_counter()
        recommender = Recommender.load(path)
        recommender.recommend(ids[:2])  # the first also weighs the rows
        print(f"{options.items} items, {options.dim} dimensions; loaded in {time.perf_counter() - began:.2f} s")
    print(f"{'history':>8}{'median ms':>11}{'p95 ms':>8}{'CPU ms':>8}")
    for length in (1, 27, 200, 1000):
        histories = [generator.choice(options.items, length, replace=False) for _ in range(options.lists)]
        wall, cpu = np.array([_seconds(recommender, [ids[row] for row in history]) for history in histories]).T * 1e3
        print(f"{length:8}{np.median(wall):11.1f}{np.percentile(wall, 95):8.1f}{np.median(cpu):8.1f}")


def _seconds(recommender: Recommender, history: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of a list."""
    wall, cpu = time.perf_counter(), time.thread_time()
    assert len(recommender.recommend(history, 10).items) == 10
    return time.perf_counter() - wall, time.thread_time() - cpu


if __name__ == "__main__":
    main()
