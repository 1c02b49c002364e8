"""Central LightGCN in training, to hold a federated round against."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from benchmarks.output import Line, spread
from benchmarks.setup import configuration, training
from fastpfrec_flwr.baselines.central import history_matrix
from fastpfrec_flwr.baselines.central_graph import Training
from fastpfrec_flwr.baselines.central_settings import graph_settings
from fastpfrec_flwr.client.build import build_device
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.experiments.recipes import central_values
from fastpfrec_flwr.parallel import available_threads


def lightgcn(config: RunConfig, batch: int) -> Training:
    """LightGCN on a configuration's data; with `batch`, in steps of so many pairs."""
    split = prepare_run(config).load()
    pairs = history_matrix(split, "validation")
    chosen = central_values("lightgcn", config.data_set)
    settings = graph_settings("lightgcn", chosen, config.seed, build_device(config.device))
    batches = max(1, round(pairs.nnz / batch)) if batch else settings.batches
    return Training(pairs, "lightgcn", replace(settings, batches=batches))


def measured(
    data_sets: list[str], data_dir: str, clients: int, repeats: int, batch: int, threads: int, processor: bool
) -> list[Line]:
    """Milliseconds of an epoch, of a round and of as many rounds as give every user a turn.

    Parameters
    ----------
    batch : see `lightgcn`. threads : 0 takes what the process was given. processor : its time instead of the clock's.
    """
    given = available_threads(threads)
    torch.set_num_threads(given)
    clock = time.process_time if processor else time.perf_counter
    figures = []
    for data_set in data_sets:
        config = configuration(data_set, data_dir, clients_per_round=clients, threads=given)
        epochs, rounds = [], []
        model = lightgcn(config, batch)
        with training(config, 2) as (strategy, grid):
            for number in range(1, repeats + 2):  # in turn: a slow moment of the machine hits both
                began = clock()
                model.run_epoch()
                middle = clock()
                strategy.run_round(grid, number)
                epochs.append(middle - began)
                rounds.append(clock() - middle)
        passes = [each * model.graph.num_users / clients for each in rounds]
        for kind, count, times in (
            ("central epoch", model.settings.batches, epochs),
            ("round", 1, rounds),
            ("rounds of all users", -(-model.graph.num_users // clients), passes),
        ):
            figures.append({"data_set": data_set, "kind": kind, "steps": count, **spread(times[1:])})
    return figures
