"""One run in this process, from run-config values to a run folder."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from fastpfrec_flwr.attacks.apps import client_app as default_client_app
from fastpfrec_flwr.attacks.server_app import server_app
from fastpfrec_flwr.client.opening import state_root
from fastpfrec_flwr.config import ConfigError, parse_run_config
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from fastpfrec_flwr.simulation.user_metrics import collect_user_metrics


def simulate(values: Mapping[str, Any], num_supernodes: int = 2, client_app: ClientApp = default_client_app) -> Path:
    """Drive the ServerApp and the ClientApp that `flwr run` drives, with the same figures bit for bit.

    Parameters
    ----------
    values : every run-config key, paths absolute. num_supernodes : simulated SuperNodes.
    client_app : another one than ours, for attacks and tests.

    Returns
    -------
    The run folder.

    Raises
    ------
    ConfigError, RunError with a message for the user.
    """
    if num_supernodes < 1:
        raise ConfigError(f"--num-supernodes must be >= 1, got {num_supernodes}")
    config = parse_run_config(values)
    threads = available_threads(config.threads)
    grid = InProcessGrid(client_app, num_supernodes, dict(values), threads=threads)
    with _interruptible(grid):
        state = run_in_process(server_app, grid, dict(values))
    folder = Path(str(state.config_records["run"]["folder"]))
    if config.user_metrics:
        collect_user_metrics(folder, state_root(config), num_supernodes)
    return folder


@contextmanager
def _interruptible(grid: InProcessGrid) -> Iterator[None]:
    """The first Ctrl-C ends the run after its round, with a summary; the second ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("\nending after this round; Ctrl-C again ends at once", file=sys.stderr, flush=True)
        grid.interrupt()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
