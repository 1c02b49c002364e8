"""The contract of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.config import RunConfig, default_values
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.foreign import ForeignStrategy
from fastpfrec_flwr.server.run_folder import choose_run_folder
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.testing.runs import ITEMS, LEARNT, SETTINGS, OneBadUpload, run_once


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
    first, again = (run_once(values, build, honest_client_app) for _ in range(2))
    attacked = run_once(values, build, cast(ClientApp, OneBadUpload()))
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
