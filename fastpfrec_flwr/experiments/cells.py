"""From a suite to its runs: every variant on every data set with every seed, each with its resolved configuration and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings, told
from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.experiments.recipes import central_values, conf_values
from fastpfrec_flwr.experiments.suite import Suite, SuiteError, Variant, slug

# Keys that say where and how fast, not what comes out.
_NOT_IN_KEY = {
    "data-dir", "output-dir", "state-dir", "resume-from", "threads", "user-metrics", "round-timeout", "checkpoint-every",
    "trackers",
}  # fmt: skip
# These too, but runs are known by a key that has them: it always has their defaults.
_AS_DEFAULT_IN_KEY = {"metrics-file": "", "log-format": "text"}
# All that a reference with the data in one place depends on.
_DATA_KEYS = {"data-set", "split", "validation-fraction", "test-fraction", "min-weight", "seed"}


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a study; one object for each.

    Attributes
    ----------
    values : its whole run configuration, without output and state folders. key : names what it computes. folder : relative to
        the study. chosen : of a central model, what its settings are beside the defaults.
    """

    variant: str
    kind: str
    model: str | None
    data_set: str
    seed: int
    values: Mapping[str, Any]
    key: str
    folder: str
    chosen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What of a suite is wanted; None and empty mean what the suite (or its quick version) names."""

    quick: bool = False
    data_sets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    variants: Sequence[str] = ()


def cells_of(suite: Suite, choice: Choice, data_dir: str = "") -> list[Cell]:
    """All runs of a suite, by seed first: whoever stops early has whole comparisons of the first seeds.

    Raises
    ------
    SuiteError for an unknown variant, or naming variant and data set of a configuration that `parse_run_config` refuses.
    """
    data_sets = choice.data_sets or (suite.quick.data_sets if choice.quick else suite.data_sets)
    seeds = choice.seeds or (suite.quick.seeds if choice.quick else suite.seeds)
    return [
        cell_of(suite, variant, data_set, seed, choice.quick, data_dir)
        for seed in dict.fromkeys(seeds)
        for data_set in dict.fromkeys(data_sets)
        for variant in chosen_variants(suite, choice)
    ]


def chosen_variants(suite: Suite, choice: Choice) -> list[Variant]:
    """The variants that are wanted, in the suite's order; asked for by name or by its slug."""
    wanted = [slug(name) for name in choice.variants or (suite.quick.variants if choice.quick else ())]
    known = {slug(variant.name): variant for variant in suite.variants}
    if unknown := [name for name in wanted if name not in known]:
        names = ", ".join(repr(variant.name) for variant in suite.variants)
        raise SuiteError(f"--variants: {suite.name} has no variant {unknown[0]!r}; it has {names}")
    return [variant for name, variant in known.items() if not wanted or name in wanted]


def cell_of(suite: Suite, variant: Variant, data_set: str, seed: int, quick: bool, data_dir: str) -> Cell:
    """One run, its configuration resolved and checked."""
    values = {
        **_defaults(),
        **(conf_values(suite.conf, data_set) if suite.conf else {}),
        **suite.base,
        **suite.data_set.get(data_set, {}),
        **(suite.quick.overrides if quick else {}),
        **_recipe(suite, variant, data_set),
        **variant.overrides,
        **variant.data_set.get(data_set, {}),
        "data-set": data_set,
        "data-dir": data_dir,
        "seed": seed,
        "threads": 1,
        "user-metrics": True,
    }
    try:
        resolved = parse_run_config(values).to_flat_dict()
    except ConfigError as error:
        lines = str(error).splitlines()
        raise SuiteError(
            "\n".join(f"{suite.file}: variant {variant.name!r} on {data_set}: {line}" for line in lines)
        ) from None
    kept = _DATA_KEYS if variant.kind == "central" else set(resolved) - _NOT_IN_KEY
    what: dict[str, Any] = {"kind": variant.kind, "model": variant.model}
    what |= {key: _AS_DEFAULT_IN_KEY.get(key, resolved[key]) for key in sorted(kept)}
    chosen: dict[str, Any] = {}
    if variant.model in KINDS:
        chosen = central_values(variant.model, data_set)
        what["settings"] = told(graph_settings(variant.model, chosen))
    of_seeds = {key: value for key, value in what.items() if key != "seed"}
    folder = f"runs/{folder_of_data(data_set)}/{slug(variant.name)}-{_hash(of_seeds)[:8]}/seed-{seed}"
    return Cell(variant.name, variant.kind, variant.model, data_set, seed, resolved, _hash(what), folder, chosen)


def _recipe(suite: Suite, variant: Variant, data_set: str) -> dict[str, Any]:
    """The tuned values of a variant's model: those of the data set, or where it was not tuned there, the general ones.

    Raises
    ------
    SuiteError if there is no such file.
    """
    if not variant.recipe:
        return {}
    own = conf_values(f"conf/baselines/{data_set}", variant.recipe) if slug(data_set) == data_set else {}
    values = own or conf_values("conf/baselines", variant.recipe)
    if not values:
        raise SuiteError(f"{suite.file}: variant {variant.name!r}: recipe {variant.recipe!r} is none of conf/baselines")
    return values


@cache
def _defaults() -> dict[str, Any]:
    return default_values()


def folder_of_data(data_set: str) -> str:
    """A data set as part of a path: its name; of a path its last part and a hash of the whole."""
    if slug(data_set) == data_set:
        return data_set
    return f"{slug(Path(data_set).name) or 'data'}-{_hash({'path': data_set})[:6]}"


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
