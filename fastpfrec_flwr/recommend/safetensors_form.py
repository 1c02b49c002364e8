"""The `.safetensors` form: arrays as tensors, catalogue and manifest as metadata. Needs the extra `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastpfrec_flwr.recommend.artifact import Arrays, model_of_arrays
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel


def missing(package: str) -> ModelError:
    """The error for a file format whose package is not installed."""
    return ModelError(f"{package} is not installed: pip install 'fastpfrec-flwr[export]', or use --format npz")


def safetensors_bytes(arrays: Arrays, catalogue: str, manifest: dict[str, Any]) -> bytes:
    """The file's content.

    Raises
    ------
    ModelError if safetensors is not installed.
    """
    try:
        from safetensors.numpy import save
    except ImportError:
        raise missing("safetensors") from None
    return bytes(save(arrays, {"catalogue": catalogue, "manifest": json.dumps(manifest, sort_keys=True)}))


def read_safetensors(path: Path) -> LocalModel:
    """Open such a file.

    Raises
    ------
    ModelError if it is none, damaged, or safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise missing("safetensors") from None
    try:
        with safe_open(path, framework="np") as file:
            texts = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        catalogue, manifest = texts["catalogue"], json.loads(texts["manifest"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{path}: is no exported model ({error}); make one with `fastpfrec export`") from error
    return model_of_arrays(arrays, catalogue, manifest, str(path))
