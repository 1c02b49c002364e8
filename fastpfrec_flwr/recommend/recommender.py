"""The API: load a model once, then ask for as many users as you like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.loading import load_model
from fastpfrec_flwr.recommend.model import Scorer, best_rows


@dataclass(frozen=True)
class Recommendation:
    """One item of a list.

    Attributes
    ----------
    rank : from 1. item : its id. title : empty where the catalogue has none. score : comparable within one list only.
    """

    rank: int
    item: str
    title: str
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Recommendations:
    """A list, and what became of the history behind it.

    Attributes
    ----------
    items : best first. known, unknown : distinct items of the history that the catalogue has, and has not.
    """

    items: tuple[Recommendation, ...]
    known: int
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"known": self.known, "unknown": self.unknown, "items": [each.to_dict() for each in self.items]}


class Recommender:
    """Recommends to anybody with a history, on the machine that holds it: nothing is sent anywhere."""

    def __init__(self, model: Scorer) -> None:
        self.model = model

    @property
    def catalogue(self) -> Catalogue:
        """The items."""
        return self.model.catalogue

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Where the model comes from."""
        return self.model.manifest

    @staticmethod
    def load(path: str | Path, catalogue: str | Path | None = None) -> Recommender:
        """Open a run folder or an exported model.

        Parameters
        ----------
        path : a run folder, or a file that `fastpfrec export` wrote (.npz, .safetensors, .onnx).
        catalogue : a catalogue file, for its titles or because the run has none.

        Raises
        ------
        ModelError, CatalogueError if something cannot be read or does not fit together.
        """
        return Recommender(load_model(Path(path), None if catalogue is None else Catalogue.load(Path(catalogue))))

    def recommend(
        self,
        history: Iterable[str],
        k: int = 10,
        private: NDArray[np.float32] | None = None,
        without: Iterable[str] = (),
        fit: bool = True,
    ) -> Recommendations:
        """The best items for somebody who has chosen `history`.

        Parameters
        ----------
        history : ids; those that the catalogue does not have are counted and passed over. They are never recommended again. An
            empty one gives what suits most people.
        k : how many. private : (k,) the device's private vector, where it has trained. fit : without one, fit one to the history
            on the spot; False ranks by the history's rows alone.
        without : further ids to leave out, that say nothing of the user's taste (out of stock, say).

        Raises
        ------
        ModelError if k < 1.
        """
        if k < 1:
            raise ModelError(f"the number of recommendations must be >= 1, got {k}")
        mapped = self.catalogue.rows_of(str(each) for each in history)
        rows = np.array(mapped.rows, np.int64)
        if private is None and fit:
            private = self.model.fitted(rows)
        scores = self.model.scores(rows, private)
        scores[self.catalogue.rows_of(str(each) for each in without).rows] = -np.inf
        ids, catalogue = self.catalogue.ids, self.catalogue
        items = tuple(
            Recommendation(rank, ids[row], catalogue.title(row), float(scores[row]))
            for rank, row in enumerate(best_rows(scores, k).tolist(), 1)
        )
        return Recommendations(items, len(mapped.rows), mapped.unknown)
