"""An exported model as named arrays, a catalogue and a manifest: what all file formats carry, and the precisions.

`fp16` halves the rows' bytes, `int8` quarters them (one scale per row, symmetric). Both are brought back to float32 when the model
is loaded: they save disk and network, not memory. The manifest carries a SHA-256 over the arrays and the catalogue, which loading
checks, so a file is whole whatever it was copied through.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue, CatalogueError
from fastpfrec_flwr.model.linear import LinearForm
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel

FORMAT, FORMAT_VERSION = "fastpfrec-model", 1
PRECISIONS = ("fp32", "fp16", "int8")
Arrays = dict[str, NDArray[Any]]


def quantised(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as int8 with a scale each: E_l ~ scale_l q_l, |error| <= scale_l / 2, scale_l = max |E_l| / 127."""
    largest = np.abs(table).max(axis=1, initial=0.0)
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(table / scales[:, None]).astype(np.int8), scales


def pack(model: LocalModel, precision: str) -> tuple[Arrays, str, dict[str, Any]]:
    """A model as (arrays, catalogue as JSON, manifest).

    Raises
    ------
    ModelError for an unknown precision, or a table that float16 cannot hold.
    """
    arrays: Arrays
    if precision == "fp32":
        arrays = {"item_table": np.ascontiguousarray(model.table, np.float32)}
    elif precision == "fp16":
        with np.errstate(over="ignore"):
            arrays = {"item_table": model.table.astype(np.float16)}
        if not np.isfinite(arrays["item_table"]).all():
            raise ModelError("the item table holds values beyond float16's range (65,504); export it as fp32 or int8")
    elif precision == "int8":
        table, scales = quantised(model.table)
        arrays = {"item_table": table, "item_scales": scales}
    else:
        raise ModelError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if model.counted and model.counts is not None:
        arrays["item_counts"] = model.counts.astype(np.float32)
    catalogue = model.catalogue.to_json()
    manifest = {
        **model.manifest,
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "precision": precision,
        "rows": len(model.table),
        "embedding_dim": model.table.shape[1],
        "form": model.form.to_dict(),
        "catalogue": model.catalogue.facts(),
        "arrays_sha256": digest(arrays, catalogue),
    }
    return arrays, catalogue, manifest


def digest(arrays: Mapping[str, NDArray[Any]], catalogue: str) -> str:
    """SHA-256 over names, types, shapes and bytes of the arrays, and the catalogue; the same in every file format."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name}:{array.dtype.str}:{array.shape}\n".encode() + array.tobytes())
    found.update(catalogue.encode())
    return found.hexdigest()


def model_of_arrays(arrays: Arrays, catalogue: str, manifest: dict[str, Any], where: str) -> LocalModel:
    """The model that `pack` took apart.

    Raises
    ------
    ModelError if the file is of another format or damaged; `where` names it.
    """
    if manifest.get("format") != FORMAT:
        raise ModelError(f"{where}: is no exported model; make one with `fastpfrec export`")
    if int(manifest["format_version"]) > FORMAT_VERSION:
        raise ModelError(
            f"{where}: model of format {manifest['format_version']}, this app reads {FORMAT_VERSION}; upgrade the app"
        )
    if digest(arrays, catalogue) != manifest.get("arrays_sha256"):
        raise ModelError(
            f"{where}: its content does not have the checksum of its manifest: damaged; copy or export it anew"
        )
    try:
        table = arrays["item_table"].astype(np.float32)
        if manifest["precision"] == "int8":
            table *= arrays["item_scales"][:, None]
        found = Catalogue.from_json(catalogue, where)
        return LocalModel(table, LinearForm(**manifest["form"]), found, arrays.get("item_counts"), manifest)
    except (KeyError, TypeError, CatalogueError) as error:
        raise ModelError(f"{where}: cannot be read ({error}); export it anew") from error


def npz_bytes(arrays: Arrays, catalogue: str, manifest: dict[str, Any]) -> bytes:
    """The `.npz` form; the same model gives the same bytes."""
    buffer = io.BytesIO()
    texts = {"catalogue": catalogue, "manifest": json.dumps(manifest, sort_keys=True)}
    np.savez(
        buffer, allow_pickle=False, **arrays, **{key: np.frombuffer(t.encode(), np.uint8) for key, t in texts.items()}
    )
    return buffer.getvalue()


def unpack_npz(path: Path) -> tuple[Arrays, str, dict[str, Any]]:
    """Read what `npz_bytes` made, unchecked.

    Raises
    ------
    ModelError if it is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        catalogue, manifest = (arrays.pop(name).tobytes().decode() for name in ("catalogue", "manifest"))
        return arrays, catalogue, dict(json.loads(manifest))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path}: is no exported model ({error}); make one with `fastpfrec export`") from error
