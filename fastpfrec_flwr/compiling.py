"""Compilation of the kernels, kept on disk by content.

Numba's own cache stands beside the source file and looks at that file alone: a function whose callee in another file changed
would go on running the old code, and each new app bundle would be compiled anew. Here the cache's folder is named after the
content of all compiled modules, so it is right after any edit and shared by every copy of the same code on the machine.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core.caching import UserProvidedCacheLocator

# Reassociation and contraction let loops vectorise; NaN and infinity keep their meaning (no nnan, no ninf).
MATH_FLAGS = {"reassoc", "contract", "nsz", "arcp"}
_PACKAGE = Path(__file__).resolve().parent


@cache
def _content() -> str:
    """Hash of every module that compiles something."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if b"compiled" in source:
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + source)
    return digest.hexdigest()[:20]


@cache
def _folder() -> str:
    import platformdirs

    return str(Path(platformdirs.user_cache_dir("fastpfrec", appauthor=False)) / "compiled" / _content())


class ContentLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Numba cache locator: one folder per content of the package's compiled modules."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = _folder()

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator, or None where the folder cannot be written (then Numba's own places are tried)."""
        self = cls(py_func, py_file)
        try:
            self.ensure_cache_path()
        except OSError:
            return None
        return self


def compiled(function: Any) -> Any:
    """Compile `function` for use without the interpreter lock; only the first run of this code on a machine pays for it."""
    return _compile(function, MATH_FLAGS)


def compiled_in_order(function: Any) -> Any:
    """The same for sums that must be added in the order in which they stand."""
    return _compile(function, False)


def _compile(function: Any, flags: set[str] | bool) -> Any:
    before = numba_config.CACHE_LOCATOR_CLASSES
    numba_config.CACHE_LOCATOR_CLASSES = (
        f"{__name__}.ContentLocator,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"
    )
    try:
        return numba.njit(nogil=True, cache=True, fastmath=flags, error_model="numpy")(function)
    finally:
        numba_config.CACHE_LOCATOR_CLASSES = before
