"""A reference that sees all interactions in one place, as a run of a study: the same split, the same metrics, the same files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastpfrec_flwr.baselines.central_models import central_lists
from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings, told
from fastpfrec_flwr.client.build import build_device
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.evaluation.metrics import metrics, per_user_metrics, sum_up
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.evaluation.user_metrics import UserMetrics
from fastpfrec_flwr.memory import keep_freed_memory
from fastpfrec_flwr.parallel import available_threads
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.summary import peak_rss_mb
from fastpfrec_flwr.simulation.user_metrics import FILE

_PARTS: tuple[Literal["validation", "test"], ...] = ("validation", "test")


def run_central(values: Mapping[str, Any], model: str, chosen: Mapping[str, Any] | None = None) -> Path:
    """Rank with one of `baselines.central_models.CENTRAL` and leave a run folder.

    Parameters
    ----------
    values : every run-config key; of them only those of the data, seed, device, threads and `output-dir`
        matter. chosen : of MF, LightGCN, SGL and XSimGCL the settings that are not the defaults.

    Returns
    -------
    The run folder.
    """
    keep_freed_memory()  # each step of a model asks for the same tables again
    config = parse_run_config(values)
    folder = RunFolder(Path(config.output_dir))
    began = time.monotonic()
    prepared = prepare_run(config)
    split = prepared.load()
    with _torch_threads(available_threads(config.threads)):
        lists = central_lists(model, split, config.seed, build_device(config.device), chosen)
    found: dict[str, dict[str, float]] = {}
    for part in _PARTS:
        per_user = per_user_metrics(lists.of[part], Rows.of_csr(split.test if part == "test" else split.validation))
        found[part] = metrics(sum_up(per_user))
        if part == "test":
            UserMetrics.of(np.arange(split.num_users, dtype=np.int64), per_user).save(folder.path / FILE)
    facts = {
        "name": prepared.name,
        "fingerprint": prepared.fingerprint,
        "users": split.num_users,
        "items": split.num_items,
        "report": prepared.report,
    }
    settings = told(graph_settings(model, chosen)) if model in KINDS else {}
    folder.write_config(config, {"model": model, "settings": settings, "data": facts})
    folder.start_metrics([])
    clients = dict.fromkeys(("trained", "refused", "isolated", "isolated_share", "isolated_nodes", "skipped"), 0)
    summary = {
        "data_set": config.data_set,
        "data_fingerprint": prepared.fingerprint,
        "seed": config.seed,
        "model": model,
        "rounds": lists.epochs,
        "best_round": lists.epochs,
        "chosen": lists.chosen,
        "refit": False,
        "stopped": False,
        "protocol": "train and validation of all users in one place; test masks both",
        **found,
        "seconds": {"total": time.monotonic() - began, "round_median": 0.0},
        "peak_rss_mb": peak_rss_mb(),
        "clients": {**clients, "reasons": {}},
        "rounds_without_update": 0,
        "bytes": {"down": 0, "up": 0, "nodes_up": 0},
        "privacy": None,
        "split": asdict(split.split_settings),
    }
    folder.write_summary(summary)
    test = found["test"]
    folder.log(f"{model}, {prepared.name}: test NDCG@20 {test['ndcg@20']:.4f}, HR@20 {test['hit_ratio_micro@20']:.4f}")
    return folder.path


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Torch with so many threads for a while; other runs stand beside this one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
