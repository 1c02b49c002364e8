"""Which configuration keys contradict each other: (whether the rule is broken, what to say) by subject.

A message names the key, the rule and the value. `config.RunConfig` raises the first that is broken, in the order of `rules_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpfrec_flwr.config import RunConfig

# The federated models of `baselines.federated`; beside them `model` may be fastpfrec, or a class of one's own.
BASELINES = ("local-only", "lightgcn", "fedmf", "fedncf", "fedgnn", "perfedrec", "perfedrec++")
Rules = list[tuple[bool, str]]


def shown(value: object) -> str:
    """A value as a configuration file writes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def kebab(name: str) -> str:
    """A field's name as its key."""
    return name.replace("_", "-")


def rules_of(config: RunConfig) -> Rules:
    """All of them."""
    return [
        *_general_rules(config),
        *_secure_rules(config),
        *_privacy_rules(config),
        *_encoder_rules(config),
        *_aggregator_rules(config),
        *_strategy_rules(config),
        *_node_rules(config),
        *_model_rules(config),
        *_attack_rules(config),
    ]


def _general_rules(config: RunConfig) -> Rules:
    return [
        (
            config.num_trusted_nodes > config.clients_per_round,
            f"num-trusted-nodes must be <= clients-per-round ({config.clients_per_round}), got {config.num_trusted_nodes}: "
            "a node without clients has nothing to check; lower num-trusted-nodes",
        ),
        (
            config.upload == "dense" and config.noise == "none" and config.noise_scale > 0,
            f"noise-scale must be 0.0 with noise = 'none', got {config.noise_scale}",
        ),
        (
            config.noise != "none" and config.noise_scale == 0,
            f"noise-scale must be > 0 with noise = '{config.noise}', got 0.0; for no noise set noise = 'none'",
        ),
        (
            config.loss == "ccl" and config.negatives != "shared",
            f"negatives must be 'shared' with loss = 'ccl', got {config.negatives!r}",
        ),
        (
            config.loss == "ccl" and not config.unit_rows,
            "unit-rows must be true with loss = 'ccl' (it scores by cosine), got false",
        ),
        (
            config.unit_rows and config.blend_weight < 1,
            f"blend-weight must be 1.0 with unit-rows = true, got {config.blend_weight}: "
            "a device's own deviation would leave the unit sphere",
        ),
        (
            config.popularity_weight > 0 and config.blend_weight < 1,
            f"blend-weight must be 1.0 with popularity-weight > 0, got {config.blend_weight}: "
            "a count is sent once, a deviation would send it again",
        ),
        (
            config.check == "absolute" and config.clip_norm == 0,
            "clip-norm must be > 0 with check = 'absolute': its bound is the clip; set clip-norm or use check = 'clients'",
        ),
        (
            config.clip_norm > 0 and config.clip_kind == "l1" and config.check == "absolute",
            "check = 'absolute' bounds L2 norms, got clip-kind = 'l1'; use clip-kind = 'l2' or check = 'clients'",
        ),
        (
            config.train_items == "new" and not config.initial_model,
            "initial-model must name a model with train-items = 'new', got '': the old rows come from it",
        ),
        (
            config.train_items == "new" and (config.strategy != "fastpfrec" or config.blend_weight < 1),
            "train-items must be 'all' with blend-weight < 1 or another strategy than fastpfrec, got 'new': both move old rows",
        ),
        (
            config.refit and config.evaluate_every == 0,
            "evaluate-every must be >= 1 with refit = true: the number of rounds is chosen on validation",
        ),
        (
            config.early_stop_patience > 0 and config.evaluate_every == 0,
            "evaluate-every must be >= 1 with early-stop-patience > 0",
        ),
        (
            config.user_weight == 0 and config.neighbour_weight == 0,
            "user-weight and neighbour-weight must not both be 0: every user would get the same vector",
        ),
    ]


