"""From `strategy` and `strategy-options` of the run configuration to a strategy that is not ours."""

from __future__ import annotations

import ast
import importlib
import inspect
import shlex
from collections.abc import Callable
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fastpfrec_flwr.config import ConfigError

# Those of Flower's own that need nothing of a client but its table and `num-examples`.
KNOWN = (
    "FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan",
)  # fmt: skip


def load_strategy(name: str, options: str = "") -> Callable[[], Strategy]:
    """Find a strategy and see that it can be made.

    Parameters
    ----------
    name : `flwr:<one of KNOWN>` or `<module>:<class>`. options : constructor arguments, `key=value` with blanks between.

    Returns
    -------
    What makes a fresh strategy each time: a refit begins anew, and so does whatever a strategy remembers.

    Raises
    ------
    ConfigError for a name that is not known, a module that cannot be imported, a class that is no strategy, and options that
    it does not take.
    """
    found = _find(name)
    arguments = parse_options(options)

    def make() -> Strategy:
        return found(**arguments)

    try:
        make()
    except (TypeError, ValueError) as error:
        taken = ", ".join(inspect.signature(found).parameters)
        raise ConfigError(
            f"strategy-options: {name} cannot be made of {arguments} ({error}); it takes {taken}"
        ) from error
    return make


def _find(name: str) -> type[Strategy]:
    module_name, _, class_name = name.partition(":")
    if module_name == "flwr":
        if class_name not in KNOWN:
            why = "needs more of the clients than they send" if hasattr(flower, class_name) else "is none of Flower's"
            known = ", ".join(f"'flwr:{each}'" for each in KNOWN)
            raise ConfigError(f"strategy: {class_name} {why}; known are {known}")
        found: Any = getattr(flower, class_name)
    else:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ConfigError(
                f"strategy: module {module_name!r} cannot be imported ({error}); it must lie in the app's folder, be installed, "
                "or stand on PYTHONPATH"
            ) from error
        if not hasattr(module, class_name):
            raise ConfigError(f"strategy: module {module_name!r} has no {class_name!r}")
        found = getattr(module, class_name)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(f"strategy: {name} must be a subclass of flwr.serverapp.strategy.Strategy, got {found!r}")
    return found


def parse_options(text: str) -> dict[str, Any]:
    """Read `key=value` pairs; values are Python literals (0.1, 3, True, None, 'text'), anything else is taken as text.

    Nothing is evaluated. Blanks inside a value need quotes around it.

    Raises
    ------
    ConfigError for what is no such pair, and for a key given twice.
    """
    try:
        pairs = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"strategy-options: {text!r} cannot be split ({error})") from None
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"strategy-options must be 'name=value' with blanks between, got {pair!r}")
        if key in options:
            raise ConfigError(f"strategy-options: {key} is given twice")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = value
    return options
