"""Ranking as one linear form: what most encoders come to when they recommend. NumPy alone, so that a device without torch has it.

    user = a p_u + b n^(-1/2) sum_{l in N(u)} w_l E_l,   score_j = user . E_j + bias_j,   n = |N(u)|

FastGNN: a = c_p, b = c_g, w the norm weights. LightGCN: shares of its layers, w = 1 (see `model.lightgcn`). With cosine scores
the user is brought to unit length; the bias is the popularity's. The spectral encoder's user is the solution of a least squares
instead (see `model.spectral`). Models that rank in another way (a network, tables of clusters, rows that stay at home) have no
such form, and say so instead of ranking wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NORM_FLOOR = 1e-3
# Baselines whose encoder is LightGCN's, whatever the key `encoder` says; of FedMF nothing is left where there is no private vector.
_LAYERED = ("lightgcn", "fedgnn")


class NoLinearFormError(ValueError):
    """A configuration whose lists do not come from a linear form; the message names key, rule and value."""


class LinearForm(NamedTuple):
    """Coefficients of the form.

    Attributes
    ----------
    user_weight : a. neighbour_weight : b. norm_exponent : of the norm weights, 0 = all ones.
    unit_users : bring the user's vector to unit length. popularity_weight : of the bias, 0 = none.
    background, ridge : w and l2 of a least squares for the user's vector; no ridge = the sum above.
    """

    user_weight: float
    neighbour_weight: float
    norm_exponent: float
    unit_users: bool
    popularity_weight: float
    background: float = 0.0
    ridge: float = 0.0

    @property
    def least_squares(self) -> bool:
        """Whether the user's vector solves a least squares."""
        return self.ridge > 0

    def to_dict(self) -> dict[str, Any]:
        """What `LinearForm(**...)` takes; without what only a least squares has, where it is none, as older files are."""
        return {
            name: value
            for name, value in self._asdict().items()
            if self.least_squares or name not in ("background", "ridge")
        }


def layer_weights(num_layers: int) -> tuple[float, float, float]:
    """Shares of LightGCN's layers 0..L in their mean: even ones (0 included), odd ones, even ones above 0."""
    even, odd = num_layers // 2 + 1, (num_layers + 1) // 2
    return even / (num_layers + 1), odd / (num_layers + 1), (even - 1) / (num_layers + 1)


def linear_form(config: Mapping[str, Any]) -> LinearForm:
    """The form that a run's configuration (under its run-config keys) ranks with.

    Raises
    ------
    NoLinearFormError where there is none, or none is known (a model class of one's own).
    """
    model, encoder = config["model"], config["encoder"]
    if model not in ("fastpfrec", *_LAYERED):
        raise NoLinearFormError(
            f"model must be one of fastpfrec, {', '.join(_LAYERED)} to recommend from table and history alone, got {model!r}"
        )
    if model == "fastpfrec" and encoder == "spectral":
        return LinearForm(
            0.0, 0.0, 0.0, False, config["popularity-weight"], config["background-weight"], config["user-l2"]
        )
    unit = config["loss"] == "ccl"
    if model in _LAYERED or encoder == "lightgcn":
        even, odd, _ = layer_weights(config["num-layers"])
        scale = 1.0 / (config["num-layers"] + 1)
        return LinearForm(even * scale, odd * scale, 0.0, unit, config["popularity-weight"])
    return LinearForm(
        config["user-weight"], config["neighbour-weight"], config["norm-exponent"], unit, config["popularity-weight"]
    )


def weights_of_norms(norms: NDArray[np.float64], exponent: float) -> NDArray[np.float32]:
    """Norm weights from row norms.

    w_l = (||E_l|| + floor)^(-a) / Z with Z = sum (||E|| + floor)^(1 - a) / sum (||E|| + floor): weighted rows keep the table's
    mean norm, and a > 0 takes away the pull of long (popular) rows.

    Parameters
    ----------
    norms : (items,) float64. exponent : a; 0 gives ones.

    Returns
    -------
    (items,) float32.
    """
    if exponent == 0:
        return np.ones(len(norms), np.float32)
    floored = norms + NORM_FLOOR
    powers = np.sqrt(floored) if exponent == 0.5 else floored**exponent
    scale = (floored / powers).sum() / floored.sum()
    weights: NDArray[np.float32] = (1.0 / (powers * scale)).astype(np.float32)
    return weights


def row_norms(table: NDArray[np.float32]) -> NDArray[np.float64]:
    """(items,) L2 norms of the rows, summed in float64."""
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", table, table, dtype=np.float64))
    return norms


def popularity_bias(noised_counts: NDArray[np.floating[Any]], weight: float) -> NDArray[np.float32]:
    """b log(max(1/2, noised count)) per item.

    Parameters
    ----------
    noised_counts : (items,) users per item as the server knows it. weight : b.
    """
    bias: NDArray[np.float32] = (weight * np.log(np.maximum(noised_counts, 0.5))).astype(np.float32)
    return bias
