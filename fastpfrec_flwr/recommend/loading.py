"""From a path to a model: a run folder, or a file in one of the export's formats."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.model.linear import NoLinearFormError, linear_form
from fastpfrec_flwr.recommend.artifact import model_of_arrays, unpack_npz
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel, Scorer

# Where things lay on the machine that trained: nobody else's business.
_PLACES = {"data-dir", "output-dir", "state-dir", "resume-from", "initial-model", "catalogue"}
SUFFIXES = (".npz", ".safetensors", ".onnx")


def load_model(path: Path, catalogue: Catalogue | None = None) -> Scorer:
    """Open a model.

    Parameters
    ----------
    path : run folder or exported file. catalogue : to take titles from; it must be the model's own.

    Raises
    ------
    ModelError naming path, problem and remedy.
    """
    path = path.expanduser()
    if path.is_dir():
        return load_run(path, catalogue)
    if not path.is_file():
        raise ModelError(
            f"{path}: no such run folder or file; give a run's output folder, or what `fastpfrec export` wrote"
        )
    if path.suffix == ".safetensors":
        from fastpfrec_flwr.recommend.safetensors_form import read_safetensors

        model = read_safetensors(path)
    elif path.suffix == ".onnx":
        from fastpfrec_flwr.recommend.onnx_form import OnnxScorer

        return OnnxScorer.load(path, catalogue)
    elif path.name == "item_table.npz" and (path.parent / "config.json").is_file():
        return load_run(path.parent, catalogue)
    elif path.suffix == ".npz":
        model = model_of_arrays(*unpack_npz(path), str(path))
    else:
        raise ModelError(f"{path}: models are run folders or files ending in {', '.join(SUFFIXES)}; give one of those")
    return with_catalogue(model, catalogue)


def with_catalogue(model: LocalModel, catalogue: Catalogue | None) -> LocalModel:
    """The model under another copy of its catalogue (one with titles).

    Raises
    ------
    ModelError if it is another catalogue.
    """
    if catalogue is None:
        return model
    own = model.catalogue
    if catalogue.hash != own.hash:
        raise ModelError(
            f"the model has {own.label}, the catalogue file is {catalogue.label}: their rows are not the same items. Give the "
            "catalogue that the model was trained with, or bring the model up to it with `fastpfrec catalogue fill`"
        )
    return replace(model, catalogue=catalogue)


def load_run(folder: Path, catalogue: Catalogue | None = None) -> LocalModel:
    """Open the table that a run left.

    Raises
    ------
    ModelError if the folder is of no finished run, or of a model that needs more than its table to recommend.
    """
    try:
        facts = json.loads((folder / "config.json").read_bytes())
        with np.load(folder / "item_table.npz", allow_pickle=False) as arrays:
            table, ids = arrays["item_table"], arrays["item_ids"].tolist()
            counts = arrays.get("item_counts")
        form = linear_form(facts["config"])
    except NoLinearFormError as error:
        raise ModelError(f"{folder}: {error}; its metrics are in summary.json") from error
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{folder}: holds no finished run ({error}); give the folder that the run's last line named"
        ) from error
    found = _catalogue_of(folder, ids)
    model = LocalModel(table, form, found, counts, manifest_of_run(folder, facts, found))
    return with_catalogue(model, catalogue)


def _catalogue_of(folder: Path, row_names: list[str]) -> Catalogue:
    """The catalogue file that the run kept, or one without titles from the table's ids."""
    file = folder / "catalogue.json"
    if file.is_file():
        catalogue = Catalogue.load(file)
        if catalogue.row_names != row_names:
            raise ModelError(f"{file}: is not the catalogue of the table beside it; copy the run folder as a whole")
        return catalogue
    return Catalogue.of_rows(row_names)


def manifest_of_run(folder: Path, facts: dict[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """What an export says of the run: data, code, epsilon with its ledger, and metrics; without a summary what there is."""
    summary: dict[str, Any] = {}
    if (folder / "summary.json").is_file():
        summary = json.loads((folder / "summary.json").read_bytes())
    config, data = facts["config"], facts.get("data", {})
    privacy = summary.get("privacy", {})
    return {
        "catalogue": catalogue.facts(),
        "run": {
            "folder": folder.resolve().name,
            "state_id": facts.get("state_id", ""),
            "data_set": data.get("name", config["data-set"]),
            "data_fingerprint": data.get("fingerprint", ""),
            "users": data.get("users"),
            "seed": config["seed"],
            "rounds": summary.get("rounds"),
            "source": facts.get("source", ""),
            "versions": facts.get("versions", {}),
            "config": {key: value for key, value in config.items() if key not in _PLACES},
        },
        "privacy": {
            key: privacy[key]
            for key in ("adjacency", "epsilon_per_upload", "reason", "randomness", "not_noised", "lines", "notes")
            if key in privacy
        },
        "metrics": {key: summary[key] for key in ("protocol", "validation", "test") if key in summary},
    }
