"""The local model: the item table with its linear form, and how a history becomes scores. NumPy alone.

Why not the compiled kernel that ranks whole cohorts: for one user at a time a matrix-vector product costs a millisecond, while
importing Numba costs half a second and 100 MB, torch more. A test holds the two to the same lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.model.linear import LinearForm, popularity_bias, row_norms, weights_of_norms
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.fitting import fitted_vector


class Scorer(Protocol):
    """What a recommender needs of a model, whoever computes it."""

    @property
    def catalogue(self) -> Catalogue: ...  # noqa: D102

    @property
    def manifest(self) -> Mapping[str, Any]: ...  # noqa: D102

    def scores(self, rows: NDArray[np.int64], private: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(rows of the table,) score of each item for a history; what is in it, and reserved rows, at minus infinity.

        Parameters
        ----------
        rows : (n,) of the history, distinct. private : (k,) p_u, where the device has one; None = zero, as for a new user.
        """

    def fitted(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """(k,) a private vector for a history, see `fitting`; None where there is nothing to fit, or the model cannot."""


@dataclass(frozen=True)
class LocalModel:
    """All that scoring needs.

    Attributes
    ----------
    table : (rows, k) float32, E. form : how a history and E become scores. counts : (rows,) noised users per item where
        popularity has a say, else None. manifest : where it comes from, JSON-able.
    """

    table: NDArray[np.float32]
    form: LinearForm
    catalogue: Catalogue
    counts: NDArray[np.float32] | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or len(self.table) != self.catalogue.num_rows:
            raise ModelError(
                f"a table of shape {self.table.shape} does not fit {self.catalogue.label} with {self.catalogue.num_rows} rows; "
                "give the catalogue that the model was trained with"
            )
        if not np.isfinite(self.table).all():
            raise ModelError(
                "the item table holds values that are no finite numbers: the training diverged; train anew"
            )
        if self.counted and (self.counts is None or self.counts.shape != (len(self.table),)):
            raise ModelError(
                "this model ranks by popularity too and its file has no item counts; export it anew from its run folder"
            )

    @property
    def counted(self) -> bool:
        """Whether popularity has a say."""
        return self.form.popularity_weight > 0

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """(rows,) w, the norm weights of the table as it is here."""
        return weights_of_norms(row_norms(self.table), self.form.norm_exponent)

    @cached_property
    def background(self) -> tuple[NDArray[np.float64], float]:
        """(k, k) w V^T V + l2 I of a least squares, rows brought to mean square 1, and by what they were divided."""
        square = float(np.einsum("ij,ij->", self.table, self.table, dtype=np.float64)) / len(self.table)
        scale = float(np.sqrt(max(square, 1e-30)))
        rows = self.table.astype(np.float64) / scale
        return self.form.background * (rows.T @ rows) + self.form.ridge * np.eye(rows.shape[1]), scale

    @cached_property
    def bias(self) -> NDArray[np.float32]:
        """(rows,) what is added to every user's score: the popularity's share, minus infinity for reserved rows."""
        bias = np.zeros(len(self.table), np.float32)
        if self.counted and self.counts is not None:
            bias += popularity_bias(self.counts, self.form.popularity_weight)
        bias[self.catalogue.num_items :] = -np.inf
        return bias

    @cached_property
    def stranger(self) -> NDArray[np.float32]:
        """(rows,) scores for somebody without a history: against the mean row, and the popularity's share.

        Most items are in the tail. As negatives they are pushed away from the users, so their mean points away from the mean user,
        and its opposite ranks about as well as counts would, which nobody has (docs/recommend.md has the figures; the rows'
        lengths do not do: noise makes long rows of items that few train). A spectral table has a column of noised counts.
        """
        if self.form.least_squares:
            return self.table[:, 0] + self.bias
        vector = -self.table[: self.catalogue.num_items].mean(axis=0)
        if self.form.unit_users:
            vector /= np.maximum(np.linalg.norm(vector), np.float32(1e-12))
        scores: NDArray[np.float32] = np.einsum("ij,j->i", self.table, vector) + self.bias
        return scores

    def user_vector(self, rows: NDArray[np.int64], private: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(k,) the user's vector; parameters as in `Scorer.scores`. A least squares has no use for a private vector."""
        if self.form.least_squares:
            return self._solved(rows)
        total = self.weights[rows] @ self.table[rows]
        vector = np.float32(self.form.neighbour_weight / np.sqrt(max(len(rows), 1))) * total
        if private is not None:
            if private.shape != vector.shape:
                raise ModelError(
                    f"the private vector has {private.shape[0]} dimensions, the model {len(vector)}: it belongs to another run"
                )
            vector = vector + np.float32(self.form.user_weight) * private
        if self.form.unit_users:
            vector = vector / np.maximum(np.linalg.norm(vector), np.float32(1e-12))
        return vector.astype(np.float32)

    def _solved(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        base, scale = self.background
        mine = self.table[rows].astype(np.float64) / scale
        normal = base + np.einsum("ij,ik->jk", mine, mine)
        vector: NDArray[np.float32] = np.linalg.solve(normal, mine.sum(axis=0)).astype(np.float32)
        return vector

    def scores(self, rows: NDArray[np.int64], private: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """See `Scorer`."""
        if not len(rows):
            return self.stranger.copy()
        # Not `@`: a product of this size is handed to a pool of threads, which costs a busy machine 30 ms where one needs 1.
        scores: NDArray[np.float32] = np.einsum("ij,j->i", self.table, self.user_vector(rows, private))
        scores += self.bias
        scores[rows] = -np.inf
        return scores

    def fitted(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """See `Scorer`."""
        return fitted_vector(self.table, self.weights, self.form, rows, self.catalogue.num_items)


def best_rows(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The rows of the k highest scores, best first, ties by smaller row; fewer where fewer are above minus infinity."""
    if k < len(scores):
        bound = np.partition(scores, len(scores) - k)[len(scores) - k]
        rows = np.flatnonzero(scores >= bound)
    else:
        rows = np.arange(len(scores))
    rows = rows[np.isfinite(scores[rows])]
    return rows[np.argsort(-scores[rows], kind="stable")][:k]
