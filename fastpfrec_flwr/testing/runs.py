"""The small runs that the contracts look at."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.config import RunConfig, parse_run_config
from fastpfrec_flwr.messages import encode_array
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process

# 600 users, 400 items, four communities of taste; random lists reach NDCG@20 = 0.05, popularity 0.22.
SETTINGS = {
    "data-set": "synthetic", "embedding-dim": 16, "num-rounds": 12, "clients-per-round": 100, "num-negatives": 32,
    "num-trusted-nodes": 4, "evaluate-every": 6, "threads": 1,
}  # fmt: skip
ITEMS = 400
LEARNT = 0.10
SUPERNODES = 2


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes
    ----------
    ndcg : test NDCG@20. refused : uploads. unmoved : rounds that ended without a table. seconds : of the run.
    table : (rows, k) all shared rows at the end. uploaded : uploads that were taken.
    """

    ndcg: float
    refused: int
    unmoved: int
    seconds: float
    table: NDArray[np.float32]
    uploaded: int


def run_once(
    values: Mapping[str, Any],
    build: Callable[[RunConfig], UploadStrategy],
    client_app: ClientApp,
    supernodes: int = SUPERNODES,
) -> Outcome:
    """One run in a folder of its own that is gone afterwards; what it prints is kept back."""
    with tempfile.TemporaryDirectory() as folder:
        own = {**values, "output-dir": f"{folder}/run", "state-dir": f"{folder}/state"}
        server_app = ServerApp()

        @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
        def main(grid: Grid, context: Context) -> None:
            build(parse_run_config(context.run_config)).start(grid)

        with contextlib.redirect_stdout(io.StringIO()):
            run_in_process(server_app, InProcessGrid(client_app, supernodes, dict(own)), dict(own))
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        with np.load(Path(folder, "run", "item_table.npz")) as arrays:
            table = arrays["item_table"]
            if "shared_rows" in arrays:
                table = np.concatenate([table, arrays["shared_rows"]])
    return Outcome(
        float(summary["test"]["ndcg@20"]),
        int(summary["clients"]["refused"]),
        int(summary["rounds_without_update"]),
        float(summary["seconds"]["total"]),
        table,
        int(summary["clients"]["trained"]),
    )


class OneBadUpload:
    """Our ClientApp, but the first upload of each of its train replies has a value that is no number."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the honest ClientApp does, then spoil one upload."""
        reply = honest_client_app(message, context)
        if not reply.has_error() and "uploads" in reply.content:
            uploads = cast(ArrayRecord, reply.content["uploads"])
            values = uploads["values"].numpy().copy()
            if len(values):
                values[0, 0] = np.nan
                uploads["values"] = encode_array(values)
        return reply
