"""Which keys of privacy contradict each other: what a finite epsilon needs, and what a secure sum leaves possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpfrec_flwr.config_wording import Rules, kebab

if TYPE_CHECKING:
    from fastpfrec_flwr.config import RunConfig


# Beyond this a value is no honest change, and sums of a million of them on the 2^-20 grid would stop being exact.
LARGEST_VALUE = 2.0**12
# Deviations beyond which not one value in a thousand whole tables of millions lies.
_TAIL = {"laplace": 17.0, "gaussian": 7.0}


def can_be_sent(config: RunConfig) -> bool:
    """Whether the noise leaves uploads within `LARGEST_VALUE`; of eight bits nothing is beyond it."""
    if config.noise == "none" or config.upload_precision == "int8":
        return True
    return config.noise_deviation * _TAIL[config.noise] <= LARGEST_VALUE


def privacy_rules(config: RunConfig) -> Rules:
    """What a finite epsilon needs."""
    clipped = config.clip_norm > 0 or config.row_clip > 0 or config.coordinate_clip > 0
    bounded = config.noise == "laplace" and config.upload != "sparse" and clipped
    return [
        (
            not can_be_sent(config),
            f"noise-scale must leave uploads within +-{LARGEST_VALUE:g} (a standard deviation of at most "
            f"{LARGEST_VALUE / _TAIL.get(config.noise, 1.0):.4g} with noise = {config.noise!r}), got {config.noise_scale}: they "
            "would all be refused. Lower clip and noise-scale together, their ratio is what protects, or take "
            "upload-precision = 'int8'",
        ),
        (
            config.download_precision != "float32" and config.strategy.startswith("flwr:"),
            f"download-precision must be 'float32' with strategy = {config.strategy!r}, got {config.download_precision!r}: "
            "Flower's strategies step from the very table that they send",
        ),
        (
            config.upload_precision == "int8" and config.noise == "none",
            "upload-precision must be 'float32' or 'float16' with noise = 'none', got 'int8': its rounding hides under "
            "noise only, and without it carries clipped uploads beyond the clip",
        ),
        (
            config.upload_precision == "int8" and config.counted,
            f"popularity-weight must be 0.0 with upload-precision = 'int8', got {config.popularity_weight}: a count would "
            "set the step of its whole row",
        ),
        (
            config.noise_placement == "distributed" and config.noise != "gaussian",
            f"noise must be 'gaussian' with noise-placement = 'distributed', got {config.noise!r}: shares of Gaussian noise add "
            "up to Gaussian noise however many arrive, those of Laplace noise only if exactly the expected ones do",
        ),
        (
            config.noise_placement == "distributed" and config.upload != "dense",
            f"upload must be 'dense' with noise-placement = 'distributed', got {config.upload!r}: rows that few clients send "
            "would carry few shares",
        ),
        (
            config.upload == "sampled" and config.counted,
            f"popularity-weight must be 0.0 with upload = 'sampled', got {config.popularity_weight}: a count is sent once, and "
            "most of its rows would not be drawn",
        ),
        (
            config.upload == "sampled" and config.node_aggregator != "mean",
            f"node-aggregator must be 'mean' with upload = 'sampled', got {config.node_aggregator!r}: a row that was not drawn is "
            "no vote for zero",
        ),
        (
            config.upload == "sampled" and (config.strategy != "fastpfrec" or config.server_step == "posterior"),
            "upload must be 'dense' or 'sparse' with another strategy than fastpfrec or server-step = 'posterior', got "
            "'sampled': they would take the mean over the drawn rows for the mean over all clients",
        ),
        (
            config.perturbation == "randomised-response" and config.keep_prob <= config.perturbation_prob,
            f"keep-prob must be > perturbation-prob ({config.perturbation_prob}) with perturbation = 'randomised-response', "
            f"got {config.keep_prob}: a true item must be likelier to be drawn than a false one",
        ),
        (
            config.epsilon_budget > 0 and not bounded,
            "epsilon-budget must be 0.0 where nothing bounds an upload's epsilon, "
            f"got {config.epsilon_budget}; set noise = 'laplace', upload = 'dense' and clip-norm, row-clip or coordinate-clip",
        ),
    ]


def secure_rules(config: RunConfig) -> Rules:
    """What a sum leaves possible of which nobody sees the parts."""
    if not config.secure_sum:
        return []
    needs: list[tuple[str, object]] = [
        ("strategy", "fastpfrec"),
        ("tier", "trusted-nodes"),
        ("check", "none"),
        ("node_aggregator", "mean"),
        ("upload", "dense"),
        ("upload_precision", "float32"),
        ("epsilon_budget", 0.0),
        ("failed_nodes", 0),
        ("failure_probability", 0.0),
    ]
    rules = [
        (
            getattr(config, name) != value,
            f"{kebab(name)} must be {value!r} with secure-sum = true, got {getattr(config, name)!r}: nobody sees single "
            "uploads, so whole tables are added up as they are; checks across nodes remain",
        )
        for name, value in needs
    ]
    return [
        *rules,
        (
            config.clients_per_round // config.num_trusted_nodes < 3,
            f"clients-per-round must be at least 3 times num-trusted-nodes ({config.num_trusted_nodes}) with secure-sum = true, "
            f"got {config.clients_per_round}: a sum of two hides nothing from either",
        ),
    ]
