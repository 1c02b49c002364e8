"""What a model is worth to the users of a data set, through the very API that recommends: the metrics of an evaluation, recomputed.

The devices of a run rank with the private vectors that they trained; here everybody is a newcomer, whose vector is fitted to the
history on the spot. So the figures stand a little beside those of `summary.json`, and differences between exports are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.types import Csr, Split
from fastpfrec_flwr.evaluation.metrics import metrics, per_user_metrics, sum_up
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import Scorer, best_rows

TOP = 20


@dataclass(frozen=True)
class Quality:
    """Figures of one model.

    Attributes
    ----------
    metrics : as an evaluation reports them. lists : (users, 20) rows, -1 where fewer are left.
    """

    metrics: dict[str, float]
    lists: NDArray[np.int32]

    def overlap(self, other: Quality, k: int = 10) -> float:
        """Mean share of the first k items that two models have in common."""
        both = [len(np.intersect1d(a[:k], b[:k])) / k for a, b in zip(self.lists, other.lists, strict=True)]
        return float(np.mean(both))


def users_with_truth(split: Split, most: int = 0, seed: int = 0) -> NDArray[np.int64]:
    """Users that have test items, ascending; `most` of them drawn by seed, 0 for all."""
    users = np.flatnonzero(split.test.lengths() > 0)
    if 0 < most < len(users):
        users = np.sort(derive_generator(seed, "measured users").choice(users, most, replace=False))
    return users


def measure(
    scorer: Scorer,
    split: Split,
    users: NDArray[np.int64],
    refit: bool = False,
    histories: Sequence[NDArray[np.int64]] | None = None,
    privates: NDArray[np.float32] | None = None,
    fit: bool = True,
) -> Quality:
    """Rank the unseen items of `users` and hold them against their test items, as `client.node.Node.evaluate` does.

    Parameters
    ----------
    refit : the model learned from validation items too, so they are part of the history. histories : (users,) rows to recommend
        from instead; what the user has seen is left out of the lists all the same. privates : (users, k) p_u.
    fit : without those, fit one to each history, as a newcomer's recommender does.

    Raises
    ------
    ModelError if the model's items are not the split's.
    """
    if scorer.catalogue.row_names != split.item_ids.tolist():
        raise ModelError(
            f"the model has {scorer.catalogue.label}, the data set other items; give the data set that it was trained on"
        )
    lists = np.full((len(users), TOP), -1, np.int32)
    for place, user in enumerate(users.tolist()):
        seen = np.concatenate([split.train.row(user), split.validation.row(user)]).astype(np.int64)
        history = seen if refit else split.train.row(user).astype(np.int64)
        if histories is not None:
            history = histories[place]
        own = privates[place] if privates is not None else scorer.fitted(history) if fit else None
        scores = scorer.scores(history, own)
        scores[seen] = -np.inf
        best = best_rows(scores, TOP)
        lists[place, : len(best)] = best
    return Quality(metrics(sum_up(per_user_metrics(lists, _rows_of(split.test, users)))), lists)


def _rows_of(csr: Csr, users: NDArray[np.int64]) -> Rows:
    rows = [csr.row(user) for user in users.tolist()]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    items = np.concatenate([*rows, np.empty(0, np.int32)]).astype(np.int32)
    return Rows(items, ends - np.array([len(row) for row in rows], np.int64), ends)
