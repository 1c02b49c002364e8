"""What the devices of a federation hold: a catalogue, and histories of two tastes."""

from pathlib import Path

import numpy as np

from fastpfrec_flwr.catalogue import Catalogue

NUM_ITEMS = 60
ITEMS = [f"item-{i}" for i in reversed(range(NUM_ITEMS))]  # in an order that is not the sorted one


def write_catalogue(path: Path, items: list[str] = ITEMS) -> None:
    """The catalogue that everybody gets."""
    Catalogue(tuple(items), name="shop").save(path)


def write_history(path: Path, users: int, seed: int, begin: int = 0) -> None:
    """Interactions of some users with two tastes: the first half of the items, or the second."""
    generator = np.random.default_rng(seed)
    lines = ["user,item,timestamp"]
    for user in range(begin, begin + users):
        taste = user % 2 * NUM_ITEMS // 2
        items = taste + generator.choice(NUM_ITEMS // 2, 12, replace=False)
        lines += [f"person-{user},item-{item},{1_000_000 + n}" for n, item in enumerate(items)]
    path.write_text("\n".join(lines) + "\n")
