"""What is held against what: one run with each protection alone and together, the paper's default among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastpfrec_flwr.config import RunConfig, parse_run_config

_NO_NOISE: dict[str, Any] = {"noise": "none", "noise_scale": 0.0, "noise_placement": "client"}


@dataclass(frozen=True)
class Protection:
    """A run of the audit.

    Attributes
    ----------
    name : for the table. changes : of the configuration's fields. fresh : false items are drawn anew each round (what the app
        does not do, and why it does not).
    """

    name: str
    changes: Mapping[str, Any]
    fresh: bool = False

    def applied_to(self, config: RunConfig) -> RunConfig:
        """The configuration of this run.

        Raises
        ------
        ConfigError if the rest of the configuration does not go with this protection.
        """
        values = {**config.to_flat_dict(), **{key.replace("_", "-"): value for key, value in self.changes.items()}}
        return parse_run_config(values)


def _laplace(scale: float, **changes: Any) -> dict[str, Any]:
    return {"noise": "laplace", "noise_scale": scale, "noise_placement": "client", "epsilon_budget": 0.0, **changes}


def protections() -> list[Protection]:
    """All of them, the weakest first."""
    bare: dict[str, Any] = {**_NO_NOISE, "epsilon_budget": 0.0}
    return [
        Protection("none", {**bare, "perturbation": "none", "upload": "dense"}),
        Protection("false items", {**bare, "perturbation": "relative", "upload": "dense"}),
        Protection("false items drawn anew each round", {**bare, "perturbation": "relative", "upload": "dense"}, fresh=True),
        Protection(
            "randomised response",
            {**bare, "perturbation": "randomised-response", "keep_prob": 0.9, "perturbation_prob": 0.1, "upload": "dense"},
        ),
        Protection("sparse, false items, lambda 0.1", _laplace(0.1, perturbation="relative", upload="sparse")),
        Protection("sparse, false items, lambda 1", _laplace(1.0, perturbation="relative", upload="sparse")),
        Protection("a tenth of the rows by lot, false items, lambda 0.1", _laplace(0.1, perturbation="relative", upload="sampled")),
        Protection("dense, lambda 0.1", _laplace(0.1, perturbation="none", upload="dense")),
        Protection("dense, false items, lambda 0.1 (paper)", _laplace(0.1, perturbation="relative", upload="dense")),
        Protection("dense, false items, lambda 1", _laplace(1.0, perturbation="relative", upload="dense")),
        Protection(
            "dense, randomised response, lambda 0.1",
            _laplace(0.1, perturbation="randomised-response", keep_prob=0.9, perturbation_prob=0.1, upload="dense"),
        ),
        Protection(
            "dense, false items, clip 1, lambda 20",
            _laplace(20.0, perturbation="relative", upload="dense", clip_norm=1.0, clip_kind="l2"),
        ),
    ]  # fmt: skip
