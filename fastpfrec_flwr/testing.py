"""Contracts for what others plug in: strategies that aggregate for our clients, and models that train on them.

Run the one that fits on your own before you trust a figure.

from fastpfrec_flwr.testing import check_model, check_strategy

def test_my_strategy():
    check_strategy("mypackage.module:MyStrategy", options="eta=0.1")

def test_my_model():
    check_model("mypackage.module:MyModel")
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
from fastpfrec_flwr.client.build import build_client
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig, default_values, parse_run_config
from fastpfrec_flwr.data import Shard, ShardRows
from fastpfrec_flwr.messages import Order, encode_array
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.foreign import ForeignStrategy
from fastpfrec_flwr.server.run_folder import choose_run_folder
from fastpfrec_flwr.server.uploading import UploadStrategy
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


class ModelContractError(AssertionError):
    """A model broke the contract; the text says which part."""


@dataclass(frozen=True)
class ModelReport:
    """What a model came to in the runs of the contract.

    Attributes
    ----------
    ndcg : test NDCG@20. refused : uploads refused in the run with bad ones. sends : whether anything leaves its clients.
    """

    ndcg: float
    refused: int
    sends: bool


def check_model(model: str, learns: bool = True, settings: Mapping[str, Any] | None = None) -> ModelReport:
    """Run a federated model on small data, in this process, and see that it

    - learns: test NDCG@20 above twice that of random lists;
    - is isolated: with other users' rows replaced by rubbish, a SuperNode uploads and keeps the same, bit for bit;
    - is deterministic: the same seed gives the same table on one SuperNode and on three, to the last bit;
    - survives refused uploads: with one bad upload in every reply it goes on without them, and they are counted.

    Parameters
    ----------
    model : as the run-config key `model`. learns : False for one that is not meant to (local-only training).
    settings : more run-config keys.

    Raises
    ------
    ModelContractError naming the broken part. Errors of the model itself come through as they are.
    """
    values = {**default_values(), **SETTINGS, "model": model, **(settings or {})}

    def build(config: RunConfig) -> UploadStrategy:
        return build_strategy(config, choose_run_folder(config, "contract"))

    first = _run(values, build, honest_client_app, 1)
    again = _run(values, build, honest_client_app, 3)
    sends = first.uploaded > 0
    for phase in ("train", "refit"):
        if _uploads_of_a_third(values, phase, None) != _uploads_of_a_third(
            values, phase, (-(2**31), 2**31 - 1, -1, 0, 7)
        ):
            raise ModelContractError(
                f"is isolated: in phase {phase}, what a SuperNode uploads or keeps depends on rows of users that it does not hold"
            )
    if first.table.tobytes() != again.table.tobytes():
        raise ModelContractError(
            "is deterministic: one seed ended in different tables on one SuperNode and on three; draw by user and round "
            "(`Node._keys`), and let no user's result depend on who else is in the cohort"
        )
    attacked = _run(values, build, cast(ClientApp, _OneBadUpload())) if sends else first
    if sends and attacked.refused < values["num-rounds"]:
        raise ModelContractError(f"survives refused uploads: {attacked.refused} refused, one a reply was sent")
    if not all(np.isfinite(run.table).all() for run in (first, attacked)):
        raise ModelContractError("survives refused uploads: the table is not finite")
    if learns and min(first.ndcg, attacked.ndcg) < LEARNT:
        raise ModelContractError(
            f"learns: test NDCG@20 is {first.ndcg:.3f} ({attacked.ndcg:.3f} with refused uploads) after {values['num-rounds']} "
            f"rounds, wanted {LEARNT}; random lists reach 0.05"
        )
    return ModelReport(first.ndcg, attacked.refused, sends)


_CONTRACT_USERS, _CONTRACT_ITEMS = 30, 80


def _uploads_of_a_third(values: Mapping[str, Any], phase: str, poison: tuple[int, ...] | None) -> list[bytes]:
    """All that the first of three SuperNodes uploads and keeps in three rounds.

    Parameters
    ----------
    poison : what stands in the place of the other users' items; None leaves them.
    """
    config = parse_run_config({**values, "clients-per-round": 20, "num-rounds": max(values["pretrain-rounds"], 2) + 1})
    generator = np.random.default_rng(3)
    lists = [
        generator.choice(_CONTRACT_ITEMS, 3 * size, replace=False).astype(np.int32)
        for size in generator.integers(1, 7, _CONTRACT_USERS)
    ]
    users = np.arange(0, _CONTRACT_USERS, 3)
    parts = []
    for part in range(3):
        rows = [np.sort(row[part::3]) for row in lists]
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        starts = ends - np.array([len(row) for row in rows])
        items = np.concatenate(rows)
        if poison is not None:
            others = np.repeat(~np.isin(np.arange(_CONTRACT_USERS), users), ends - starts)
            items[others] = np.resize(np.array(poison, np.int32), others.sum())
        parts.append(ShardRows(items, starts[users], ends[users]))
    train, validation, test = parts
    shard = Shard(users, _CONTRACT_ITEMS, train, validation, test)
    layout = build_layout(config)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        state = ClientState(Path(folder, "state.sqlite3"), config.embedding_dim)
        node = build_client(config, shard, state, _CONTRACT_USERS)
        # The last round is one of another kind where the first ones pre-train.
        for server_round in (1, 2, config.num_rounds):
            item_rows = generator.normal(0, 0.3, (_CONTRACT_ITEMS, config.embedding_dim)).astype(np.float32)
            order = Order("contract", "contract", phase, server_round, 20)
            uploads, _ = node.train(layout.start(item_rows, server_round), order)
            found += [each.tobytes() for each in (uploads.nonces, uploads.pointer, uploads.rows, uploads.values)]
        blank = np.zeros((len(users), config.embedding_dim), np.float32)
        found.append(state.vectors(users, blank).tobytes())
        found += [each.values.tobytes() for each in state.deviations(users)]
        sums = node.evaluate(
            layout.start(item_rows, 1), Order("contract", "contract", phase, 0, 20), ["validation", "test"]
        )
        found.append(repr(sums).encode())
        state.close()
    return found


@dataclass(frozen=True)
class _Outcome:
    ndcg: float
    refused: int
    unmoved: int
    seconds: float
    table: NDArray[np.float32]
    uploaded: int


def _builder(
    strategy: str | Strategy | Callable[[], Strategy], options: str, values: dict[str, Any]
) -> Callable[[RunConfig], UploadStrategy]:
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


def _run(
    values: Mapping[str, Any],
    build: Callable[[RunConfig], UploadStrategy],
    client_app: ClientApp,
    supernodes: int = _SUPERNODES,
) -> _Outcome:
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
    return _Outcome(
        float(summary["test"]["ndcg@20"]),
        int(summary["clients"]["refused"]),
        int(summary["rounds_without_update"]),
        float(summary["seconds"]["total"]),
        table,
        int(summary["clients"]["trained"]),
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
