"""A contract for strategies: what anything must do that aggregates for our clients. Run it on your own before you trust a figure.

from fastpfrec_flwr.testing import check_strategy

def test_my_strategy():
    check_strategy("mypackage.module:MyStrategy", options="eta=0.1")
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.config import RunConfig, default_values, parse_run_config
from fastpfrec_flwr.messages import encode_array
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.foreign import ForeignStrategy
from fastpfrec_flwr.server.run_folder import choose_run_folder
from fastpfrec_flwr.server.strategy import FastPFRec
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process

# 600 users, 400 items, four communities of taste; random lists reach NDCG@20 = 0.05, popularity 0.22.
SETTINGS = {
    "data-set": "synthetic", "embedding-dim": 16, "num-rounds": 12, "clients-per-round": 100, "num-negatives": 32,
    "num-trusted-nodes": 4, "evaluate-every": 6, "threads": 1,
}  # fmt: skip
ITEMS = 400
LEARNT = 0.10
_SUPERNODES = 2


class StrategyContractError(AssertionError):
    """A strategy broke the contract; the text says which part."""


@dataclass(frozen=True)
class StrategyReport:
    """What a strategy came to in the runs of the contract.

    Attributes
    ----------
    ndcg : test NDCG@20 after the last round. refused : uploads refused in the run with bad ones. seconds : of one run.
    table : (items, k) item table at the end.
    """

    ndcg: float
    refused: int
    seconds: float
    table: NDArray[np.float32]


def check_strategy(
    strategy: str | Strategy | Callable[[], Strategy] = "fastpfrec",
    options: str = "",
    learns: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> StrategyReport:
    """Run a strategy three times on a small synthetic data set, in this process, and see that it

    - learns: test NDCG@20 above twice that of random lists;
    - keeps shapes: ends with a finite float32 table of the catalogue's size, other than the one that it began with;
    - survives refused uploads: with one bad upload in every round it goes on without them, and they are counted;
    - is deterministic: the same seed gives the same table, to the last bit.

    Parameters
    ----------
    strategy : as the run-config key `strategy`, or an object (copied for each run), or what makes one.
    options : as the run-config key `strategy-options`, for a name.
    learns : False where learning in so few rounds is not to be asked (Krum keeps one upload of a round).
    settings : more run-config keys.

    Raises
    ------
    StrategyContractError naming the broken part. Errors of the strategy itself come through as they are.
    """
    values = {**default_values(), **SETTINGS, **(settings or {})}
    build = _builder(strategy, options, values)
    first, again = (_run(values, build, honest_client_app) for _ in range(2))
    attacked = _run(values, build, cast(ClientApp, _OneBadUpload()))
    shape = (ITEMS, values["embedding-dim"])
    table = first.table
    if table.shape != shape or table.dtype != np.float32 or not np.isfinite(table).all():
        raise StrategyContractError(f"keeps shapes: wanted finite float32 {shape}, got {table.dtype} {table.shape}")
    if first.unmoved == values["num-rounds"]:
        raise StrategyContractError("keeps shapes: the model never moved; every round ended without a table")
    if table.tobytes() != again.table.tobytes():
        raise StrategyContractError(
            "is deterministic: two runs with one seed ended in different tables; draw from numpy.random.default_rng(seed), not "
            "from a global generator, and do not depend on time or on the order of sets"
        )
    if attacked.refused < values["num-rounds"]:
        raise StrategyContractError(f"survives refused uploads: {attacked.refused} refused, one a round was sent")
    if not np.isfinite(attacked.table).all() or attacked.unmoved == values["num-rounds"]:
        raise StrategyContractError("survives refused uploads: with one bad upload a round the model did not move")
    if learns and min(first.ndcg, attacked.ndcg) < LEARNT:
        raise StrategyContractError(
            f"learns: test NDCG@20 is {first.ndcg:.3f} ({attacked.ndcg:.3f} with refused uploads) after {values['num-rounds']} "
            f"rounds, wanted {LEARNT}; random lists reach 0.05"
        )
    return StrategyReport(first.ndcg, attacked.refused, first.seconds, table)


@dataclass(frozen=True)
class _Outcome:
    ndcg: float
    refused: int
    unmoved: int
    seconds: float
    table: NDArray[np.float32]


def _builder(
    strategy: str | Strategy | Callable[[], Strategy], options: str, values: dict[str, Any]
) -> Callable[[RunConfig], FastPFRec]:
    """What makes our side of the strategy; `values` gets the keys that go with it."""
    if isinstance(strategy, str):
        values.update({"strategy": strategy, "strategy-options": options})
        return lambda config: build_strategy(config, choose_run_folder(config, "contract"))
    if options:
        raise ValueError("options go with a strategy's name; an object has its own already")
    values["strategy"] = "contract:Given"
    name = type(strategy).__name__ if isinstance(strategy, Strategy) else getattr(strategy, "__name__", "strategy")

    def make() -> Strategy:
        return deepcopy(strategy) if isinstance(strategy, Strategy) else strategy()

    return lambda config: ForeignStrategy(config, make, name, choose_run_folder(config, "contract"))


def _run(values: Mapping[str, Any], build: Callable[[RunConfig], FastPFRec], client_app: ClientApp) -> _Outcome:
    """One run in a folder of its own that is gone afterwards; what it prints is kept back."""
    with tempfile.TemporaryDirectory() as folder:
        own = {**values, "output-dir": f"{folder}/run", "state-dir": f"{folder}/state"}
        server_app = ServerApp()

        @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
        def main(grid: Grid, context: Context) -> None:
            build(parse_run_config(context.run_config)).start(grid)

        with contextlib.redirect_stdout(io.StringIO()):
            run_in_process(server_app, InProcessGrid(client_app, _SUPERNODES, dict(own)), dict(own))
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        with np.load(Path(folder, "run", "item_table.npz")) as arrays:
            table = arrays["item_table"]
    return _Outcome(
        float(summary["test"]["ndcg@20"]),
        int(summary["clients"]["refused"]),
        int(summary["rounds_without_update"]),
        float(summary["seconds"]["total"]),
        table,
    )


class _OneBadUpload:
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
