"""What an observer reads out of changes of the table: pure arithmetic on what it sees, without the user's data.

The curious trusted node sees a client's whole upload, the curious server a node's mean. Both know the algorithm: in one local step
a positive item moves towards the user's vector, a negative one away from it, and there are few positives that move far and many
negatives that move little. So the rows of an upload lie along one direction, and where a row lies on it says what the item was.
Which end of it is which, the number of negatives tells, which is in the public configuration.
(After Yuan et al., "Interaction-level membership inference attack against federated recommender systems", WWW 2023, who
train a shadow model on guesses to get at the same direction; with one step a round it can be read off the rows themselves.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fastpfrec_flwr.privacy.laws import NoiseLaw

# Standard deviations of pure noise that a row's squared norm must stand out to count as touched.
TOUCHED_MARGIN = 4.0
_REFINEMENTS = 4


def touched_rows(change: NDArray[np.float32], noise: NoiseLaw) -> NDArray[np.bool_]:
    """(rows,) whether a row moved by more than its noise explains; without noise, whether it moved.

    Parameters
    ----------
    change : (rows, k). noise : of each coordinate, known to everybody.
    """
    squares = np.square(change, dtype=np.float64).sum(axis=1)
    k = change.shape[1]
    expected = k * noise.unit_variance * noise.scale**2
    spread = math.sqrt(k * noise.unit_square_variance) * noise.scale**2
    moved: NDArray[np.bool_] = squares > expected + TOUCHED_MARGIN * spread
    return moved


def interaction_scores(change: NDArray[np.float32], moved: NDArray[np.bool_], negatives: float) -> NDArray[np.float64]:
    """(rows,) how much each row looks like a positive item of whoever made this change; no unit, higher is likelier.

    The direction of the rows is the first eigenvector of their second moments, turned so that the negatives lie at its far end
    (`_points_backwards`). Then it is pulled towards the rows that stand out on it, as a shadow model would be to its positives.

    Parameters
    ----------
    change : (rows, k). moved : (rows,) what `touched_rows` says. negatives : drawn by whoever made the change.
    """
    rows = change.astype(np.float64)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    along = rows @ vectors[:, -1]
    if _points_backwards(along, moved, negatives):
        along = -along
    for _ in range(_REFINEMENTS):
        largest = along.max(initial=0.0)
        if largest <= 0:
            break
        weights = np.where(along > largest / 4, along, 0.0)
        direction = weights @ rows
        along = rows @ (direction / max(float(np.linalg.norm(direction)), 1e-300))
    scores: NDArray[np.float64] = along / max(float(np.sqrt(np.mean(along**2))), 1e-300)
    return scores


def _points_backwards(along: NDArray[np.float64], moved: NDArray[np.bool_], negatives: float) -> bool:
    """Whether the positives lie at the negative end.

    Where at least half of the negatives stand out from the noise, they are the end with their number of rows. Where fewer do, the
    positives are the end whose rows move further. Where nothing does, few lie far out at one end and many near at the other.
    """
    ahead, behind = along[moved & (along > 0)], -along[moved & (along < 0)]
    if len(ahead) == len(behind) == 0:
        return bool((along**3).sum() < 0)
    if max(len(ahead), len(behind)) >= negatives / 2:
        return abs(len(behind) - negatives) > abs(len(ahead) - negatives)
    strengths = [float(each.mean()) if len(each) else 0.0 for each in (ahead, behind)]
    return strengths[1] > strengths[0]


def over_uploads(scores: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """What each further upload of a user adds: running sums of its scores."""
    return list(np.cumsum(np.array(scores), axis=0))


def node_surprises(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(nodes, rows) by how much a node's score of a row exceeds the other nodes', in their standard deviations.

    What is popular is so in every node: only what sets a node apart can be laid at the door of its clients.

    Parameters
    ----------
    scores : (nodes, rows), at least two nodes.
    """
    nodes = len(scores)
    total, squares = scores.sum(axis=0), (scores**2).sum(axis=0)
    mean = (total - scores) / (nodes - 1)
    variance = np.maximum((squares - scores**2) / (nodes - 1) - mean**2, 0.0)
    floor = max(float(np.median(variance)), 1e-300)
    found: NDArray[np.float64] = (scores - mean) / np.sqrt(variance + floor)
    return found


def auc(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Probability that a true item scores above a false one (ties count half); NaN without one of either."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if positives == 0 or negatives == 0:
        return math.nan
    ranks = rankdata(scores)
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def precision_at_truth(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Share of the `n` highest-scored items that are true, where `n` is how many are: precision, recall and F1 in one.

    That the observer knows `n` is assumed; ties go to the lower item number. NaN without a true item.
    """
    n = int(truth.sum())
    if n == 0:
        return math.nan
    best = np.argsort(-scores, kind="stable")[:n]
    return float(truth[best].mean())
