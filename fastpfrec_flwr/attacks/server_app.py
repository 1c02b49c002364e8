"""The ServerApp of a run: where somebody lies, with a measurement of what the checks made of it."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fastpfrec_flwr.server.app import run_server
from fastpfrec_flwr.server.build import build_strategy

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training."""
    config = context.run_config
    if config.get("attack", "none") == "none" and config.get("node-attack", "none") == "none":
        run_server(grid, context, build_strategy)
        return
    from fastpfrec_flwr.attacks.measuring import build_measured_strategy

    run_server(grid, context, build_measured_strategy)
