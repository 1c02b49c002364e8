"""Write a model as a file for others, with a manifest beside it that says what it is, where it comes from and what it is worth."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.recommend.artifact import model_of_arrays, npz_bytes, pack
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel

FORMATS = ("npz", "safetensors", "onnx")


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes
    ----------
    path : of the model. manifest : of the JSON file beside it. bytes, sha256 : of the model's file.
    """

    path: Path
    manifest: Path
    bytes: int
    sha256: str


def export_model(model: LocalModel, path: Path, file_format: str = "npz", precision: str = "fp32") -> Exported:
    """Write `path` and, beside it, `<path>.json`: the manifest with the file's own SHA-256.

    Raises
    ------
    ModelError for an unknown format or precision, a package that is not installed, or a folder that cannot be written.
    """
    arrays, catalogue, manifest = pack(model, precision)
    if file_format == "npz":
        data = npz_bytes(arrays, catalogue, manifest)
    elif file_format == "safetensors":
        from fastpfrec_flwr.recommend.safetensors_form import safetensors_bytes

        data = safetensors_bytes(arrays, catalogue, manifest)
    elif file_format == "onnx":
        from fastpfrec_flwr.recommend.onnx_form import onnx_bytes

        data = onnx_bytes(arrays, catalogue, manifest, model_of_arrays(arrays, catalogue, manifest, str(path)))
    else:
        raise ModelError(f"format must be one of {', '.join(FORMATS)}, got {file_format!r}")
    if path.suffix != f".{file_format}":
        raise ModelError(f"{path}: a model of format {file_format} ends in .{file_format}; give it that name")
    beside = path.with_name(f"{path.name}.json")
    sha256 = hashlib.sha256(data).hexdigest()
    told: dict[str, Any] = {"file": path.name, "bytes": len(data), "sha256": sha256, **manifest}
    try:
        write_atomically(path, data)
        write_atomically(beside, (json.dumps(told, indent=2) + "\n").encode())
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror or error}); make its folder writable") from error
    return Exported(path, beside, len(data), sha256)
