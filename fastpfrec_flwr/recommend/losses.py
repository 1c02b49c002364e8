"""What each export of a run loses, measured on the data set's test users with the files as they are read back."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.data.preparation import prepare, split_settings
from fastpfrec_flwr.data.types import Split
from fastpfrec_flwr.recommend.artifact import PRECISIONS
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.export import export_model
from fastpfrec_flwr.recommend.loading import load_model, load_run
from fastpfrec_flwr.recommend.measure import Quality, measure, users_with_truth
from fastpfrec_flwr.recommend.model import LocalModel


def split_of_run(facts: dict[str, Any], data_dir: str, catalogue: Catalogue | None = None) -> tuple[Split, bool]:
    """The data that a run was trained on, and whether it ended with a refit.

    Parameters
    ----------
    facts : the run's manifest. data_dir : folder of named data sets, which exports do not know.

    Raises
    ------
    ModelError if the configuration is of another version; DataError if the data is not there.
    """
    run = facts["run"]
    try:
        config = parse_run_config({**default_values(), **run["config"]})
    except ConfigError as error:
        raise ModelError(
            f"the run's configuration is of another version of this app ({error}); measure it there"
        ) from error
    split = prepare(config.data_set, data_dir or None, split_settings(config), catalogue=catalogue).load()
    if run["data_fingerprint"] not in ("", split.fingerprint):
        raise ModelError(
            f"the run was trained on other data than this {config.data_set} ({run['data_fingerprint'][:12]} against "
            f"{split.fingerprint[:12]}); give the same files with --data-dir"
        )
    return split, config.refit


def export_losses(
    run: Path, data_dir: str = "", most_users: int = 0, formats: list[str] | None = None
) -> list[dict[str, Any]]:
    """One row for each format and precision.

    Parameters
    ----------
    run : its folder. data_dir : folder of named data sets, empty for that of the run. most_users : 0 for all.
    formats : of `export`, None for npz.

    Returns
    -------
    Rows of `name`, `bytes`, `users`, the metrics, `fitted` (whether the format fits private vectors), `overlap` of the first ten
    with the run's own table used the same way, and `milliseconds` for one list.
    """
    model = load_run(run)
    kept = run / "catalogue.json"
    catalogue = Catalogue.load(kept) if kept.is_file() else None
    split, refit = split_of_run(dict(model.manifest), data_dir or _data_dir_of(run), catalogue)
    users = users_with_truth(split, most_users)
    rows: list[dict[str, Any]] = []
    references: dict[bool, Quality] = {}  # with fitted vectors, and without
    with tempfile.TemporaryDirectory() as folder:
        for file_format in formats or ["npz"]:
            for precision in PRECISIONS:
                done = export_model(model, Path(folder) / f"{precision}.{file_format}", file_format, precision)
                loaded = load_model(done.path)
                began = time.perf_counter()
                quality = measure(loaded, split, users, refit)
                seconds = time.perf_counter() - began
                fitted = isinstance(loaded, LocalModel)  # an ONNX graph ranks and does not fit
                if fitted not in references:
                    references[fitted] = measure(model, split, users, refit, fit=fitted)
                rows.append(
                    {
                        "name": f"{file_format} {precision}",
                        "bytes": done.bytes,
                        "users": len(users),
                        **quality.metrics,
                        "fitted": fitted,
                        "overlap": quality.overlap(references[fitted]),
                        "milliseconds": 1000 * seconds / max(len(users), 1),
                    }
                )
    return rows


def _data_dir_of(run: Path) -> str:
    """The run's `data-dir`; empty where this machine has none: a run folder may have come from another."""
    found = str(json.loads((run / "config.json").read_bytes())["config"].get("data-dir", ""))
    return found if found and Path(found).is_dir() else ""