def _privacy_rules(config: RunConfig) -> Rules:
    """What a finite epsilon needs."""
    clipped = config.clip_norm > 0 or config.row_clip > 0 or config.coordinate_clip > 0
    bounded = config.noise == "laplace" and config.upload != "sparse" and clipped
    return [
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


def _secure_rules(config: RunConfig) -> Rules:
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


def _encoder_rules(config: RunConfig) -> Rules:
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


def _aggregator_rules(config: RunConfig) -> Rules:
    shows_rows = config.upload == "sparse" or config.noise == "none"
    robust = config.node_aggregator != "mean" or config.server_aggregator != "mean"
    return [
        (
            config.node_aggregator.startswith("row-") and not shows_rows,
            f"node-aggregator = '{config.node_aggregator}' needs upload = 'sparse' or noise = 'none': "
            "a dense noised upload does not show which rows its client touched",
        ),
        (
            robust and config.counted,
            "popularity-weight must be 0.0 with a node-aggregator or server-aggregator other than 'mean', "
            f"got {config.popularity_weight}: a count is a sum, which no median keeps",
        ),
    ]


def _node_rules(config: RunConfig) -> Rules:
    """Failures need nodes that can fail."""
    no_nodes = config.tier == "direct" or config.strategy != "fastpfrec"
    keys = ("failed_nodes", "failure_probability")
    return [
        (
            config.min_clients > config.clients_per_round,
            f"min-clients must be <= clients-per-round ({config.clients_per_round}), got {config.min_clients}: "
            "no round could ever count",
        ),
        (
            config.failed_nodes > config.num_trusted_nodes,
            f"failed-nodes must be <= num-trusted-nodes ({config.num_trusted_nodes}), got {config.failed_nodes}",
        ),
        *(
            (
                no_nodes and getattr(config, key) > 0,
                f"{kebab(key)} must be 0 without trusted nodes (tier = 'direct', or another strategy), "
                f"got {getattr(config, key)}",
            )
            for key in keys
        ),
    ]


def _strategy_rules(config: RunConfig) -> Rules:
    """What another strategy than ours cannot keep: it gets tables and gives a table."""
    if config.strategy == "fastpfrec":
        return [(bool(config.strategy_options), "strategy-options must be '' with strategy = 'fastpfrec'")]
    return [
        (
            config.blend_weight < 1,
            f"blend-weight must be 1.0 with strategy = '{config.strategy}', got {config.blend_weight}: "
            "the devices' own deviations belong to our blend",
        ),
        (
            config.unit_rows,
            f"unit-rows must be false with strategy = '{config.strategy}', got true: it does not keep rows at unit length",
        ),
        (
            config.counted,
            f"popularity-weight must be 0.0 with strategy = '{config.strategy}', got {config.popularity_weight}",
        ),
    ]


def _model_rules(config: RunConfig) -> Rules:
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


def _attack_rules(config: RunConfig) -> Rules:
    """What an attack needs to be what it is called."""
    return [
        (
            config.attacked and config.counted,
            f"popularity-weight must be 0.0 with an attack, got {config.popularity_weight}: no attack lies about counts",
        ),
        (
            config.attacked and config.upload == "sampled",
            "attack and node-attack must be 'none' with upload = 'sampled': what liars forge lies on rows of their choice",
        ),
        (
            config.attacked and (config.noise == "gaussian" or config.secure_sum),
            "attack and node-attack must be 'none' with noise = 'gaussian' and with secure-sum: liars' own noise is Laplace, "
            "and nobody sees single uploads there",
        ),
        (
            config.compromised_nodes > config.num_trusted_nodes,
            f"compromised-nodes must be <= num-trusted-nodes ({config.num_trusted_nodes}), got {config.compromised_nodes}",
        ),
        (
            config.compromised_nodes > 0 and config.node_attack == "none",
            f"compromised-nodes must be 0 with node-attack = 'none', got {config.compromised_nodes}; say what they do",
        ),
        (
            config.node_attack != "none" and (config.tier == "direct" or config.strategy != "fastpfrec"),
            f"node-attack must be 'none' where there are no trusted nodes, got {config.node_attack!r}",
        ),
        (
            config.attack_placement == "one-node" and (config.tier == "direct" or config.strategy != "fastpfrec"),
            "attack-placement must be 'spread' where there are no trusted nodes, got 'one-node'",
        ),
    ]
