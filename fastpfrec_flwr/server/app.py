"""The ServerApp: parse, build, start."""

from __future__ import annotations

import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.run_folder import choose_run_folder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training and leave a run folder."""
    config = parse_run_config(context.run_config)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_safe(config.data_set)}-seed{config.seed}-{context.run_id % 10**6}"
    folder = choose_run_folder(config, name)
    strategy = build_strategy(config, folder, available_threads(config.threads))
    _stop_gracefully(strategy.stop.set)
    strategy.start(grid)


def _safe(name: str) -> str:
    """The last part of a path, letters and digits only: it becomes part of a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name.rstrip("/").split("/")[-1])


def _stop_gracefully(stop) -> None:  # type: ignore[no-untyped-def]
    """`flwr stop` gives a ServerApp a few seconds: end after the round that runs and write the summary."""
    try:
        from flwr.supercore.exit import add_exit_handler
    except ImportError:  # not part of Flower's documented interface; without it the last checkpoint is what remains
        return
    add_exit_handler(stop)
