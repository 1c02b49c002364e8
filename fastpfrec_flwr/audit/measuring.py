"""From what observers have seen to figures: means over the watched users with 95 % intervals, beside what chance gives."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.audit.observers import auc, over_uploads, precision_at_truth
from fastpfrec_flwr.audit.recording import Seen


@dataclass(frozen=True)
class Figure:
    """A mean over users: its value, half of its 95 % interval, and what an observer who sees nothing would get."""

    value: float
    margin: float
    chance: float

    @staticmethod
    def of(values: list[float], chances: list[float]) -> Figure:
        """Users without a figure (nothing touched, no true item) are left out."""
        kept = np.array(
            [(value, chance) for value, chance in zip(values, chances, strict=True) if not math.isnan(value)]
        )
        if len(kept) == 0:
            return Figure(math.nan, math.nan, math.nan)
        spread = float(kept[:, 0].std(ddof=1)) if len(kept) > 1 else math.nan
        return Figure(float(kept[:, 0].mean()), 1.96 * spread / math.sqrt(len(kept)), float(kept[:, 1].mean()))

    def to_dict(self) -> dict[str, float | None]:
        """Return it as JSON-able values."""
        return {key: None if math.isnan(value) else value for key, value in asdict(self).items()}


# What stands in the table, in its order; "one" is a user's first upload, "all" all of them together.
FIGURES = {
    "touched_precision_one": "trusted node: of the rows that it sees move, how many are the user's items, one upload",
    "touched_recall_one": "trusted node: of the user's items, how many it sees move, one upload",
    "touched_precision_all": "trusted node: the same precision, of rows that moved in every upload",
    "touched_recall_all": "trusted node: the same recall, of rows that moved in every upload",
    "node_auc_one": "trusted node: AUC of telling the user's items from all others, one upload",
    "node_auc_all": "trusted node: the same, all uploads",
    "reconstructed_one": "trusted node: share of the user's items among as many guesses, one upload",
    "reconstructed_all": "trusted node: the same, all uploads",
    "server_auc_one": "server: AUC of telling the user's items from all others by its node's mean, one round",
    "server_auc_all": "server: the same, all rounds that the user took part in",
}


def measure(seen: dict[int, Seen], truth: dict[int, NDArray[np.bool_]]) -> dict[str, Figure]:
    """All figures.

    Parameters
    ----------
    seen : of each watched user. truth : (items,) its train items.
    """
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    chances: dict[str, list[float]] = {name: [] for name in FIGURES}

    def add(name: str, value: float, chance: float) -> None:
        found[name].append(value)
        chances[name].append(chance)

    for user, each in seen.items():
        if not each.upload_scores:
            continue
        own = truth[user]
        share = float(own.mean())
        always = np.logical_and.reduce(each.touched)
        for name, touched in (("one", each.touched[0]), ("all", always)):
            add(f"touched_precision_{name}", float(own[touched].mean()) if touched.any() else math.nan, share)
            # Guessing as many rows blindly finds that share of them.
            add(f"touched_recall_{name}", float(touched[own].mean()) if own.any() else math.nan, float(touched.mean()))
        sums = over_uploads(each.upload_scores)
        for name, scores in (("one", sums[0]), ("all", sums[-1])):
            add(f"node_auc_{name}", auc(scores, own), 0.5)
            add(f"reconstructed_{name}", precision_at_truth(scores, own), share)
        if each.node_scores:
            of_nodes = over_uploads(each.node_scores)
            add("server_auc_one", auc(of_nodes[0], own), 0.5)
            add("server_auc_all", auc(of_nodes[-1], own), 0.5)
    return {name: Figure.of(found[name], chances[name]) for name in FIGURES}


def reconstruction_curve(seen: dict[int, Seen], truth: dict[int, NDArray[np.bool_]]) -> list[Figure]:
    """Share of a user's items among as many guesses, after its first upload, its first two, and so on."""
    longest = max((len(each.upload_scores) for each in seen.values()), default=0)
    curve = []
    for uploads in range(1, longest + 1):
        values, chances = [], []
        for user, each in seen.items():
            if len(each.upload_scores) >= uploads:
                scores: Any = np.sum(each.upload_scores[:uploads], axis=0)
                values.append(precision_at_truth(scores, truth[user]))
                chances.append(float(truth[user].mean()))
        curve.append(Figure.of(values, chances))
    return curve
