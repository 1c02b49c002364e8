"""A real device keeps the table that it last judged the best, so that it can recommend without asking anybody."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.files import source_fingerprint, write_atomically
from fastpfrec_flwr.model.linear import NoLinearFormError, linear_form
from fastpfrec_flwr.recommend.artifact import npz_bytes, pack
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel

KEPT = "model.npz"


def keep_model(
    state_dir: Path,
    table: NDArray[np.float32],
    counts: NDArray[np.float32] | None,
    catalogue: Catalogue,
    config: Mapping[str, Any],
    state_id: str,
) -> Path | None:
    """Write `model.npz` under the device's state folder, as `fastpfrec export` would.

    Parameters
    ----------
    table : (items, k), as the server sent it. counts : (items,) where popularity has a say. config : under its run-config keys.
    state_id : of the training, under which the device keeps its private vector.

    Returns
    -------
    The file; None, with a warning in the log, where it cannot be written or the model needs more than its table:
    recommendations are no reason to lose a round.
    """
    run = {"state_id": state_id, "data_set": config["data-set"], "seed": config["seed"], "source": source_fingerprint()}
    path = state_dir / KEPT
    try:
        model = LocalModel(table, linear_form(config), catalogue, counts, {"run": run})
        write_atomically(path, npz_bytes(*pack(model, "fp32")))
    except (OSError, ModelError, NoLinearFormError) as error:
        logging.getLogger(__name__).warning("%s: the model is not kept for recommendations (%s)", path, error)
        return None
    return path
