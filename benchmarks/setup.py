"""Configurations and trainings to measure."""

from __future__ import annotations

import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import RunConfig, default_values, parse_run_config
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.nodes import discover
from fastpfrec_flwr.server.steps import ServerState, initial_table
from fastpfrec_flwr.simulation.grid import InProcessGrid

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 3  # rounds before those that are measured


def configuration(data_set: str, data_dir: str, **changes: Any) -> RunConfig:
    """The shipped configuration of a data set with changes (keys with `_` for `-`)."""
    conf = ROOT / "conf" / f"{data_set}.toml"
    shipped = tomllib.loads(conf.read_text(encoding="utf-8")) if conf.is_file() else {"data-set": data_set}
    own = {key.replace("_", "-"): value for key, value in changes.items()}
    return parse_run_config({**default_values(ROOT / "pyproject.toml"), **shipped, "data-dir": data_dir, **own})


@contextmanager
def training(config: RunConfig, super_nodes: int) -> Iterator[tuple[Any, Grid]]:
    """A strategy and a grid in this process, ready for round 1."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as state_dir:
        values = {**config.to_flat_dict(), "state-dir": state_dir}
        threads = available_threads(config.threads)
        grid = InProcessGrid(client_app, super_nodes, values, threads=threads)
        strategy = build_strategy(config, None, threads)
        nodes = discover(grid, strategy.order(0), 0.0, 600.0)
        strategy.attach(nodes, f"bench{time.monotonic_ns()}")
        table = initial_table(nodes.descriptions[0].num_items, config.embedding_dim, config)
        strategy.begin("train", ServerState.start(build_layout(config).start(table, config.seed)))
        yield strategy, grid
