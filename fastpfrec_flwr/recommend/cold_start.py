"""Rows for new items without training: from what the first users who chose them have chosen besides.

    E_new = L mean over its users u of v_u / ||v_u||,   v_u = n_u^(-1/2) sum_{l in N(u), l known} w_l E_l

v_u is the vector that u is ranked with, so the row points to the people who want the item. L is the mean length of the known rows
that are about as popular: length is how the table says popularity. Whoever computes it sees those histories, so it is for
histories that lie in one place (a panel, one's own shop); on devices new rows are trained (`train-items = "new"`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.model.linear import row_norms
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel

# Known items next in popularity whose mean length a new row gets.
_NEIGHBOURS = 20


def grown(model: LocalModel, catalogue: Catalogue) -> LocalModel:
    """The model under a later version of its catalogue, rows of new items at zero.

    Raises
    ------
    ModelError unless the catalogue begins with the model's items: rows never move.
    """
    old = model.catalogue
    if catalogue.ids[: old.num_items] != old.ids or catalogue.num_rows < len(model.table):
        raise ModelError(
            f"{catalogue.label} is no extension of the model's ({old.label}): it must begin with the same items in the same rows; "
            "make it with `fastpfrec catalogue extend`"
        )
    table = np.zeros((catalogue.num_rows, model.table.shape[1]), np.float32)
    table[: old.num_items] = model.table[: old.num_items]
    counts = None
    if model.counts is not None:
        counts = np.zeros(catalogue.num_rows, np.float32)
        counts[: old.num_items] = model.counts[: old.num_items]
    return replace(model, table=table, catalogue=catalogue, counts=counts)


def filled(
    model: LocalModel, catalogue: Catalogue, histories: Sequence[Sequence[str]]
) -> tuple[LocalModel, dict[str, int]]:
    """The model with rows for the new items of `catalogue`.

    Parameters
    ----------
    histories : ids that each of some users has chosen, known and new ones.

    Returns
    -------
    The model and, for each new item, how many of the users had it beside a known item; those with none keep a zero row.
    """
    after = grown(model, catalogue)
    known = model.catalogue.num_items
    rows = [np.array(catalogue.rows_of(history).rows, np.int64) for history in histories]
    popularity = np.bincount(np.concatenate([*rows, np.empty(0, np.int64)]), minlength=catalogue.num_rows)
    directions: dict[int, NDArray[np.float64]] = {}
    users: dict[int, int] = {}
    for each in rows:
        new, old = each[each >= known], each[each < known]
        if not len(new) or not len(old):
            continue
        vector = model.user_vector(old).astype(np.float64)
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
        for row in new.tolist():
            directions[row] = directions.get(row, np.zeros(len(vector))) + vector
            users[row] = users.get(row, 0) + 1
    order = np.argsort(popularity[:known], kind="stable")
    norms, ascending = row_norms(model.table)[:known][order], popularity[order]
    for row, total in directions.items():
        size = float(np.linalg.norm(total))
        if size > 0:
            after.table[row] = total / size * _length_like(norms, ascending, int(popularity[row]))
    if after.counts is not None:
        after.counts[known:] = popularity[known:]
    ids: Mapping[int, str] = dict(enumerate(catalogue.ids))
    return after, {ids[row]: users.get(row, 0) for row in range(known, catalogue.num_items)}


def _length_like(norms: NDArray[np.float64], popularity: NDArray[np.int64], count: int) -> float:
    """Mean length of the rows nearest in popularity; `popularity` ascends, `norms` goes with it."""
    middle = int(np.searchsorted(popularity, count))
    first = min(max(middle - _NEIGHBOURS // 2, 0), max(len(norms) - _NEIGHBOURS, 0))
    return float(norms[first : first + _NEIGHBOURS].mean())
