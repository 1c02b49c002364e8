"""Which configuration keys contradict each other: (whether the rule is broken, what to say) by subject.

A message names the key, the rule and the value. `config.RunConfig` raises the first that is broken, in the order of `rules_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpfrec_flwr.config_models import encoder_rules, model_rules
from fastpfrec_flwr.config_privacy import privacy_rules, secure_rules
from fastpfrec_flwr.config_tier import aggregator_rules, attack_rules, node_rules, strategy_rules
from fastpfrec_flwr.config_wording import Rules

if TYPE_CHECKING:
    from fastpfrec_flwr.config import RunConfig


def rules_of(config: RunConfig) -> Rules:
    """All of them."""
    return [
        *_general_rules(config),
        *secure_rules(config),
        *privacy_rules(config),
        *encoder_rules(config),
        *aggregator_rules(config),
        *strategy_rules(config),
        *node_rules(config),
        *model_rules(config),
        *attack_rules(config),
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
