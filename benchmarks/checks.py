"""What one trusted node does in a round: distances, checks and mean, of simulated uploads and of those of real devices."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from benchmarks.output import Line, spread
from benchmarks.setup import configuration, training
from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.build import build_tier
from fastpfrec_flwr.trusted_node.alignment import NoCrossCheck
from fastpfrec_flwr.trusted_node.detection import NoCheck
from fastpfrec_flwr.trusted_node.distances import norms_of
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.tier import TrustedNodes
from fastpfrec_flwr.trusted_node.uploads import Uploads


def measured(data_set: str, data_dir: str, clients: int, alignment: float, repeats: int, processor: bool) -> list[Line]:
    """Milliseconds of the mean alone and with the checks, on one thread.

    Parameters
    ----------
    alignment : threshold of the check of directions. processor : its time instead of the clock's.
    """
    config = configuration(
        data_set, data_dir, clients_per_round=clients, num_trusted_nodes=1, threads=1, alignment_z_threshold=alignment
    )
    uploads, num_items = _uploads_of_a_round(config)
    tier = build_tier(config, 1)
    assert isinstance(tier, TrustedNodes)
    bare = replace(tier, check=NoCheck(), cross_check=NoCrossCheck())
    now = time.process_time if processor else time.perf_counter  # one thread, so both mean the same
    figures = []
    for kind, sent in (("simulated", uploads), ("as deployed", whole_tables(uploads, num_items))):
        for name, each in (("mean alone", bare), ("checks and mean", tier)):
            times = []
            for _ in range(repeats + 1):
                began = now()
                each.collect([sent], num_items, 1)
                times.append(now() - began)
            figures.append({"uploads": kind, "node does": name, **spread(times[1:])})
    return figures


def _uploads_of_a_round(config: RunConfig) -> tuple[Any, int]:
    """What round 1's clients send, and how many rows their table has."""
    clients, k = config.clients_per_round, config.embedding_dim
    with training(config, 1) as (strategy, grid):
        num_items = len(strategy.state.item_table)
        asked = strategy.configure_train(1, strategy.encode_model(), ConfigRecord(), grid)
        (reply,) = grid.send_and_receive(asked)
        decoded = messages.decode_uploads(reply, 1, clients, num_items, k, config.effective_noise_scale)
    return decoded.uploads, num_items


def whole_tables(uploads: Any, num_items: int) -> Any:
    """Simulated dense uploads as real devices send them: noise on every row."""
    clients = uploads.num_clients
    points = UploadPoints.gather([uploads], [np.arange(clients)], num_items, 1)
    values = np.concatenate([points.table(j) for j in range(clients)])
    rows = np.tile(np.arange(num_items, dtype=np.int32), clients)
    whole = Uploads(points.uploads.nonces, np.arange(clients + 1, dtype=np.int64) * num_items, rows, values, 0.0)
    return whole.with_norms(norms_of(values, whole.pointer, values.shape[1]))
