"""One frozen, validated object per run, parsed once.

`parse_run_config` is the first line of every app handler; below it nobody sees Flower's `context`. The keys stand with their
defaults in `pyproject.toml` under `[tool.flwr.app.config]`, in kebab-case; a test keeps the two lists equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]

# The federated models of `baselines.federated`; beside them `model` may be fastpfrec, or a class of one's own.
BASELINES = ("local-only", "lightgcn", "fedmf", "fedncf", "fedgnn", "perfedrec", "perfedrec++")
TRACKERS = ("tensorboard", "mlflow", "wandb")


class ConfigError(ValueError):
    """A run configuration that cannot be used; the message names key, rule, value and remedy."""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """Everything a run depends on. Field names are the run-config keys with `_` for `-`; units stand in pyproject.toml."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=_kebab, populate_by_name=True)

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
    upload: Literal["dense", "sparse"]
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
        "alie", "ipm", "min-max", "promotion", "clustering", "sybil",
    ]  # fmt: skip
    attack_fraction: Share
    attack_from_round: Count
    attack_strength: Finite
    attack_noise: bool
    attack_target_item: Annotated[int, Field(ge=-1)]
    attack_placement: Literal["spread", "one-node"]
    node_attack: Literal["none", "noise", "shift", "scaling", "replacement"]
    compromised_nodes: CountOrZero
    node_attack_strength: Finite

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        rules = [
            (
                self.num_trusted_nodes > self.clients_per_round,
                f"num-trusted-nodes must be <= clients-per-round ({self.clients_per_round}), got {self.num_trusted_nodes}: "
                "a node without clients has nothing to check; lower num-trusted-nodes",
            ),
            (
                self.upload == "dense" and self.noise == "none" and self.noise_scale > 0,
                f"noise-scale must be 0.0 with noise = 'none', got {self.noise_scale}",
            ),
            (
                self.noise != "none" and self.noise_scale == 0,
                f"noise-scale must be > 0 with noise = '{self.noise}', got 0.0; for no noise set noise = 'none'",
            ),
            (
                self.loss == "ccl" and self.negatives != "shared",
                f"negatives must be 'shared' with loss = 'ccl', got {self.negatives!r}",
            ),
            (
                self.loss == "ccl" and not self.unit_rows,
                "unit-rows must be true with loss = 'ccl' (it scores by cosine), got false",
            ),
            (
                self.unit_rows and self.blend_weight < 1,
                f"blend-weight must be 1.0 with unit-rows = true, got {self.blend_weight}: "
                "a device's own deviation would leave the unit sphere",
            ),
            (
                self.popularity_weight > 0 and self.blend_weight < 1,
                f"blend-weight must be 1.0 with popularity-weight > 0, got {self.blend_weight}: "
                "a count is sent once, a deviation would send it again",
            ),
            (
                self.check == "absolute" and self.clip_norm == 0,
                "clip-norm must be > 0 with check = 'absolute': its bound is the clip; set clip-norm or use check = 'clients'",
            ),
            (
                self.clip_norm > 0 and self.clip_kind == "l1" and self.check == "absolute",
                "check = 'absolute' bounds L2 norms, got clip-kind = 'l1'; use clip-kind = 'l2' or check = 'clients'",
            ),
            (
                self.train_items == "new" and not self.initial_model,
                "initial-model must name a model with train-items = 'new', got '': the old rows come from it",
            ),
            (
                self.train_items == "new" and (self.strategy != "fastpfrec" or self.blend_weight < 1),
                "train-items must be 'all' with blend-weight < 1 or another strategy than fastpfrec, got 'new': both move old rows",
            ),
            (
                self.refit and self.evaluate_every == 0,
                "evaluate-every must be >= 1 with refit = true: the number of rounds is chosen on validation",
            ),
            (
                self.early_stop_patience > 0 and self.evaluate_every == 0,
                "evaluate-every must be >= 1 with early-stop-patience > 0",
            ),
            (
                self.user_weight == 0 and self.neighbour_weight == 0,
                "user-weight and neighbour-weight must not both be 0: every user would get the same vector",
            ),
        ]
        rules += self._secure_rules()
        rules += self._privacy_rules() + self._encoder_rules() + self._aggregator_rules() + self._strategy_rules()
        rules += self._node_rules()
        rules += self._model_rules()
        rules += self._attack_rules()
        unknown = [name for name in self.tracker_names if name not in TRACKERS]
        if unknown or len(set(self.tracker_names)) < len(self.tracker_names):
            raise ValueError(
                f"trackers must be a comma list of {', '.join(TRACKERS)}, each at most once, or '' for none, got {self.trackers!r}"
            )
        for broken, message in rules:
            if broken:
                raise ValueError(message)
        return self

    def _privacy_rules(self) -> list[tuple[bool, str]]:
        """What a finite epsilon needs."""
        clipped = self.clip_norm > 0 or self.row_clip > 0 or self.coordinate_clip > 0
        bounded = self.noise == "laplace" and self.upload == "dense" and clipped
        return [
            (
                self.upload_precision == "int8" and self.noise == "none",
                "upload-precision must be 'float32' or 'float16' with noise = 'none', got 'int8': its rounding hides under "
                "noise only, and without it carries clipped uploads beyond the clip",
            ),
            (
                self.upload_precision == "int8" and self.counted,
                f"popularity-weight must be 0.0 with upload-precision = 'int8', got {self.popularity_weight}: a count would "
                "set the step of its whole row",
            ),
            (
                self.noise_placement == "distributed" and self.noise != "gaussian",
                f"noise must be 'gaussian' with noise-placement = 'distributed', got {self.noise!r}: shares of Gaussian noise add "
                "up to Gaussian noise however many arrive, those of Laplace noise only if exactly the expected ones do",
            ),
            (
                self.noise_placement == "distributed" and self.upload != "dense",
                "upload must be 'dense' with noise-placement = 'distributed', got 'sparse': rows that few clients send would "
                "carry few shares",
            ),
            (
                self.perturbation == "randomised-response" and self.keep_prob <= self.perturbation_prob,
                f"keep-prob must be > perturbation-prob ({self.perturbation_prob}) with perturbation = 'randomised-response', "
                f"got {self.keep_prob}: a true item must be likelier to be drawn than a false one",
            ),
            (
                self.epsilon_budget > 0 and not bounded,
                "epsilon-budget must be 0.0 where nothing bounds an upload's epsilon, "
                f"got {self.epsilon_budget}; set noise = 'laplace', upload = 'dense' and clip-norm, row-clip or coordinate-clip",
            ),
        ]

    def _secure_rules(self) -> list[tuple[bool, str]]:
        """What a sum leaves possible of which nobody sees the parts."""
        if not self.secure_sum:
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
            ("quarantine_rounds", 0),
        ]
        rules = [
            (
                getattr(self, name) != value,
                f"{_kebab(name)} must be {value!r} with secure-sum = true, got {getattr(self, name)!r}: nobody sees single "
                "uploads, so whole tables are added up as they are; checks across nodes remain",
            )
            for name, value in needs
        ]
        return [
            *rules,
            (
                self.clients_per_round // self.num_trusted_nodes < 3,
                f"clients-per-round must be at least 3 times num-trusted-nodes ({self.num_trusted_nodes}) with secure-sum = true, "
                f"got {self.clients_per_round}: a sum of two hides nothing from either",
            ),
        ]

    def _encoder_rules(self) -> list[tuple[bool, str]]:
        """What LightGCN leaves no choice in: it convolves everything in every round and weighs all neighbours alike."""
        if self.encoder == "spectral":
            return self._spectral_rules()
        if self.encoder == "fastgnn":
            return [
                (
                    self.server_step == "posterior",
                    "server-step must not be 'posterior' with encoder = 'fastgnn': it reads sums of codes, "
                    "which encoder = 'spectral' sends",
                ),
                (
                    self.num_layers != 2 and self.model == "fastpfrec",
                    f"num-layers must be 2 with encoder = 'fastgnn', got {self.num_layers}: its form is that of two layers",
                ),
            ]
        return [
            (self.leave_one_out, "leave-one-out must be false with encoder = 'lightgcn', got true"),
            (
                self.server_step == "posterior",
                "server-step must not be 'posterior' with encoder = 'lightgcn': it reads sums of codes, "
                "which encoder = 'spectral' sends",
            ),
            (
                self.norm_exponent != 0,
                f"norm-exponent must be 0.0 with encoder = 'lightgcn', got {self.norm_exponent}",
            ),
            (
                self.item_refresh_interval != 1,
                f"item-refresh-interval must be 1 with encoder = 'lightgcn', got {self.item_refresh_interval}: "
                "it convolves the items in every round",
            ),
            (self.loss == "ccl", "loss must be 'bpr' with encoder = 'lightgcn', got 'ccl'"),
        ]

    def _spectral_rules(self) -> list[tuple[bool, str]]:
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
                getattr(self, name) != value,
                f"{_kebab(name)} must be {_shown(value)} with encoder = 'spectral', got {_shown(getattr(self, name))}: {why}",
            )
            for name, value, why in needs
        ]
        return [
            *rules,
            (
                self.embedding_dim < 2,
                f"embedding-dim must be >= 2 with encoder = 'spectral', got {self.embedding_dim}: one column holds counts",
            ),
            (self.user_l2 == 0, "user-l2 must be > 0 with encoder = 'spectral', got 0.0: devices solve with it"),
            (
                self.noise != "none" and self.clip_norm == 0,
                "clip-norm must be > 0 with encoder = 'spectral' and noise: it is the length of an upload, got 0.0",
            ),
        ]

    def _aggregator_rules(self) -> list[tuple[bool, str]]:
        shows_rows = self.upload == "sparse" or self.noise == "none"
        robust = self.node_aggregator != "mean" or self.server_aggregator != "mean"
        return [
            (
                self.node_aggregator.startswith("row-") and not shows_rows,
                f"node-aggregator = '{self.node_aggregator}' needs upload = 'sparse' or noise = 'none': "
                "a dense noised upload does not show which rows its client touched",
            ),
            (
                robust and self.counted,
                "popularity-weight must be 0.0 with a node-aggregator or server-aggregator other than 'mean', "
                f"got {self.popularity_weight}: a count is a sum, which no median keeps",
            ),
        ]

    def _node_rules(self) -> list[tuple[bool, str]]:
        """Failures need nodes that can fail."""
        no_nodes = self.tier == "direct" or self.strategy != "fastpfrec"
        keys = ("failed_nodes", "failure_probability", "quarantine_rounds")
        return [
            (
                self.min_clients > self.clients_per_round,
                f"min-clients must be <= clients-per-round ({self.clients_per_round}), got {self.min_clients}: "
                "no round could ever count",
            ),
            (
                self.failed_nodes > self.num_trusted_nodes,
                f"failed-nodes must be <= num-trusted-nodes ({self.num_trusted_nodes}), got {self.failed_nodes}",
            ),
            *(
                (
                    no_nodes and getattr(self, key) > 0,
                    f"{_kebab(key)} must be 0 without trusted nodes (tier = 'direct', or another strategy), "
                    f"got {getattr(self, key)}",
                )
                for key in keys
            ),
        ]

    def _strategy_rules(self) -> list[tuple[bool, str]]:
        """What another strategy than ours cannot keep: it gets tables and gives a table."""
        if self.strategy == "fastpfrec":
            return [(bool(self.strategy_options), "strategy-options must be '' with strategy = 'fastpfrec'")]
        return [
            (
                self.blend_weight < 1,
                f"blend-weight must be 1.0 with strategy = '{self.strategy}', got {self.blend_weight}: "
                "the devices' own deviations belong to our blend",
            ),
            (
                self.unit_rows,
                f"unit-rows must be false with strategy = '{self.strategy}', got true: it does not keep rows at unit length",
            ),
            (
                self.counted,
                f"popularity-weight must be 0.0 with strategy = '{self.strategy}', got {self.popularity_weight}",
            ),
        ]

    def _model_rules(self) -> list[tuple[bool, str]]:
        """What belongs to FastPFRec alone: another model would not read it."""
        if self.model not in BASELINES:
            return []
        of = f"with model = '{self.model}'"
        rules = [
            (
                self.encoder != "fastgnn",
                f"encoder must be left at 'fastgnn' {of}, which has its own, got {self.encoder!r}",
            ),
            (self.loss != "bpr", f"loss must be 'bpr' {of}, got {self.loss!r}"),
            (self.negatives != "shared", f"negatives must be 'shared' {of}, got {self.negatives!r}"),
            (self.local_optimizer != "sgd", f"local-optimizer must be 'sgd' {of}, got {self.local_optimizer!r}"),
            (self.blend_weight < 1, f"blend-weight must be 1.0 {of}, got {self.blend_weight}"),
            (self.unit_rows, f"unit-rows must be false {of}, got true"),
            (self.counted, f"popularity-weight must be 0.0 {of}, got {self.popularity_weight}"),
        ]
        if self.model in ("local-only", "perfedrec", "perfedrec++"):
            rules += [
                (self.strategy != "fastpfrec", f"strategy must be 'fastpfrec' {of}, got {self.strategy!r}"),
            ]
        if self.model == "perfedrec++":
            rules += [
                (
                    self.pretrain_rounds >= self.num_rounds,
                    f"pretrain-rounds must be < num-rounds ({self.num_rounds}) {of}, got {self.pretrain_rounds}",
                )
            ]
        return rules

    def _attack_rules(self) -> list[tuple[bool, str]]:
        """What an attack needs to be what it is called."""
        return [
            (
                self.attacked and self.counted,
                f"popularity-weight must be 0.0 with an attack, got {self.popularity_weight}: no attack lies about counts",
            ),
            (
                self.attacked and (self.noise == "gaussian" or self.secure_sum),
                "attack and node-attack must be 'none' with noise = 'gaussian' and with secure-sum: liars' own noise is Laplace, "
                "and nobody sees single uploads there",
            ),
            (
                self.compromised_nodes > self.num_trusted_nodes,
                f"compromised-nodes must be <= num-trusted-nodes ({self.num_trusted_nodes}), got {self.compromised_nodes}",
            ),
            (
                self.compromised_nodes > 0 and self.node_attack == "none",
                f"compromised-nodes must be 0 with node-attack = 'none', got {self.compromised_nodes}; say what they do",
            ),
            (
                self.node_attack != "none" and (self.tier == "direct" or self.strategy != "fastpfrec"),
                f"node-attack must be 'none' where there are no trusted nodes, got {self.node_attack!r}",
            ),
            (
                self.attack_placement == "one-node" and (self.tier == "direct" or self.strategy != "fastpfrec"),
                "attack-placement must be 'spread' where there are no trusted nodes, got 'one-node'",
            ),
        ]

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
    known = {_kebab(name): field for name, field in RunConfig.model_fields.items()}
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, known) for item in error.errors())) from None


