"""One frozen, validated object per run, parsed once.

`parse_run_config` is the first line of every app handler; below it nobody sees Flower's `context`. The keys stand with their
defaults in `pyproject.toml` under `[tool.flwr.app.config]`, in kebab-case; a test keeps the two lists equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]

TRACKERS = ("tensorboard", "mlflow", "wandb")


class ConfigError(ValueError):
    """A run configuration that cannot be used; the message names key, rule, value and remedy."""


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

    # encoder and its loss
    encoder: Literal["fastgnn", "lightgcn"]
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

    # privacy
    perturbation: Literal["relative", "bernoulli", "randomised-response", "none"]
    perturbation_prob: Share
    keep_prob: Share
    row_clip: NonNegative
    clip_norm: NonNegative
    clip_kind: Literal["l2", "l1"]
    noise: Literal["laplace", "none"]
    noise_scale: NonNegative
    upload: Literal["dense", "sparse"]
    upload_precision: Literal["float32", "float16", "int8"]
    epsilon_budget: NonNegative

    # trusted nodes
    tier: Literal["trusted-nodes", "direct"]
    num_trusted_nodes: Count
    check: Literal["none", "paper", "clients", "absolute"]
    robust_z_threshold: Positive
    outlier_ratio_threshold: Share
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
    server_step: Literal["average", "momentum", "row-adam"]
    server_learning_rate: Positive
    server_momentum: Annotated[float, Field(ge=0, lt=1)]
    server_schedule: Literal["constant", "cosine"]
    blend_weight: Annotated[float, Field(gt=0, le=1)]
    unit_rows: bool

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
                self.noise == "laplace" and self.noise_scale == 0,
                "noise-scale must be > 0 with noise = 'laplace', got 0.0; for no noise set noise = 'none'",
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
        rules += self._privacy_rules() + self._encoder_rules() + self._aggregator_rules() + self._strategy_rules()
        rules += self._node_rules()
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
        bounded = self.noise != "none" and self.upload == "dense" and (self.clip_norm > 0 or self.row_clip > 0)
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
                self.perturbation == "randomised-response" and self.keep_prob <= self.perturbation_prob,
                f"keep-prob must be > perturbation-prob ({self.perturbation_prob}) with perturbation = 'randomised-response', "
                f"got {self.keep_prob}: a true item must be likelier to be drawn than a false one",
            ),
            (
                self.epsilon_budget > 0 and not bounded,
                "epsilon-budget must be 0.0 where nothing bounds an upload's epsilon, "
                f"got {self.epsilon_budget}; set noise = 'laplace', upload = 'dense' and clip-norm or row-clip",
            ),
        ]

    def _encoder_rules(self) -> list[tuple[bool, str]]:
        """What LightGCN leaves no choice in: it convolves everything in every round and weighs all neighbours alike."""
        if self.encoder == "fastgnn":
            return [
                (
                    self.num_layers != 2,
                    f"num-layers must be 2 with encoder = 'fastgnn', got {self.num_layers}: its form is that of two layers",
                )
            ]
        return [
            (self.leave_one_out, "leave-one-out must be false with encoder = 'lightgcn', got true"),
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

    def to_flat_dict(self) -> dict[str, bool | int | float | str]:
        """Return the configuration under its run-config keys."""
        return self.model_dump(by_alias=True)

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The experiment trackers that are told of the run."""
        return tuple(name.strip() for name in self.trackers.split(",")) if self.trackers.strip() else ()

    @property
    def counted(self) -> bool:
        """Whether uploads carry one more column: the count of a user's own items, sent in its first round."""
        return self.popularity_weight > 0

    @property
    def upload_width(self) -> int:
        """Columns of an upload: k, and the count's."""
        return self.embedding_dim + self.counted

    @property
    def effective_noise_scale(self) -> float:
        """Laplace scale lambda of what leaves a client, 0 without noise."""
        return self.noise_scale if self.noise == "laplace" else 0.0


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
