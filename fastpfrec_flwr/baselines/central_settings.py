"""How the central models of `central_graph` are trained: what is the same for all, what belongs to one, what differs by recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from fastpfrec_flwr.config import ConfigError

Kind = Literal["mf", "lightgcn", "sgl", "xsimgcl"]
KINDS: tuple[Kind, ...] = ("mf", "lightgcn", "sgl", "xsimgcl")
Sampling = Literal["pairs", "users"]
Moment = Literal["coordinate", "row"]
_CHOICES = {"sampling": get_args(Sampling), "moment": get_args(Moment)}


@dataclass(frozen=True)
class GraphSettings:
    """How a central model is trained; the same for all but what belongs to one.

    Attributes
    ----------
    epochs : at most; the step size falls along a cosine from `learning_rate` to zero over them.
    every : epochs between looks at validation NDCG@20. patience : looks without a better one.
    batches : steps per epoch. negatives : drawn for each pair of a step. l2 : of a pair's rows.
    sampling : `pairs`, every pair once an epoch; or `users`, as many pairs, each a user and one of the user's items at random (as
        LightGCN's authors do): everybody counts alike, as in the metrics.
    moment : Adam's second moment, one for each `coordinate` or for each `row`. moment_memory : its beta.
    drop : share of edges left out in each of SGL's graphs.
    contrast, temperature : weight and temperature of InfoNCE. contrast_pairs : of a batch whose users and items are contrasted.
    noise : length of XSimGCL's noise per layer. contrast_layer : the layer that it holds against the final rows.
    """

    embedding_dim: int = 64
    layers: int = 3
    epochs: int = 120
    every: int = 20
    patience: int = 3
    batches: int = 4
    sampling: Sampling = "pairs"
    negatives: int = 1
    moment: Moment = "coordinate"
    moment_memory: float = 0.999
    learning_rate: float = 0.03
    l2: float = 1e-4
    drop: float = 0.1
    contrast: float = 0.1
    temperature: float = 0.2
    contrast_pairs: int = 1024
    noise: float = 0.2
    contrast_layer: int = 1
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name} of a central model must be one of {', '.join(choices)}, got {value!r}")
        if not 0 <= self.moment_memory < 1:
            raise ConfigError(f"moment-memory of a central model must be in [0, 1), got {self.moment_memory!r}")
        for name in ("embedding_dim", "epochs", "every", "patience", "batches", "negatives"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{name.replace('_', '-')} of a central model must be a whole number >= 1, got {value!r}"
                )


_OWN: Mapping[Kind, Mapping[str, Any]] = {
    "mf": {"layers": 0, "learning_rate": 0.05, "l2": 1e-2},
    "lightgcn": {"l2": 1e-3},
    "sgl": {"epochs": 60, "contrast": 0.03},
    "xsimgcl": {"epochs": 60, "contrast": 0.1, "temperature": 0.15},
}
# Said by the run, not chosen.
_OF_THE_RUN = ("seed", "device")


def graph_settings(
    kind: Kind, chosen: Mapping[str, Any] | None = None, seed: int = 1, device: str = "cpu"
) -> GraphSettings:
    """A model's settings.

    Parameters
    ----------
    chosen : what differs from the defaults, by the names of a TOML file (`learning-rate`).

    Raises
    ------
    ConfigError for a setting that there is not.
    """
    known = {field.name.replace("_", "-"): field.name for field in fields(GraphSettings)}
    for name in _OF_THE_RUN:
        del known[name]
    if unknown := [name for name in chosen or {} if name not in known]:
        raise ConfigError(f"{unknown[0]!r} is no setting of a central model; there are {', '.join(known)}")
    changes = {known[name]: value for name, value in (chosen or {}).items()}
    return replace(GraphSettings(seed=seed, device=device), **{**_OWN[kind], **changes})


def told(settings: GraphSettings) -> dict[str, Any]:
    """All settings by the names of a TOML file, without those of the run."""
    return {
        field.name.replace("_", "-"): getattr(settings, field.name)
        for field in fields(settings)
        if field.name not in _OF_THE_RUN
    }
