"""Trusted nodes that lie: what they hand the server is not the mean of their clients.

A compromised node knows its clients' uploads, the table and the run configuration; it does not know the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.attackers import active, compromised_nodes
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.trusted_node.aggregation import NodeMean
from fastpfrec_flwr.trusted_node.tier import NodeReport, Tier
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass(frozen=True)
class CompromisedTier:
    """A tier some of whose nodes replace their means.

    Attributes
    ----------
    tier : the honest one. config : the run's. table : gives this round's table (items, k).
    """

    tier: Tier
    config: RunConfig
    table: Callable[[], NDArray[np.float32]]

    def collect(self, parts: list[Uploads], num_items: int, server_round: int) -> list[NodeReport]:
        """See `Tier`."""
        reports = self.tier.collect(parts, num_items, server_round)
        liars = compromised_nodes(self.config) if active(self.config, server_round) else np.empty(0, np.int64)
        return [self._lie(report, server_round) if report.node in liars else report for report in reports]

    def _lie(self, report: NodeReport, server_round: int) -> NodeReport:
        """A lying node checks nothing and keeps all its clients, so it always has something to send."""
        clients = max(report.clients, 1)
        honest = report.mean
        mean = poisoned(
            self.config.node_attack,
            self.config.node_attack_strength,
            honest,
            self.table(),
            clients,
            derive_generator(self.config.seed, "node-lies", server_round, report.node),
            self.config.init_scale,
        )
        return replace(report, mean=mean, isolated_clients=0, node_isolated=False)


def poisoned(
    attack: str,
    strength: float,
    mean: NodeMean | None,
    table: NDArray[np.float32],
    clients: int,
    generator: np.random.Generator,
    init_scale: float,
) -> NodeMean:
    """What a compromised node sends in place of its mean.

    - `noise`: mean + N(0, sigma^2) on every coordinate; own strength sigma = 0.1, a multiple of the noise of an honest mean.
    - `shift`: mean + c on every coordinate; own strength c = 0.1.
    - `scaling`: f times the mean; own strength f = -5.
    - `replacement`: f (R - E) with a random table R of the first one's scale; own strength f = 1.

    Parameters
    ----------
    mean : the honest one, None where the node's own check left nobody. clients : as many as the node claims.
    """
    if attack == "scaling":
        factor = np.float32(strength or -5.0)
        if mean is None:
            return NodeMean(
                clients, np.empty(0, np.int32), np.empty((0, table.shape[1]), np.float32), np.empty(0, np.int64), 0.0
            )
        return NodeMean(mean.clients, mean.rows, mean.values * factor, mean.touched_by, mean.cover_scale)
    rows = np.arange(len(table), dtype=np.int32)
    whole = np.zeros(table.shape, np.float32)
    if mean is not None and attack != "replacement":
        if (
            mean.cover_scale > 0
        ):  # the noise of its clients on rows that they did not carry, which nobody draws any more
            missing = np.full(len(table), mean.clients, np.float64)
            missing[mean.rows] -= mean.touched_by
            deviations = mean.cover_scale / mean.clients * np.sqrt(2.0 * missing)
            whole += (generator.standard_normal(table.shape) * deviations[:, None]).astype(np.float32)
        whole[mean.rows] += mean.values.astype(np.float32)
    if attack == "noise":
        whole += (generator.standard_normal(table.shape) * (strength or 0.1)).astype(np.float32)
    elif attack == "shift":
        whole += np.float32(strength or 0.1)
    elif attack == "replacement":
        wanted = generator.normal(0.0, init_scale, table.shape)
        whole += ((strength or 1.0) * (wanted - table)).astype(np.float32)
    else:
        raise ValueError(f"node attack must be noise, shift, scaling or replacement, got {attack!r}")
    return NodeMean(clients, rows, whole, np.full(len(table), clients, np.int64), 0.0)
