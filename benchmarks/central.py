"""Central LightGCN in training, to hold a federated round against."""

from __future__ import annotations

from dataclasses import replace

from fastpfrec_flwr.baselines.central import history_matrix
from fastpfrec_flwr.baselines.central_graph import Training
from fastpfrec_flwr.baselines.central_settings import graph_settings
from fastpfrec_flwr.client.build import build_device
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import prepare
from fastpfrec_flwr.data.preparation import split_settings
from fastpfrec_flwr.experiments.recipes import central_values


def lightgcn(config: RunConfig, batch: int) -> Training:
    """LightGCN on a configuration's data; with `batch`, in steps of so many pairs."""
    split = prepare(config.data_set, config.data_dir or None, split_settings(config)).load()
    pairs = history_matrix(split, "validation")
    chosen = central_values("lightgcn", config.data_set)
    settings = graph_settings("lightgcn", chosen, config.seed, build_device(config.device))
    batches = max(1, round(pairs.nnz / batch)) if batch else settings.batches
    return Training(pairs, "lightgcn", replace(settings, batches=batches))
