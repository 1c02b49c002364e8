"""From a configuration to its objects: an ablation is another object here, never an `if` in the middle of the algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.aggregators import AcrossNodes, NodeAverage, ServerAggregator
from fastpfrec_flwr.server.foreign import ForeignStrategy
from fastpfrec_flwr.server.foreign_names import load_strategy
from fastpfrec_flwr.server.posterior import PosteriorStep
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.secure import SecureFastPFRec
from fastpfrec_flwr.server.steady import SteadyRows
from fastpfrec_flwr.server.steps import ServerStep, build_step
from fastpfrec_flwr.server.strategy import FastPFRec
from fastpfrec_flwr.server.uploading import UploadStrategy
from fastpfrec_flwr.trusted_node.aggregators import Aggregator, Mean, PerClient, PerCoordinate, PerRow
from fastpfrec_flwr.trusted_node.alignment import AlignmentCheck, NoCrossCheck
from fastpfrec_flwr.trusted_node.detection import AbsoluteCheck, Check, ClientsCheck, NoCheck, PaperCheck
from fastpfrec_flwr.trusted_node.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
    located,
    weighted_by,
)
from fastpfrec_flwr.trusted_node.roster import AllThere, Attendances, Failures, Roster
from fastpfrec_flwr.trusted_node.tier import DirectTier, Tier, TrustedNodes

Part = TypeVar("Part")


def _as_it_is(part: Part) -> Part:
    return part


def build_check(config: RunConfig) -> Check:
    """The rule of each trusted node."""
    mu, nu = config.robust_z_threshold, config.outlier_ratio_threshold
    clip = config.clip_norm if config.clip_kind == "l2" else 0.0
    checks: dict[str, Check] = {
        "none": NoCheck(),
        "paper": PaperCheck(mu, nu),
        "clients": ClientsCheck(mu, nu, clip),
        "absolute": AbsoluteCheck(clip),
    }
    return checks[config.check]


def build_node_aggregator(config: RunConfig) -> Aggregator:
    """What each trusted node makes of its clients' uploads."""
    trimmed = TrimmedMean(config.trim_fraction)
    aggregators: dict[str, Aggregator] = {
        "mean": Mean(),
        "median": PerCoordinate(Median()),
        "trimmed-mean": PerCoordinate(trimmed),
        "row-median": PerRow(Median()),
        "row-trimmed-mean": PerRow(trimmed),
        "krum": PerClient(Krum(config.malicious_fraction, many=False)),
        "multi-krum": PerClient(Krum(config.malicious_fraction, many=True)),
        "geometric-median": PerClient(GeometricMedian()),
        "centered-clipping": PerClient(CenteredClipping(config.centered_clip_radius, config.centered_clip_iterations)),
    }
    return aggregators[config.node_aggregator]


def build_server_aggregator(config: RunConfig) -> ServerAggregator:
    """What the server makes of the nodes' means."""
    aggregators: dict[str, ServerAggregator] = {
        "mean": NodeAverage(),
        "median": AcrossNodes(partial(located, rule=Median())),
        "trimmed-mean": AcrossNodes(partial(located, rule=TrimmedMean(config.trim_fraction))),
        "geometric-median": AcrossNodes(partial(weighted_by, rule=GeometricMedian())),
    }
    return aggregators[config.server_aggregator]


def build_roster(config: RunConfig) -> Roster:
    """Who of the trusted nodes is there: all of them, or those that failures and quarantine leave."""
    failures = Failures(
        config.num_trusted_nodes,
        config.seed,
        config.failed_nodes,
        config.failure_start,
        config.failure_probability,
        config.failure_rounds,
        config.failure_moment,
    )
    if config.secure_sum or not (config.failed_nodes or config.failure_probability or config.quarantine_rounds):
        return AllThere()  # secure sums have groups of their own, drawn by the server
    return Attendances(failures, config.reassignment, config.quarantine_rounds)


@dataclass(frozen=True)
class Around:
    """What is wrapped around the strategy's parts from outside (measurements, attacks); by default nothing."""

    node_aggregator: Callable[[Aggregator], Aggregator] = _as_it_is
    tier: Callable[[Tier], Tier] = _as_it_is
    server_aggregator: Callable[[ServerAggregator], ServerAggregator] = _as_it_is
    step: Callable[[ServerStep], ServerStep] = _as_it_is
    roster: Callable[[Roster], Roster] = _as_it_is


def build_tier(
    config: RunConfig,
    threads: int,
    roster: Roster = AllThere(),  # noqa: B008 - frozen and without state
    around: Around = Around(),
) -> Tier:
    """The tier between clients and server."""
    aggregator = around.node_aggregator(build_node_aggregator(config))
    if config.tier == "direct":
        return DirectTier(config.seed, aggregator)
    # The paper's rule is the paper's, and no check is none: what goes beyond goes with our own checks.
    ours = config.check in ("clients", "absolute")
    aligned = ours and config.alignment_z_threshold > 0
    return TrustedNodes(
        config.num_trusted_nodes,
        build_check(config),
        config.effective_noise_scale,
        config.seed,
        threads,
        config.embedding_dim,
        aggregator,
        roster,
        AlignmentCheck(config.alignment_z_threshold, threads) if aligned else NoCrossCheck(),
        config.row_clip if ours else 0.0,
        config.node_aggregator == "mean",
    )


def build_server_step(config: RunConfig, threads: int) -> ServerStep:
    """What becomes of the average."""
    if config.server_step == "posterior":
        # Every client's noise has the same size, whatever node it is in.
        deviation = config.noise_deviation / math.sqrt(config.clients_per_round)
        return PosteriorStep(
            deviation, config.clip_norm or 1.0, config.clients_per_round, config.norm_exponent, config.count_share
        )
    step = build_step(config, threads)
    # Rows of unit length have no length to limit, of other models not all rows are items, and new items among finished ones
    # all go one way.
    unlike = config.unit_rows or config.model != "fastpfrec" or config.train_items == "new"
    if config.row_steadiness_threshold == 0 or unlike:
        return step
    return SteadyRows(step, config.row_steadiness_threshold, threads)


def build_strategy(
    config: RunConfig,
    folder: RunFolder | None = None,
    threads: int = 1,
    around: Around = Around(),
) -> UploadStrategy:
    """The strategy with its parts: ours, or another one on our clients (which has no parts to wrap).

    Raises
    ------
    ConfigError if `strategy` names none that can be made.
    """
    if config.strategy != "fastpfrec":
        make = load_strategy(config.strategy, config.strategy_options)
        return ForeignStrategy(config, make, config.strategy, folder, threads)
    roster = around.roster(build_roster(config))
    make_rounds = SecureFastPFRec if config.secure_sum else FastPFRec
    return make_rounds(
        config,
        around.tier(build_tier(config, threads, roster, around)),
        around.step(build_server_step(config, threads)),
        folder,
        threads,
        around.server_aggregator(build_server_aggregator(config)),
        roster,
    )
