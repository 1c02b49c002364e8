"""Every model that sees all interactions in one place, by name: lists for validation and test.

EASE (Steck, WWW 2019): B = I - P diag(P)^(-1) with P = (X'X + lambda I)^(-1), scores X B; dense in the items, so for catalogues of
up to `EASE_ITEMS`. iALS (Hu, Koren, Volinsky, ICDM 2008) is the library `implicit`'s (extra `central`). What they have to choose is
chosen on validation, as the number of epochs is for the models of `central_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from fastpfrec_flwr.baselines.central import Phase, SplitLike, history, history_matrix, item_knn_top_k, popularity_top_k
from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings
from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_in_blocks, rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows

CENTRAL = ("popularity", "item-knn", "ease", "ials", *KINDS)
EASE_ITEMS = 15_000
_EASE_L2 = (50.0, 200.0, 800.0)
_IALS_L2 = (0.01, 0.1, 1.0)
_IALS_FACTORS, _IALS_ITERATIONS, _IALS_ALPHA = 64, 15, 10.0


@dataclass(frozen=True)
class Lists:
    """What a central model recommends.

    Attributes
    ----------
    of : part -> (users, top_k) int32. epochs : passes over the data, 0 where there are none. chosen : on validation, in words.
    """

    of: Mapping[Phase, NDArray[np.int32]]
    epochs: int = 0
    chosen: str = ""


def central_lists(
    model: str, split: SplitLike, seed: int = 1, device: str = "cpu", chosen: Mapping[str, Any] | None = None
) -> Lists:
    """Lists of one of `CENTRAL`.

    Parameters
    ----------
    chosen : of MF, LightGCN, SGL and XSimGCL the settings that are not the defaults; see `central_settings.graph_settings`.

    Raises
    ------
    ConfigError for an unknown model or setting, for EASE on too large a catalogue, and for iALS without `implicit`.
    """
    if model == "popularity":
        return Lists({"validation": popularity_top_k(split, "validation"), "test": popularity_top_k(split, "test")})
    if model == "item-knn":
        return Lists({"validation": item_knn_top_k(split, "validation"), "test": item_knn_top_k(split, "test")})
    if model == "ease":
        return _chosen(split, _EASE_L2, ease_top_k)
    if model == "ials":
        return _chosen(split, _IALS_L2, lambda of, phase, l2: ials_top_k(of, phase, l2, seed))
    if model in KINDS:
        from fastpfrec_flwr.baselines.central_graph import graph_top_k

        lists, epochs = graph_top_k(split, model, graph_settings(model, chosen, seed, device))
        return Lists(lists, epochs, f"{epochs} epochs")
    raise ConfigError(f"a central model must be one of {', '.join(CENTRAL)}, got {model!r}")


def _chosen(
    split: SplitLike, settings: tuple[float, ...], top_k: Callable[[SplitLike, Phase, float], NDArray[np.int32]]
) -> Lists:
    """The best on validation of some values of one setting."""
    truth = Rows.of_csr(split.validation)
    tried = [(value, top_k(split, "validation", value)) for value in settings]
    best, lists = max(tried, key=lambda each: metrics(metric_sums(each[1], truth))["ndcg@20"])
    return Lists({"validation": lists, "test": top_k(split, "test", best)}, chosen=f"L2 {best:g}")


def ease_top_k(split: SplitLike, phase: Phase, l2: float, top_k: int = 20) -> NDArray[np.int32]:
    """Lists of EASE, see the module's text; (users, top_k) int32."""
    if split.num_items > EASE_ITEMS:
        raise ConfigError(
            f"ease inverts a dense table of items x items: at most {EASE_ITEMS} items, got {split.num_items}"
        )
    users = history_matrix(split, phase)
    gram = (users.T @ users).toarray().astype(np.float32)
    gram[np.diag_indices_from(gram)] += np.float32(l2)
    inverse = _inverse(gram)
    weights = -inverse / np.diag(inverse)[None, :]
    np.fill_diagonal(weights, 0.0)

    def scores_of(first: int, last: int) -> NDArray[np.float32]:
        return np.asarray(users[first:last] @ weights, np.float32)

    return rank_in_blocks(split.num_users, split.num_items, scores_of, history(split, phase), top_k=top_k)


def _inverse(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of a symmetric positive definite matrix, by its Cholesky factor: a half of the work, and float32 halves it again."""
    factor, fault = lapack.spotrf(matrix.T)  # the transpose is the same matrix, in LAPACK's order
    if not fault:
        upper, fault = lapack.spotri(factor, overwrite_c=True)
    if fault:
        raise ConfigError("ease could not invert its table of items: its L2 is too small for float32")
    found: NDArray[np.float32] = np.triu(upper) + np.triu(upper, 1).T
    return found


def ials_top_k(split: SplitLike, phase: Phase, l2: float, seed: int, top_k: int = 20) -> NDArray[np.int32]:
    """Lists of iALS by `implicit`, weight 1 + alpha on what a user has; (users, top_k) int32."""
    try:
        from implicit.als import AlternatingLeastSquares
    except ImportError:
        raise ConfigError("iALS needs implicit: pip install 'fastpfrec-flwr[central]'") from None
    from scipy.sparse import csr_matrix

    model: Any = AlternatingLeastSquares(
        factors=_IALS_FACTORS, regularization=l2, alpha=_IALS_ALPHA, iterations=_IALS_ITERATIONS, random_state=seed,
        num_threads=1, use_gpu=False,
    )  # fmt: skip
    model.fit(csr_matrix(history_matrix(split, phase)), show_progress=False)
    users, items = (np.ascontiguousarray(each, np.float32) for each in (model.user_factors, model.item_factors))
    return rank_top_k(users, items, history(split, phase), top_k=top_k)
