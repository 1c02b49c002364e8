"""One frozen, validated object per run, parsed once.

`parse_run_config` is the first line of every app handler; below it nobody sees Flower's `context`. The keys stand with their
defaults in `pyproject.toml` under `[tool.flwr.app.config]`, in kebab-case; a test keeps the two lists equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fastpfrec_flwr.config_findings import explain
from fastpfrec_flwr.config_models import BASELINES as BASELINES
from fastpfrec_flwr.config_rules import rules_of
from fastpfrec_flwr.config_wording import kebab
from fastpfrec_flwr.foreseen import Foreseen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]

TRACKERS = ("tensorboard", "mlflow", "wandb")


class ConfigError(Foreseen, ValueError):
    """A run configuration that cannot be used; the message names key, rule, value and remedy."""


class RunConfig(BaseModel):
    """Everything a run depends on. Field names are the run-config keys with `_` for `-`; units stand in pyproject.toml."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=kebab, populate_by_name=True)

    # data
    data_set: Annotated[str, Field(min_length=1)]
    data_dir: str
    split: Literal["auto", "released", "chronological", "random"]
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)]
    test_fraction: Annotated[float, Field(gt=0, lt=0.9)]

    min_weight: NonNegative
    catalogue: str

    # run
    seed: CountOrZero
    device: Literal["auto", "cpu", "cuda"]
    threads: CountOrZero
    output_dir: str
    state_dir: str
    num_rounds: Count
    clients_per_round: Count
    evaluate_every: CountOrZero
    evaluate_users: CountOrZero
    early_stop_patience: CountOrZero
    refit: bool
    checkpoint_every: CountOrZero
    resume_from: str
    initial_model: str
    train_items: Literal["all", "new"]
    round_timeout: Positive
    min_clients: CountOrZero
    report_loss: bool
    user_metrics: bool
    trackers: str
    log_format: Literal["text", "json"]
    metrics_file: str

    # strategy
    strategy: Annotated[str, Field(pattern=r"^(fastpfrec|flwr:\w+|[\w.]+:\w+)$")]
    strategy_options: str
    strategy_memory: Positive

    # model: ours with its encoder, or another one on the same footing
    model: Annotated[str, Field(pattern=rf"^(fastpfrec|{'|'.join(map(re.escape, BASELINES))}|[\w.]+:\w+)$")]
    weights_learning_rate: Positive
    num_clusters: Count
    cluster_weight: Share
    pretrain_rounds: CountOrZero
    contrast_temperature: Positive

    # encoder and its loss
    encoder: Literal["fastgnn", "lightgcn", "spectral"]
    embedding_dim: Count
    init_scale: Positive
    num_layers: Literal[1, 2, 3, 4]
    user_weight: Share
    neighbour_weight: Share
    leave_one_out: bool
    norm_exponent: Annotated[float, Field(ge=0, le=2)]
    item_refresh_interval: CountOrZero
    loss: Literal["bpr", "ccl"]
    negatives: Literal["shared", "per-positive"]
    num_negatives: Count
    l2: NonNegative
    margin: Annotated[float, Field(ge=-1, lt=1)]
    negative_weight: Positive
    local_optimizer: Literal["sgd", "adam"]
    item_learning_rate: Positive
    user_learning_rate: NonNegative
    user_l2: NonNegative
    popularity_weight: NonNegative
    count_share: Annotated[float, Field(gt=0, lt=1)]
    background_weight: Positive

    # privacy
    perturbation: Literal["relative", "bernoulli", "randomised-response", "none"]
    perturbation_prob: Share
    keep_prob: Share
    row_clip: NonNegative
    clip_norm: NonNegative
    clip_kind: Literal["l2", "l1"]
    coordinate_clip: NonNegative
    noise: Literal["laplace", "gaussian", "none"]
    noise_scale: NonNegative
    noise_placement: Literal["client", "distributed"]
    dropout_fraction: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
    upload: Literal["dense", "sparse", "sampled"]
    sampled_share: Annotated[float, Field(gt=0, le=1)]
    download_precision: Literal["float32", "float16", "int8"]
    upload_precision: Literal["float32", "float16", "int8"]
    epsilon_budget: NonNegative
    adjacency: Literal["replace", "zero-out"]
    secure_sum: bool

    # trusted nodes
    tier: Literal["trusted-nodes", "direct"]
    num_trusted_nodes: Count
    check: Literal["none", "paper", "clients", "absolute"]
    robust_z_threshold: Positive
    outlier_ratio_threshold: Share
    alignment_z_threshold: NonNegative
    node_z_threshold: NonNegative
    row_steadiness_threshold: NonNegative
    node_aggregator: Literal[
        "mean", "median", "trimmed-mean", "row-median", "row-trimmed-mean",
        "krum", "multi-krum", "geometric-median", "centered-clipping",
    ]  # fmt: skip
    trim_fraction: Annotated[float, Field(ge=0, lt=0.5)]
    malicious_fraction: Annotated[float, Field(ge=0, lt=0.5)]
    centered_clip_radius: NonNegative
    centered_clip_iterations: Count
    secret_assignment: bool
    failed_nodes: CountOrZero
    failure_start: Count
    failure_probability: Share
    failure_rounds: CountOrZero
    failure_moment: Literal["before", "during", "after"]
    reassignment: Literal["retry", "next-round", "none"]
    quarantine_rounds: CountOrZero

    # server
    server_aggregator: Literal["mean", "median", "trimmed-mean", "geometric-median"]
    server_step: Literal["average", "momentum", "row-adam", "posterior"]
    server_learning_rate: Positive
    server_momentum: Annotated[float, Field(ge=0, lt=1)]
    server_schedule: Literal["constant", "cosine"]
    blend_weight: Annotated[float, Field(gt=0, le=1)]
    unit_rows: bool

    # attacks (simulations)
    attack: Literal[
        "none", "absent", "noise", "shift", "scaling", "sign-flip", "replacement", "gradient-ascent", "label-flip",
        "alie", "ipm", "min-max", "promotion", "shilling", "clustering", "sybil",
    ]  # fmt: skip
    attack_fraction: Share
    attack_from_round: Count
    attack_strength: Finite
    attack_noise: bool
    attack_target_item: Annotated[int, Field(ge=-1)]
    attack_placement: Literal["spread", "one-node"]
    attack_drawn: Literal["once", "each-round"]
    node_attack: Literal["none", "noise", "shift", "scaling", "replacement"]
    compromised_nodes: CountOrZero
    node_attack_strength: Finite

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        rules = rules_of(self)
        unknown = [name for name in self.tracker_names if name not in TRACKERS]
        if unknown or len(set(self.tracker_names)) < len(self.tracker_names):
            raise ValueError(
                f"trackers must be a comma list of {', '.join(TRACKERS)}, each at most once, or '' for none, got {self.trackers!r}"
            )
        for broken, message in rules:
            if broken:
                raise ValueError(message)
        return self

    def to_flat_dict(self) -> dict[str, bool | int | float | str]:
        """Return the configuration under its run-config keys."""
        return self.model_dump(by_alias=True)

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The experiment trackers that are told of the run."""
        return tuple(name.strip() for name in self.trackers.split(",")) if self.trackers.strip() else ()

    @property
    def attacked(self) -> bool:
        """Whether clients or trusted nodes of this simulation lie."""
        return self.attack != "none" or self.node_attack != "none"

    @property
    def counted(self) -> bool:
        """Whether uploads carry one more column: the count of a user's own items, sent in its first round."""
        return self.popularity_weight > 0

    @property
    def upload_width(self) -> int:
        """Columns of an upload: k, and the count's."""
        return self.embedding_dim + self.counted

    @property
    def noise_kind(self) -> str:
        """Law of the noise, `laplace` or `gaussian`; without noise the former, of scale 0."""
        return "gaussian" if self.noise == "gaussian" else "laplace"

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on one coordinate of one upload, 0 without noise."""
        return self.effective_noise_scale * (math.sqrt(2.0) if self.noise == "laplace" else 1.0)

    @property
    def clients_per_sum(self) -> float:
        """Clients whose noises are added up where it is distributed: those of a round, shared out evenly among the nodes."""
        apart = self.strategy == "fastpfrec" and self.tier == "trusted-nodes"
        return self.clients_per_round / (self.num_trusted_nodes if apart else 1)

    @property
    def effective_noise_scale(self) -> float:
        """Scale of the noise that leaves a client: lambda or sigma, 0 without noise.

        Distributed, it is a share sigma / sqrt((1 - f) n): the shares of (1 - f) n clients, or of more, add up to at least sigma.
        """
        if self.noise == "none":
            return 0.0
        if self.noise_placement == "client":
            return self.noise_scale
        return self.noise_scale / math.sqrt((1.0 - self.dropout_fraction) * self.clients_per_sum)


def parse_run_config(values: Mapping[str, Any]) -> RunConfig:
    """Validate run-config values.

    Parameters
    ----------
    values : every key of `[tool.flwr.app.config]`, as Flower merges them. Integers are accepted where a float is meant.

    Raises
    ------
    ConfigError listing every broken key with its rule and the value got.
    """
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        known = [kebab(name) for name in RunConfig.model_fields]
        raise ConfigError("\n".join(explain(item, known) for item in error.errors())) from None


def default_values(pyproject: Path | None = None) -> dict[str, Any]:
    """Read the defaults from a `pyproject.toml`: the given one, else the one that belongs to this package.

    There is one list of defaults. Beside the package's folder it is the project's own file; a wheel carries a copy inside.
    """
    import tomllib

    if pyproject is None:
        package = Path(__file__).resolve().parent
        inside = package / "pyproject.toml"
        pyproject = inside if inside.is_file() else package.parent / "pyproject.toml"
    flat = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    return dict(flat)
