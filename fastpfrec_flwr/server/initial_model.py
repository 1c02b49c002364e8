"""The table that a training begins from: drawn from the seed, with the rows of a model of before where it has the item."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import RESERVED
from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.loading import load_model
from fastpfrec_flwr.recommend.model import LocalModel
from fastpfrec_flwr.server.steps import ServerState, initial_table


def first_state(row_names: list[str], config: RunConfig) -> ServerState:
    """The server's state before round 1: the items' rows, and what else the model shares.

    Raises
    ------
    ConfigError as `starting_table`.
    """
    return ServerState.start(build_layout(config).start(starting_table(row_names, config), config.seed))


def starting_table(row_names: list[str], config: RunConfig) -> NDArray[np.float32]:
    """E of round 0: (items, k), rows of `initial-model` where it has the item, drawn from the seed elsewhere.

    Raises
    ------
    ConfigError if the initial model cannot be read or has another embedding dimension.
    """
    table = initial_table(len(row_names), config.embedding_dim, config)
    if config.initial_model:
        model = _initial_model(config)
        rows, known = _places(row_names, model)
        table[known] = model.table[rows[known]]
    return table


def known_rows(row_names: list[str], config: RunConfig) -> NDArray[np.bool_]:
    """(items,) True where the initial model has the item.

    Raises
    ------
    ConfigError if it has all of them (then there is nothing to train) or cannot be read.
    """
    _, known = _places(row_names, _initial_model(config))
    # Reserved rows are nobody's: there is nothing to learn for them.
    known |= np.array([name.startswith(RESERVED) for name in row_names], np.bool_)
    if known.all():
        raise ConfigError(
            "train-items = 'new' needs items that initial-model does not have, and it has them all; extend the catalogue first"
        )
    return known


def _places(row_names: list[str], model: LocalModel) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    found = [model.catalogue.row(name) for name in row_names]
    rows = np.array([-1 if row is None else row for row in found], np.int64)
    return rows, rows >= 0


def _initial_model(config: RunConfig) -> LocalModel:
    try:
        model = load_model(Path(config.initial_model))
    except (ModelError, OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"initial-model: {error}") from error
    if not isinstance(model, LocalModel):
        raise ConfigError(
            f"initial-model must be a run folder or an .npz or .safetensors export, got {config.initial_model!r}"
        )
    if model.table.shape[1] != config.embedding_dim:
        raise ConfigError(
            f"embedding-dim must be {model.table.shape[1]} to go on from initial-model, got {config.embedding_dim}"
        )
    return model
