"""From a configuration to its objects: an ablation is another object here, never an `if` in the middle of the algorithm."""

from __future__ import annotations

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import build_step
from fastpfrec_flwr.server.strategy import FastPFRec
from fastpfrec_flwr.trusted_node.detection import AbsoluteCheck, Check, ClientsCheck, NoCheck, PaperCheck
from fastpfrec_flwr.trusted_node.tier import DirectTier, Tier, TrustedNodes


def build_check(config: RunConfig) -> Check:
    """The rule of each trusted node."""
    mu, nu = config.robust_z_threshold, config.outlier_ratio_threshold
    clip = config.clip_norm if config.clip_kind == "l2" else 0.0
    checks: dict[str, Check] = {
        "none": NoCheck(),
        "paper": PaperCheck(mu, nu),
        "clients": ClientsCheck(mu, nu, clip),
        "absolute": AbsoluteCheck(clip, nu),
    }
    return checks[config.check]


def build_tier(config: RunConfig, threads: int) -> Tier:
    """The tier between clients and server."""
    if config.tier == "direct":
        return DirectTier()
    return TrustedNodes(
        config.num_trusted_nodes,
        build_check(config),
        config.effective_noise_scale,
        config.seed,
        threads,
        config.embedding_dim,
    )


def build_strategy(config: RunConfig, folder: RunFolder | None = None, threads: int = 1) -> FastPFRec:
    """The strategy with its parts."""
    return FastPFRec(config, build_tier(config, threads), build_step(config, threads), folder, threads)
