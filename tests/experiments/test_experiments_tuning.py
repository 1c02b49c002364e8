"""Tuning: the declared space, resuming, what is chosen, and what is refused; runs are a formula here."""

import json
import math
import tomllib
from pathlib import Path

import pytest

from fastpfrec_flwr.baselines.central_settings import KINDS, graph_settings, told
from fastpfrec_flwr.config import BASELINES, ConfigError, default_values, parse_run_config
from fastpfrec_flwr.experiments import tuning
from fastpfrec_flwr.experiments.cells import Choice, cells_of
from fastpfrec_flwr.experiments.recipes import central_values
from fastpfrec_flwr.experiments.suite import load_suite
from fastpfrec_flwr.experiments.trials import central_trial, federated_trial
from fastpfrec_flwr.experiments.tuning import Space, load_space, models, tune
from fastpfrec_flwr.server.errors import RunError

optuna = pytest.importorskip("optuna")
ROOT = Path(__file__).resolve().parents[2]


class Formula:
    """Trials whose metric has its peak at item-learning-rate 100 and l2 0.02."""

    def __init__(self, stop_after=None, fails=()):
        self.seen, self.stop_after, self.fails = [], stop_after, fails

    def __call__(self, values, place):
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        self.seen.append((values["item-learning-rate"], values["l2"]))
        if len(self.seen) in self.fails:
            raise RunError("no finite validation ndcg@20")
        far = math.log(values["item-learning-rate"] / 100) ** 2 + math.log(values["l2"] / 0.02) ** 2
        return 0.2 - 0.01 * far


def space(**changes):
    dimensions = {
        "item-learning-rate": {"low": 40.0, "high": 640.0, "log": True},
        "l2": {"low": 0.001, "high": 0.1, "log": True},
    }
    values = {
        "model": "fedmf",
        "run": {"data-set": "synthetic", "num-rounds": 9, "clients-per-round": 99},
        "dimensions": dimensions,
        "first": {key: default_values()[key] for key in dimensions},
        "trials": 10,
        "seed": 3,
    }
    return Space(**{**values, "metric": "ndcg@20", **changes})


def silent(text):
    pass


def assert_within(declared, values):
    for key, how in declared.dimensions.items():
        good = values[key] in how["choices"] if "choices" in how else how["low"] <= values[key] <= how["high"]
        assert good, (key, values[key])


def test_the_best_trial_is_chosen_and_written(tmp_path):
    runs = Formula()
    chosen = tune(space(), tmp_path, runs, silent)
    assert len(runs.seen) == 10
    assert runs.seen[0] == (default_values()["item-learning-rate"], default_values()["l2"])  # the defaults come first
    best = min(runs.seen, key=lambda each: math.log(each[0] / 100) ** 2 + math.log(each[1] / 0.02) ** 2)
    assert (chosen["item-learning-rate"], chosen["l2"]) == best
    written = tomllib.loads((tmp_path / "best.toml").read_text())
    # Also what is the default: a recipe is laid over others, which may say something else.
    assert written == {"data-set": "synthetic", "model": "fedmf", **chosen}
    assert parse_run_config({**default_values(), **written}).item_learning_rate == best[0]


@pytest.mark.parametrize("stop_after", [0, 1, 4])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, stop_after):
    whole, first, rest = Formula(), Formula(stop_after=stop_after), Formula()
    expected = tune(space(), tmp_path / "whole", whole, silent)
    with pytest.raises(KeyboardInterrupt):
        tune(space(), tmp_path / "halves", first, silent)
    assert tune(space(), tmp_path / "halves", rest, silent) == expected
    assert first.seen + rest.seen == whole.seen
    again = Formula()
    assert tune(space(), tmp_path / "halves", again, silent) == expected
    assert again.seen == []


def test_a_trial_without_a_figure_counts_and_is_not_chosen(tmp_path):
    told = []
    tune(space(trials=3), tmp_path, Formula(fails=(2,)), told.append)
    assert [("failed" in line) for line in told] == [False, True, False]
    with pytest.raises(ConfigError, match="no trial of fedmf came to an end"):
        tune(space(trials=1), tmp_path / "none", Formula(fails=(1,)), silent)


def test_of_trials_that_print_the_same_figure_the_earliest_is_chosen(tmp_path):
    seen = []

    def run(values, place):
        seen.append(values)
        return [0.11246, 0.11253, 0.11254, 0.1][len(seen) - 1]

    assert tune(space(trials=4), tmp_path / "tie", run, silent) == seen[0]
    seen.clear()

    def better(values, place):
        seen.append(values)
        return [0.11246, 0.11261][len(seen) - 1]

    assert tune(space(trials=2), tmp_path / "better", better, silent) == seen[1]


