"""The contract of a federated model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.clientapp import ClientApp

from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.client.build import build_client
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig, default_values, parse_run_config
from fastpfrec_flwr.data import Shard, ShardRows
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.run_folder import choose_run_folder
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.testing.runs import LEARNT, SETTINGS, OneBadUpload, run_once


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

    first = run_once(values, build, honest_client_app, 1)
    again = run_once(values, build, honest_client_app, 3)
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
    attacked = run_once(values, build, cast(ClientApp, OneBadUpload())) if sends else first
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
