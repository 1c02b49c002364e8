"""From a configuration to its attacks."""

from __future__ import annotations

from fastpfrec_flwr.attacks.colluding import Alie, Ipm, MinMax, Sybil
from fastpfrec_flwr.attacks.forging import Attack
from fastpfrec_flwr.attacks.items import Clustering, Promotion
from fastpfrec_flwr.attacks.single import Noise, Replacement, Retrained, Scaling, Shift, sign_flip
from fastpfrec_flwr.config import RunConfig

RETRAINED = ("gradient-ascent", "label-flip", "shilling")


def build_attack(config: RunConfig) -> Attack:
    """What lying clients do; `attack` must be neither `none` nor `absent`, which sends nothing."""
    attacks: dict[str, Attack] = {
        "noise": Noise(),
        "shift": Shift(),
        "scaling": Scaling(),
        "sign-flip": sign_flip(),
        "replacement": Replacement(),
        "gradient-ascent": Retrained(),
        "label-flip": Retrained(),
        "shilling": Retrained(),
        "alie": Alie(),
        "ipm": Ipm(),
        "min-max": MinMax(),
        "promotion": Promotion(),
        "clustering": Clustering(),
        "sybil": Sybil(),
    }
    return attacks[config.attack]
