"""Which keys contradict the encoder, and which the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpfrec_flwr.config_wording import Rules, kebab, shown

if TYPE_CHECKING:
    from fastpfrec_flwr.config import RunConfig

# The federated models of `baselines.federated`; beside them `model` may be fastpfrec, or a class of one's own.
BASELINES = ("local-only", "lightgcn", "fedmf", "fedncf", "fedgnn", "perfedrec", "perfedrec++")


def encoder_rules(config: RunConfig) -> Rules:
    """What LightGCN leaves no choice in: it convolves everything in every round and weighs all neighbours alike."""
    if config.encoder == "spectral":
        return _spectral_rules(config)
    if config.encoder == "fastgnn":
        return [
            (
                config.server_step == "posterior",
                "server-step must not be 'posterior' with encoder = 'fastgnn': it reads sums of codes, "
                "which encoder = 'spectral' sends",
            ),
            (
                config.num_layers != 2 and config.model == "fastpfrec",
                f"num-layers must be 2 with encoder = 'fastgnn', got {config.num_layers}: its form is that of two layers",
            ),
        ]
    return [
        (config.leave_one_out, "leave-one-out must be false with encoder = 'lightgcn', got true"),
        (
            config.server_step == "posterior",
            "server-step must not be 'posterior' with encoder = 'lightgcn': it reads sums of codes, "
            "which encoder = 'spectral' sends",
        ),
        (
            config.norm_exponent != 0,
            f"norm-exponent must be 0.0 with encoder = 'lightgcn', got {config.norm_exponent}",
        ),
        (
            config.item_refresh_interval != 1,
            f"item-refresh-interval must be 1 with encoder = 'lightgcn', got {config.item_refresh_interval}: "
            "it convolves the items in every round",
        ),
        (config.loss == "ccl", "loss must be 'bpr' with encoder = 'lightgcn', got 'ccl'"),
    ]


def _spectral_rules(config: RunConfig) -> Rules:
    """What sums of codes leave no choice in: they are statistics, no steps from the table."""
    needs: list[tuple[str, object, str]] = [
        ("server_step", "posterior", "its uploads are no steps from the table"),
        ("strategy", "fastpfrec", "its uploads are no steps from the table"),
        ("perturbation", "none", "its uploads lie on own items"),
        ("blend_weight", 1.0, "devices keep no deviations"),
        ("unit_rows", False, "its rows have lengths of their own"),
        ("popularity_weight", 0.0, "it has a column of counts already"),
    ]
    rules = [
        (
            getattr(config, name) != value,
            f"{kebab(name)} must be {shown(value)} with encoder = 'spectral', got {shown(getattr(config, name))}: {why}",
        )
        for name, value, why in needs
    ]
    return [
        *rules,
        (
            config.embedding_dim < 2,
            f"embedding-dim must be >= 2 with encoder = 'spectral', got {config.embedding_dim}: one column holds counts",
        ),
        (config.user_l2 == 0, "user-l2 must be > 0 with encoder = 'spectral', got 0.0: devices solve with it"),
        (
            config.noise != "none" and config.clip_norm == 0,
            "clip-norm must be > 0 with encoder = 'spectral' and noise: it is the length of an upload, got 0.0",
        ),
    ]


def model_rules(config: RunConfig) -> Rules:
    """What belongs to FastPFRec alone: another model would not read it."""
    if config.model not in BASELINES:
        return []
    of = f"with model = '{config.model}'"
    rules = [
        (
            config.encoder != "fastgnn",
            f"encoder must be left at 'fastgnn' {of}, which has its own, got {config.encoder!r}",
        ),
        (config.loss != "bpr", f"loss must be 'bpr' {of}, got {config.loss!r}"),
        (config.negatives != "shared", f"negatives must be 'shared' {of}, got {config.negatives!r}"),
        (config.local_optimizer != "sgd", f"local-optimizer must be 'sgd' {of}, got {config.local_optimizer!r}"),
        (config.blend_weight < 1, f"blend-weight must be 1.0 {of}, got {config.blend_weight}"),
        (config.unit_rows, f"unit-rows must be false {of}, got true"),
        (config.counted, f"popularity-weight must be 0.0 {of}, got {config.popularity_weight}"),
    ]
    if config.model in ("local-only", "perfedrec", "perfedrec++"):
        rules += [
            (config.strategy != "fastpfrec", f"strategy must be 'fastpfrec' {of}, got {config.strategy!r}"),
        ]
    if config.model == "perfedrec++":
        rules += [
            (
                config.pretrain_rounds >= config.num_rounds,
                f"pretrain-rounds must be < num-rounds ({config.num_rounds}) {of}, got {config.pretrain_rounds}",
            )
        ]
    return rules