def _explain(item: Any, known: Mapping[str, Any]) -> str:
    """One line of plain words for one of pydantic's findings."""
    key = str(item["loc"][0]) if item["loc"] else ""
    kind = item["type"]
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        close = get_close_matches(key, known, n=1)
        return f"unknown key {key!r}" + (
            f"; did you mean {close[0]!r}?" if close else "; see pyproject.toml for the keys"
        )
    if kind == "missing":
        return f"{key} is missing; its default stands in pyproject.toml under [tool.flwr.app.config]"
    if kind == "value_error":
        return str(context["error"])
    rules = {
        "greater_than": "must be > {gt}",
        "greater_than_equal": "must be >= {ge}",
        "less_than": "must be < {lt}",
        "less_than_equal": "must be <= {le}",
        "literal_error": "must be one of {expected}",
        "string_too_short": "must not be empty",
        "finite_number": "must be a finite number",
        "int_type": "must be an integer",
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "string_type": "must be a string",
        "string_pattern_mismatch": "must be 'fastpfrec', 'flwr:<name>' or '<module>:<class>'",
    }
    if key == "model":
        rules["string_pattern_mismatch"] = f"must be fastpfrec, {', '.join(BASELINES)}, or '<module>:<class>'"
    rule = rules.get(kind, item["msg"]).format(**context) if kind in rules else item["msg"]
    return f"{key} {rule}, got {item['input']!r}"


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
