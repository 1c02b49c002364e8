"""An evaluation on a SuperNode: whose lists are made, and their metrics added up; who ranks is the model's affair."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.history import own_rows
from fastpfrec_flwr.client.participation import places_of, round_users
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.evaluation.metrics import MetricSums, per_user_metrics, sum_up
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.evaluation.user_metrics import UserMetrics
from fastpfrec_flwr.parallel import one_thread_products


class Ranker(Protocol):
    """Ranks the catalogue for some users."""

    def __call__(self, asked: NDArray[np.int64], masks: list[Rows]) -> NDArray[np.int32]:
        """(asked, 20) items, best first, as from `evaluation.ranking.rank_top_k`.

        Parameters
        ----------
        asked : places of the users in the shard. masks : what each of them cannot be recommended.
        """


def sampled_places(config: RunConfig, users: NDArray[np.int64], num_users: int) -> NDArray[np.int64]:
    """Places of the users that a simulation's evaluation ranks for: the same in every round, however they are spread.

    Parameters
    ----------
    users : of the shard. num_users : of the whole simulation.
    """
    if config.evaluate_users == 0:
        return np.arange(len(users))
    return places_of(users, round_users(config.seed, "evaluation", 1, config.evaluate_users, num_users))


def evaluate_part(
    rank: Ranker, shard: Shard, sample: NDArray[np.int64], part: str, user_metrics: Path | None
) -> MetricSums:
    """Rank the unseen items of a sample's users and add up the metrics; masked is what they have seen before `part`.

    Parameters
    ----------
    rank : of the sample's users. sample : their places in the shard. part : `validation` or `test`.
    user_metrics : file for the test metrics of each user; None keeps none.
    """
    truth = shard.validation if part == "validation" else shard.test
    seen = [shard.train] if part == "validation" else [shard.train, shard.validation]
    asked = np.flatnonzero(truth.ends[sample] > truth.starts[sample])
    places = sample[asked]
    with one_thread_products():
        top = rank(asked, [own_rows(rows, places) for rows in seen])
    per_user = per_user_metrics(top, own_rows(truth, places))
    if part == "test" and user_metrics is not None:
        UserMetrics.of(shard.users[places], per_user).save(user_metrics)
    return sum_up(per_user)
