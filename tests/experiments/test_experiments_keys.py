"""What a run is known by: its configuration, however it is written, without places; and folders that are safe in paths."""

from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr.config import default_values
from fastpfrec_flwr.experiments.cells import cell_of, folder_of_data
from fastpfrec_flwr.experiments.suite import (
    slug,
)
from tests.experiments.own import mine

SUITE = mine()
FREE = {
    "data-dir",
    "output-dir",
    "state-dir",
    "resume-from",
    "threads",
    "user-metrics",
    "round-timeout",
    "checkpoint-every",
    "metrics-file",
    "log-format",
}
OTHER = {
    **{key: not value for key, value in default_values().items() if isinstance(value, bool)},
    "l2": 0.5, "num-rounds": 7, "noise-scale": 0.3, "check": "paper", "upload": "sparse", "item-refresh-interval": 3,
    "embedding-dim": 16, "evaluate-every": 2, "device": "cpu", "min-weight": 1.0, "init-scale": 0.2,
}  # fmt: skip
CHANGES = {key: value for key, value in OTHER.items() if key not in FREE and key not in ("unit-rows", "secure-sum")}


def key_of(overrides, data_dir="", seed=1, position=1):
    suite = SUITE.model_copy(update={"base": {**SUITE.base, **overrides}})
    return cell_of(suite, suite.variants[position], "synthetic", seed, False, data_dir)


@given(st.sampled_from(sorted(CHANGES)))
def test_whatever_changes_figures_changes_the_key(name):
    one, two = key_of({}), key_of({name: CHANGES[name]})
    assert one.values[name] != two.values[name]
    assert one.key != two.key
    assert one.folder != two.folder


@given(st.text("abc/", max_size=8), st.floats(1, 1e4), st.integers(0, 9))
def test_places_and_patience_do_not(data_dir, timeout, every):
    places = {"metrics-file": "/run/m.prom", "log-format": "json"}
    other = key_of({"round-timeout": timeout, "checkpoint-every": every, **places}, data_dir)
    assert other.key == key_of({}).key
    assert other.folder == key_of({}).folder


def test_a_key_is_of_the_configuration_not_of_how_it_is_written():
    assert key_of({"l2": 1}).key == key_of({"l2": 1.0}).key
    assert key_of({"l2": 0.01}).key == key_of({}).key  # the default, said aloud
    assert key_of({}, seed=1).key != key_of({}, seed=2).key
    assert key_of({}, seed=1).folder.removesuffix("seed-1") == key_of({}, seed=2).folder.removesuffix("seed-2")


def test_a_reference_depends_on_the_data_only():
    assert key_of({"l2": 0.5}, position=2).key == key_of({}, position=2).key
    assert key_of({"min-weight": 1.0}, position=2).key != key_of({}, position=2).key


@given(st.text(min_size=1))
def test_slugs_are_safe_in_paths(name):
    found = slug(name)
    assert "/" not in found
    assert ".." not in found
    assert slug(found) == found


def test_paths_of_data_become_folders():
    assert folder_of_data("gowalla-1m") == "gowalla-1m"
    one, two = folder_of_data("/home/me/ratings.csv"), folder_of_data("/home/you/ratings.csv")
    assert one != two
    assert one.startswith("ratings-csv-")
