"""Tuning: the declared space, resuming, what is chosen, and what is refused; runs are a formula here."""

import json
import math
import tomllib
from pathlib import Path

import pytest

from fastpfrec_flwr.config import BASELINES, ConfigError, default_values, parse_run_config
from fastpfrec_flwr.experiments.tuning import Space, load_space, tune

optuna = pytest.importorskip("optuna")
ROOT = Path(__file__).resolve().parents[2]


class Formula:
    """A simulation whose validation metric has its peak at item-learning-rate 100 and l2 0.02."""

    def __init__(self, stop_after=None, fails=()):
        self.seen, self.stop_after, self.fails = [], stop_after, fails

    def __call__(self, values):
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        self.seen.append((values["item-learning-rate"], values["l2"]))
        place = Path(values["output-dir"])
        place.mkdir(parents=True, exist_ok=True)
        far = math.log(values["item-learning-rate"] / 100) ** 2 + math.log(values["l2"] / 0.02) ** 2
        value = None if len(self.seen) in self.fails else 0.2 - 0.01 * far
        (place / "summary.json").write_text(json.dumps({"validation": {"ndcg@20": value}}))
        return place


def space(**changes):
    dimensions = {
        "item-learning-rate": {"low": 40.0, "high": 640.0, "log": True},
        "l2": {"low": 0.001, "high": 0.1, "log": True},
    }
    values = {
        "model": "fedmf",
        "run": {"data-set": "synthetic", "num-rounds": 9, "clients-per-round": 99},
        "dimensions": dimensions,
        "trials": 10,
        "seed": 3,
    }
    return Space(**{**values, "metric": "ndcg@20", **changes})


def silent(text):
    pass


def test_the_best_trial_is_chosen_and_written(tmp_path):
    runs = Formula()
    chosen = tune(space(), tmp_path, say=silent, simulate=runs)
    assert len(runs.seen) == 10
    assert runs.seen[0] == (default_values()["item-learning-rate"], default_values()["l2"])  # the defaults come first
    best = min(runs.seen, key=lambda each: math.log(each[0] / 100) ** 2 + math.log(each[1] / 0.02) ** 2)
    assert (chosen["item-learning-rate"], chosen["l2"]) == best
    written = tomllib.loads((tmp_path / "best.toml").read_text())
    defaults = default_values()
    assert written == {
        "data-set": "synthetic",
        **{key: value for key, value in chosen.items() if value != defaults[key]},
    }
    assert parse_run_config({**defaults, **written}).item_learning_rate == best[0]


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    whole, first, rest = Formula(), Formula(stop_after=4), Formula()
    expected = tune(space(), tmp_path / "whole", say=silent, simulate=whole)
    with pytest.raises(KeyboardInterrupt):
        tune(space(), tmp_path / "halves", say=silent, simulate=first)
    assert tune(space(), tmp_path / "halves", say=silent, simulate=rest) == expected
    assert first.seen + rest.seen == whole.seen
    again = Formula()
    assert tune(space(), tmp_path / "halves", say=silent, simulate=again) == expected
    assert again.seen == []


def test_a_trial_without_a_figure_counts_and_is_not_chosen(tmp_path):
    told = []
    tune(space(trials=3), tmp_path, say=told.append, simulate=Formula(fails=(2,)))
    assert [("failed" in line) for line in told] == [False, True, False]
    with pytest.raises(ConfigError, match="no trial of fedmf came to an end"):
        tune(space(trials=1), tmp_path / "none", say=silent, simulate=Formula(fails=(1,)))


def test_another_space_in_the_same_folder_is_refused(tmp_path):
    tune(space(trials=1), tmp_path, say=silent, simulate=Formula())
    with pytest.raises(ConfigError, match="trials of another space"):
        tune(space(trials=1, seed=4), tmp_path, say=silent, simulate=Formula())


@pytest.mark.parametrize("model", ["fastpfrec", *BASELINES])
def test_every_model_has_a_space_whose_ends_are_configurations(model):
    declared = load_space(model)
    for end in ("low", "high"):
        values = {key: how.get(end, how.get("choices", [None])[0]) for key, how in declared.dimensions.items()}
        parse_run_config({**default_values(), **declared.run, "model": model, **values})


def test_all_models_have_the_same_budget():
    spaces = [load_space(model) for model in ("fastpfrec", *BASELINES)]
    assert len({(each.trials, each.seed, each.metric, json.dumps(each.run)) for each in spaces}) == 1


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match=r"--model must be one of fastpfrec, .*, got 'bert'"):
        load_space("bert")


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "baselines").glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_values_are_of_the_declared_space(path):
    values = tomllib.loads(path.read_text())
    declared = load_space(path.stem)
    assert values["model"] == path.stem
    assert set(values) <= {"data-set", "model", *declared.dimensions}
    for key, how in declared.dimensions.items():
        if key not in values:
            continue
        good = values[key] in how["choices"] if "choices" in how else how["low"] <= values[key] <= how["high"]
        assert good, (key, values[key])
