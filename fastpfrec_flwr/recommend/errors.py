"""The one error of this room."""

from __future__ import annotations

from fastpfrec_flwr.foreseen import Foreseen


class ModelError(Foreseen, ValueError):
    """A model or a history that cannot be used; the message names file, problem and remedy."""