def test_another_space_in_the_same_folder_is_refused(tmp_path):
    tune(space(trials=1), tmp_path, Formula(), silent)
    with pytest.raises(ConfigError, match="trials of another space"):
        tune(space(trials=1, seed=4), tmp_path, Formula(), silent)


@pytest.mark.parametrize("data_set", ["", "yelp", "kindle", "gowalla-1m"])
@pytest.mark.parametrize("model", ["fastpfrec", *BASELINES])
def test_every_model_has_a_space_whose_ends_are_configurations(model, data_set):
    declared = load_space(model, data_set)
    assert declared.run["data-set"] == (data_set or "gowalla-100k")
    for end in ("low", "high"):
        values = {key: how.get(end, how.get("choices", [None])[0]) for key, how in declared.dimensions.items()}
        parse_run_config({**default_values(), **declared.run, "model": model, **values})


@pytest.mark.parametrize("data_set", ["", "kindle"])
def test_all_models_have_the_same_budget(data_set):
    spaces = [load_space(model, data_set) for model in ("fastpfrec", *BASELINES)]
    assert len({(each.trials, each.seed, each.metric, json.dumps(each.run)) for each in spaces}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_central_space_is_of_its_settings_and_starts_from_the_defaults(kind):
    declared = load_space(f"central-{kind}", "yelp")
    assert declared.central
    assert (declared.name, declared.run, declared.trials) == (kind, {"data-set": "yelp"}, load_space("fedmf").trials)
    assert graph_settings(kind, declared.first) == graph_settings(kind)
    for end in ("low", "high"):
        graph_settings(
            kind, {key: how.get(end, how.get("choices", [None])[0]) for key, how in declared.dimensions.items()}
        )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_fixed_for_a_central_model_on_a_data_set_is_not_searched_there(kind):
    here, there = load_space(f"central-{kind}", "gowalla-1m"), load_space(f"central-{kind}", "yelp")
    assert there.fixed == {}
    assert here.fixed["negatives"] == 4
    assert not set(here.fixed) & set(here.dimensions)
    assert set(there.dimensions) <= set(here.fixed) | set(here.dimensions)
    assert here.dimensions["l2"] != there.dimensions["l2"]
    settings = told(graph_settings(kind, {**here.fixed, **here.first}))
    assert {key: settings[key] for key in here.fixed} == here.fixed
    assert settings["layers"] == (0 if kind == "mf" else 3)


def test_what_is_fixed_is_written_with_what_was_chosen(tmp_path):
    fixed = {"negatives": 4, "sampling": "users"}
    central = space(model="central-mf", run={"data-set": "synthetic"}, trials=1, fixed=fixed)
    chosen = tune(central, tmp_path, Formula(), silent)
    assert tomllib.loads((tmp_path / "best.toml").read_text()) == {**fixed, **chosen}
    with pytest.raises(ConfigError, match="trials of another space"):
        tune(space(model="central-mf", run=central.run, trials=1), tmp_path, Formula(), silent)


@pytest.mark.parametrize("model", models())
def test_the_first_trial_on_gowalla_1m_is_of_the_space(model):
    declared = load_space(model, "gowalla-1m")
    assert declared.first != load_space(model, "yelp").first
    assert set(declared.first) == set(declared.dimensions)
    assert_within(declared, declared.first)


def test_models_are_compared_on_the_footing_that_they_were_tuned_on():
    """What FastPFRec's own recipe says (its clip, its noise) must not reach the others."""
    data_sets = ["gowalla-100k", "yelp", "kindle", "gowalla-1m"]
    cells = cells_of(load_suite("performance"), Choice(data_sets=data_sets, seeds=[1]))
    compared = [cell for cell in cells if cell.kind != "central" and cell.variant != "FastPFRec by its recipe"]
    assert len(compared) == 4 * 8
    free = {"model", "evaluate-every", "refit", "seed", "threads", "user-metrics"}
    for cell in compared:
        space = load_space(cell.values["model"], cell.data_set)
        own = {*free, *space.dimensions, *({"num-negatives"} if space.name == "local-only" else ())}
        tuned = parse_run_config({**default_values(), **space.run}).to_flat_dict()
        assert {key: value for key, value in cell.values.items() if key not in own and value != tuned[key]} == {}


def test_an_unknown_model_or_data_set_is_refused():
    with pytest.raises(ConfigError, match=r"--model must be one of fastpfrec, .*, central-mf, .*, got 'bert'"):
        load_space("bert")
    with pytest.raises(ConfigError, match=r"--data-sets must be some of gowalla-100k, .*, got 'netflix'"):
        load_space("fedmf", "netflix")


def test_models_are_tuned_on_each_data_set_apart(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(tuning, "tune", lambda space, folder, *rest: seen.append((space.run["data-set"], folder)))
    monkeypatch.setattr(tuning, "central_trial", lambda *arguments: None)
    tuning.tune_all(["fedmf"], ["yelp", "kindle"], tmp_path, "", silent)
    assert seen == [("yelp", tmp_path / "yelp" / "fedmf"), ("kindle", tmp_path / "kindle" / "fedmf")]
    seen.clear()
    tuning.tune_all([], [], tmp_path, "", silent)
    assert [path for _, path in seen] == [tmp_path / "gowalla-100k" / model for model in models()]
    with pytest.raises(ConfigError, match="netflix"):  # before the first trial of any
        tuning.tune_all(["fedmf"], ["yelp", "netflix"], tmp_path, "", silent)
    assert len(seen) == len(models())


SHIPPED = sorted((ROOT / "conf" / "baselines").rglob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_shipped_values_are_of_the_declared_space(path):
    values = tomllib.loads(path.read_text())
    declared = load_space(path.stem, values["data-set"])
    assert values["data-set"] == ("gowalla-100k" if path.parent.name == "baselines" else path.parent.name)
    assert values["model"] == path.stem
    assert set(values) == {"data-set", "model", *declared.dimensions}
    assert_within(declared, values)


# ---- trials ----------------------------------------------------------------------------------------------------------


def test_a_federated_trial_is_a_run_of_its_configuration(tmp_path):
    seen, stopped = [], False

    def simulate(values):
        seen.append(values)
        (tmp_path / "summary.json").write_text(json.dumps({"validation": {"ndcg@20": 0.25}, "stopped": stopped}))
        return tmp_path

    shared = {"data-set": "synthetic", "model": "fedmf", "seed": 4, "num-rounds": 3}
    trial = federated_trial(shared, "ndcg@20", simulate)
    assert trial({"l2": 0.02}, tmp_path / "000") == 0.25
    (values,) = seen
    assert {key: values[key] for key in shared} == shared
    assert (values["l2"], values["threads"], values["output-dir"]) == (0.02, 1, str(tmp_path / "000"))
    with pytest.raises(RunError, match="no finite validation hit@3"):
        federated_trial(shared, "hit@3", simulate)({}, tmp_path)
    stopped = True
    with pytest.raises(KeyboardInterrupt):  # its figure is of fewer rounds than the others'
        trial({"l2": 0.02}, tmp_path / "000")


def test_a_central_trial_trains_on_train_and_looks_at_validation(tmp_path):
    trial = central_trial("mf", {"data-set": "synthetic", "seed": 2}, {"negatives": 2, "epochs": 99})
    short = {"epochs": 4, "every": 2, "embedding-dim": 8}
    longer = trial({**short, "epochs": 40, "every": 20}, tmp_path / "001")
    assert 0 <= trial(short, tmp_path / "000") < longer < 1
    assert json.loads((tmp_path / "001" / "summary.json").read_text())["validation"]["ndcg@20"] == longer
    assert tomllib.loads((tmp_path / "001" / "settings.toml").read_text()) == {
        "negatives": 2,
        **short,
        "epochs": 40,
        "every": 20,
    }
    with pytest.raises(ConfigError, match="'gamma' is no setting of a central model"):
        trial({"gamma": 1}, tmp_path / "002")


CENTRAL = sorted((ROOT / "conf" / "central").rglob("*.toml"))


@pytest.mark.parametrize("path", CENTRAL, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_shipped_central_settings_are_of_the_declared_space(path):
    values = tomllib.loads(path.read_text())
    assert path.stem in KINDS
    assert central_values(path.stem, path.parent.name) == values
    declared = load_space(f"central-{path.stem}", path.parent.name)
    assert {key: values[key] for key in declared.fixed} == declared.fixed
    assert set(values) == {*declared.fixed, *declared.dimensions}
    assert_within(declared, values)
    for key, value in told(graph_settings(path.stem, values)).items():
        assert value == values.get(key, value)
