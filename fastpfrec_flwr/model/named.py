"""From the run-config key `model` to a class: a baseline by its name, or anybody's own as `<module>:<class>`.

Both sides look here: a client makes its SuperNode of the class, the server asks for its layout alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from fastpfrec_flwr.config import BASELINES, ConfigError, RunConfig
from fastpfrec_flwr.model.layout import ItemsOnly, Layout

_HOME = "fastpfrec_flwr.baselines.federated"
_CLASSES = {
    "local-only": "local_only:LocalOnly",
    "lightgcn": "star:LightGCNStar",
    "fedmf": "star:FedMF",
    "fedncf": "fedncf:FedNCF",
    "fedgnn": "fedgnn:FedGNN",
    "perfedrec": "perfedrec:PerFedRec",
    "perfedrec++": "perfedrec_plus:PerFedRecPlus",
}
_LAYOUTS = {
    "fedncf": "layouts:mlp_layout",
    "perfedrec": "layouts:cluster_layout",
    "perfedrec++": "layouts:cluster_layout",
}


def load_model(name: str) -> Any:
    """The class that `model` names.

    Raises
    ------
    ConfigError for a module that cannot be imported or has no such class.
    """
    return _load(f"{_HOME}.{_CLASSES[name]}" if name in BASELINES else name)


def build_layout(config: RunConfig) -> Layout:
    """How the shared table of the configuration's model is laid out.

    A model of one's own may have a static method `layout(config)`; without it its table holds the items' rows alone.
    """
    if config.model == "fastpfrec":
        return ItemsOnly()
    if config.model in BASELINES:
        make = _load(f"{_HOME}.{_LAYOUTS[config.model]}") if config.model in _LAYOUTS else None
    else:
        make = getattr(load_model(config.model), "layout", None)
    layout: Layout = ItemsOnly() if make is None else make(config)
    return layout


def _load(name: str) -> Any:
    module_name, _, found_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"model: module {module_name!r} cannot be imported ({error}); it must lie in the app's folder, be installed, or stand "
            "on PYTHONPATH"
        ) from error
    if not hasattr(module, found_name):
        raise ConfigError(f"model: module {module_name!r} has no {found_name!r}")
    return getattr(module, found_name)
