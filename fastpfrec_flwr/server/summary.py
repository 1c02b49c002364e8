"""What a run's `summary.json` says, and what its log says of privacy before the first round."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.evaluation.metrics import half_widths
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import Ledger, Setting, user_adjacency
from fastpfrec_flwr.privacy.upload_costs import one_upload
from fastpfrec_flwr.server.rounds import RoundOutcome, Tally


@dataclass
class Progress:
    """Where a run stands; all of it goes into a checkpoint.

    Attributes
    ----------
    phase : `train`, `refit` or `done`. server_round : last finished round of it. best_round, best : the best evaluated round by
        validation and its metrics. test : metrics on the test part of that round (or after the refit). stale : evaluations since.
    lines : evaluated rounds so far. seconds : of the rounds so far.
    """

    phase: str = "train"
    server_round: int = 0
    best_round: int = 0
    best: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    round_seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)

    def line(self, outcome: RoundOutcome, validation: dict[str, float], seconds: float) -> dict[str, Any]:
        """The round that has just been evaluated, as `metrics.jsonl` has it.

        Parameters
        ----------
        outcome : of that round; most counts are of all rounds so far. seconds : since the training began.
        """
        tally = self.tally
        return {
            "phase": "train",
            "round": self.server_round,
            "loss": outcome.loss,
            "validation": validation,
            "clients": outcome.trained,
            "refused": tally.refused,
            "isolated": tally.isolated,
            "isolated_nodes": tally.isolated_nodes,
            "lost": tally.lost,
            "skipped": dict(tally.skips),
            "nodes_away": tally.nodes_away,
            "nodes_quarantined": tally.nodes_quarantined,
            "seconds": seconds,
            "round_seconds": float(np.median(self.round_seconds)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {**vars(self), "tally": self.tally.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        """Read what `to_dict` wrote."""
        return Progress(**{**values, "tally": Tally.from_dict(values["tally"])})


@dataclass(frozen=True)
class Subject:
    """What a run is about.

    Attributes
    ----------
    data_set : its name. data : its fingerprint. users : of all SuperNodes. rows : of the shared table.
    deployed : whether real devices train.
    """

    config: RunConfig
    data_set: str
    data: str
    users: int
    rows: int
    deployed: bool

    def ledger(self) -> Ledger:
        """What the whole run as configured costs, whoever stops it earlier."""
        return build_ledger(Setting(self.config, max(self.users, 1), self.rows, self.deployed))

    def privacy(self) -> dict[str, Any]:
        """What one upload and the whole run cost, and what leaves without noise."""
        config = self.config
        guarantee = one_upload(config, self.rows)
        infinite = math.isinf(guarantee.epsilon)
        ledger = self.ledger()
        return {
            "adjacency": user_adjacency(config),
            "epsilon_per_upload": "infinity" if infinite else guarantee.epsilon,
            "delta_per_upload": guarantee.delta,
            "reason": guarantee.reason,
            "noise": f"{config.noise}, scale {config.effective_noise_scale}",
            "randomness": "operating system" if self.deployed else "seeded (simulation)",
            "not_noised": ["metric sums per SuperNode"] + (["train loss per SuperNode"] if config.report_loss else []),
            "uploads_per_user": ledger.setting.uploads,
            **ledger.to_dict(),
        }

    def privacy_line(self) -> str:
        """The log's line on one upload."""
        privacy = self.privacy()
        epsilon = privacy["epsilon_per_upload"]
        shown = epsilon if isinstance(epsilon, str) else f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"
        return (
            f"privacy: this configuration gives epsilon = {shown} per upload, delta = {privacy['delta_per_upload']:g} "
            f"({privacy['reason']}); randomness of the noise: {privacy['randomness']}"
        )


def summarise(
    subject: Subject, progress: Progress, evaluated_users: Mapping[str, int], stopped: bool, super_nodes: int
) -> dict[str, Any]:
    """The content of `summary.json`.

    Parameters
    ----------
    evaluated_users : part -> users with truth in its last evaluation. stopped : whether somebody ended the run.
    super_nodes : asked in the last round. Each of a deployment gets the table once; a simulation counts a device for each client.
    """
    config, tally = subject.config, progress.tally
    k, items = config.embedding_dim, subject.rows
    rounds = max(tally.rounds, 1)
    table_bytes = 4 * items * k
    clients = tally.trained / rounds
    row = messages.row_bytes(config.upload_precision, config.upload_width)
    sparse = tally.uploaded_rows / rounds * (row + 4)
    nodes = config.num_trusted_nodes if config.tier == "trusted-nodes" else 0
    median = float(np.median(progress.round_seconds)) if progress.round_seconds else 0.0
    tiers = zip(("clients", "trusted_nodes", "server"), tally.tier_seconds, strict=True)
    return {
        "data_set": subject.data_set,
        "data_fingerprint": subject.data,
        "seed": config.seed,
        "rounds": progress.best_round if progress.phase == "done" and config.refit else progress.server_round,
        "best_round": progress.best_round,
        "refit": config.refit,
        "stopped": stopped,
        "protocol": _protocol(config),
        "validation": progress.best,
        "test": progress.test,
        **_sampling(config, progress, evaluated_users),
        "seconds": {
            "total": progress.total_seconds,
            "round_median": median,
            # As many rounds as let each user train once.
            "epoch": median * subject.users / max(min(config.clients_per_round, subject.users), 1),
            **{f"{tier}_round": seconds / rounds for tier, seconds in tiers},
        },
        "peak_rss_mb": peak_rss_mb(),
        "clients": {
            "trained": tally.trained,
            "refused": tally.refused,
            "isolated": tally.isolated,
            "isolated_share": tally.isolated / max(tally.trained, 1),
            "isolated_nodes": tally.isolated_nodes,
            "skipped": tally.skipped,
            "skip_reasons": dict(tally.skips),
            "lost": tally.lost,
            "lost_share": tally.lost / max(tally.trained, 1),
            "reassigned": tally.reassigned,
            "reasons": dict(tally.reasons.most_common(20)),
        },
        "rounds_without_update": tally.unmoved_rounds,
        "rows_shortened": tally.rows_shortened,
        "nodes": {
            "failures": tally.node_failures,
            "rounds_away": tally.nodes_away,
            "rounds_quarantined": tally.nodes_quarantined,
            "rounds_without_any": tally.rounds_without_nodes,
        },
        "bytes": {
            "down": round(
                (super_nodes if subject.deployed else clients)
                * items
                * messages.row_bytes(config.download_precision, k)
            ),
            "up": round(clients * row * items if config.upload == "dense" else sparse),
            "nodes_up": nodes * table_bytes,
        },
        "privacy": subject.privacy(),
    }


def _sampling(config: RunConfig, progress: Progress, users: Mapping[str, int]) -> dict[str, Any]:
    """What the figures of a sample of users are worth; nothing where everybody was ranked for."""
    if config.evaluate_users == 0:
        return {}
    values = {"validation": progress.best, "test": progress.test}
    widths = {part: half_widths(values[part], count) for part, count in users.items() if count and values[part]}
    return {"evaluated_users": dict(users), "half_width_95": widths}


def _protocol(config: RunConfig) -> str:
    if config.refit:
        return "rounds chosen on validation (cut from train), then trained on train + validation; test masks both"
    return "trained on train, round chosen on validation (cut from train), test figures of that round; test masks both"


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024
