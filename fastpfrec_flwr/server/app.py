"""The ServerApp: parse, build, start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fastpfrec_flwr.config import ConfigError, RunConfig, parse_run_config
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.run_folder import RunFolder, choose_run_folder
from fastpfrec_flwr.server.uploading import UploadStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training and leave a run folder."""
    run_server(grid, context)


def run_server(
    grid: Grid, context: Context, build: Callable[[RunConfig, RunFolder, int], UploadStrategy] = build_strategy
) -> None:
    """What `main` does; `build` makes the strategy, for whoever wraps something around its parts."""
    keep_freed_memory()
    try:
        config = parse_run_config(context.run_config)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_safe(config.data_set)}-seed{config.seed}-{context.run_id % 10**6}"
        folder = choose_run_folder(config, name)
        context.state["run"] = ConfigRecord({"folder": str(folder.path)})
        strategy = build(config, folder, available_threads(config.threads))
        getattr(grid, "on_interrupt", _at_exit)(strategy.stop.set)
        strategy.start(grid)
    except (ConfigError, RunError) as error:
        if not getattr(grid, "in_process", False):
            _fail_in_plain_words(error)
        raise


def _safe(name: str) -> str:
    """The last part of a path, letters and digits only: it becomes part of a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name.rstrip("/").split("/")[-1])


def _fail_in_plain_words(error: Exception) -> None:
    """Say what is wrong once, as people read it. Flower marks a run as failed only for an exception, which it logs with its
    traceback; this process has nothing to do after it, so the traceback may be cut to the message."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.tracebacklimit = 0


def _at_exit(stop: Callable[[], None]) -> None:
    """`flwr stop` gives a ServerApp a few seconds. In a simulation the round that runs is over by then, and it ends after it with
    a summary; with real devices the round is cut off (`Training.run`)."""
    try:
        from flwr.supercore.exit import add_exit_handler
    except ImportError:  # not part of Flower's documented interface; without it the last checkpoint is what remains
        return
    add_exit_handler(stop)
