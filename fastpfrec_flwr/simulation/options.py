"""The `-c` options of a run: TOML files and `key=value` pairs in any order, the later winning."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastpfrec_flwr.config import ConfigError

# As Flower splits one `-c`: a key, `=`, then a quoted text or everything up to the next blank.
_PAIR = re.compile(r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)""")
_BARE_WORD = re.compile(r"[A-Za-z_./~][^\s'\"\[\]{}#,]*")
_PATH_KEYS = ("data-dir", "output-dir", "state-dir", "resume-from", "initial-model", "catalogue", "metrics-file")


def merge_options(options: Iterable[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `-c` options over the defaults.

    Parameters
    ----------
    options : each a path that ends in `.toml`, or pairs `key=value` with blanks between. Values are TOML; a bare word
        (`data-set=yelp`) is taken as text. Whether keys and values make sense is `parse_run_config`'s business.

    Raises
    ------
    ConfigError for a file or a pair that cannot be read.
    """
    values = dict(defaults)
    for option in options:
        text = option.strip()
        values.update(
            _read_file(Path(text).expanduser()) if text.endswith(".toml") and "=" not in text else _pairs(text)
        )
    return values


def with_absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve relative paths against the working directory, for apps that do not know where the command was given."""
    resolved = dict(values)
    for key in _PATH_KEYS:
        if isinstance(value := values.get(key), str) and value:
            resolved[key] = str(Path(value).expanduser().absolute())
    data_set = values.get("data-set")
    # A name wins over a folder of the same name; only what looks like a path is one.
    if isinstance(data_set, str) and ("/" in data_set or "." in data_set) and not values.get("data-dir"):
        resolved["data-set"] = str(Path(data_set).expanduser().absolute())
    return resolved


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return _flat(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise ConfigError(f"-c {path}: cannot be read ({error.strerror}); look at the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"-c {path}: is not TOML ({error})") from None


def _pairs(text: str) -> dict[str, Any]:
    left_over = _PAIR.sub(" ", text).split()
    if left_over or not text:
        raise ConfigError(
            f"-c {text!r}: {' '.join(left_over)!r} is neither key=value (no blanks around '=') nor a path ending in .toml"
        )
    values: dict[str, Any] = {}
    for key, value in _PAIR.findall(text):
        values.update(_flat(_pair(key, value)))
    return values


def _pair(key: str, value: str) -> dict[str, Any]:
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        if _BARE_WORD.fullmatch(value):
            return {key: value}
    raise ConfigError(f"-c {key}={value}: the value is no TOML value; write text as {key}='...'")


def _flat(nested: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Join nested keys with dots, as Flower does."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{above}{key}."))
        else:
            flat[above + key] = value
    return flat
