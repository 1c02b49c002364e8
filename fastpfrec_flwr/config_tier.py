"""Which keys contradict each other above the clients: aggregators, strategies, trusted nodes that fail, and who lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpfrec_flwr.config_wording import Rules, kebab

if TYPE_CHECKING:
    from fastpfrec_flwr.config import RunConfig


def aggregator_rules(config: RunConfig) -> Rules:
    """What medians, and means row by row, need of an upload."""
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


def strategy_rules(config: RunConfig) -> Rules:
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


def node_rules(config: RunConfig) -> Rules:
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


def attack_rules(config: RunConfig) -> Rules:
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
            config.attack_drawn == "each-round" and config.attack in ("gradient-ascent", "label-flip", "shilling"),
            f"attack-drawn must be 'once' with attack = {config.attack!r}: such liars train on what they always claim to have",
        ),
        (
            config.attack_placement == "one-node" and (config.tier == "direct" or config.strategy != "fastpfrec"),
            "attack-placement must be 'spread' where there are no trusted nodes, got 'one-node'",
        ),
    ]
