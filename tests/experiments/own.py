"""A user's own suite, small enough for tests, and ways to change it."""

import json
import tomllib
from pathlib import Path

from fastpfrec_flwr.experiments.suite import Suite, parse_suite

MINE = """
name = "mine"
title = "False items"
question = "What hiding among false items costs"
protocol = "each user's items cut at random, full ranking, HR = hits / all test items"
metrics = ["hit_ratio_micro@20", "ndcg@20"]
reference = "none"
data-sets = ["synthetic"]
seeds = [1, 2]

[base]
num-rounds = 6
clients-per-round = 60
num-negatives = 8
num-trusted-nodes = 2
embedding-dim = 8
evaluate-every = 3

[[variants]]
name = "none"
overrides = { perturbation = "none" }

[[variants]]
name = "10 % false"

[[variants]]
name = "ItemKNN"
kind = "central"
model = "item-knn"

[[paper]]
where = "Table 1"
columns = ["variant", "data-set", "hit_ratio_micro", "ndcg"]
rows = [["none", "synthetic", 0.5, 0.25]]

[quick]
data-sets = ["synthetic"]
seeds = [1]
overrides = { num-rounds = 2, evaluate-every = 1 }
"""


def write(folder: Path, text: str = MINE) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def mine(change=lambda values: None) -> Suite:
    """The suite, its values changed."""
    values = tomllib.loads(MINE)
    change(values)
    return parse_suite(values, "mine.toml")


def record_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "run.json").read_text())
