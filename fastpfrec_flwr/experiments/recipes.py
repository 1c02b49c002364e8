"""The shipped recipes: files of `conf/` by folder and name, which hold differences only."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def conf_values(folder: str, data_set: str) -> dict[str, Any]:
    """What the shipped recipe `<folder>/<data set>.toml` changes; nothing where there is none. A wheel carries a copy of `conf`."""
    package = Path(__file__).resolve().parents[1]
    root = package if (package / "conf").is_dir() else package.parent
    path = root / folder / f"{data_set}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if "/" not in data_set and path.is_file() else {}


def central_values(model: str, data_set: str) -> dict[str, Any]:
    """What a central model's settings on a data set are beside the defaults: `conf/central/<data set>/<model>.toml`."""
    if "/" in data_set:
        return {}
    return conf_values(f"conf/central/{data_set}", model)
