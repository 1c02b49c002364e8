"""Suites: what is read, what is refused and in which words, how a run's configuration comes about, and the shipped ones."""

import tomllib
from pathlib import Path

import pytest

from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.experiments import cells
from fastpfrec_flwr.experiments.cells import Choice, cell_of, cells_of
from fastpfrec_flwr.experiments.recipes import conf_values
from fastpfrec_flwr.experiments.suite import (
    RUNNER_KEYS,
    SuiteError,
    load_suite,
    parse_suite,
    placed_data_set,
    shipped_names,
)
from tests.experiments.own import MINE, mine, write

ROOT = Path(__file__).resolve().parents[2]


def refusal(change):
    with pytest.raises(SuiteError) as caught:
        mine(change)
    return str(caught.value)


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_a_suite_of_ones_own(tmp_path):
    suite = load_suite(str(write(tmp_path)))
    assert [variant.name for variant in suite.variants] == ["none", "10 % false", "ItemKNN"]
    assert suite.paper[0].figures() == [
        {"variant": "none", "data_set": "synthetic", "metric": "hit_ratio_micro", "value": 0.5, "where": "Table 1"},
        {"variant": "none", "data_set": "synthetic", "metric": "ndcg", "value": 0.25, "where": "Table 1"},
    ]


def test_paths_of_data_in_a_suite_are_from_its_folder_and_one_with_those_of_the_command(tmp_path, monkeypatch):
    text = (
        MINE.replace('data-sets = ["synthetic"]', 'data-sets = ["./ratings.csv", "synthetic"]')
        .replace("seeds = [1, 2]", 'seeds = [1, 2]\nother-data-sets = ["more/x"]')
        .replace('"none", "synthetic", 0.5', '"none", "ratings.csv", 0.5')
        .replace('name = "10 % false"', 'name = "10 % false"\ndata-set."sub/../ratings.csv" = { l2 = 0.5 }')
        + '\n[data-set."ratings.csv"]\nl2 = 0.25\n'
    )
    suite = load_suite(str(write(tmp_path, text)))
    file = str(tmp_path / "ratings.csv")
    assert suite.data_sets == suite.quick.data_sets == [file, "synthetic"]
    assert suite.other_data_sets == [str(tmp_path / "more" / "x")]
    assert suite.paper[0].rows[0][1] == file
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for name in (file, "../ratings.csv"):
        found = cells_of(suite, Choice(data_sets=[placed_data_set(name, Path.cwd())], seeds=[1]))
        assert [cell.data_set for cell in found] == [file] * 3
        assert [cell.values["l2"] for cell in found[:2]] == [0.25, 0.5]
    # Another file of the same name elsewhere is another run; the same data set twice is refused.
    write(tmp_path / "sub", text)
    assert cells_of(suite, Choice())[0].key != cells_of(load_suite("./mine.toml"), Choice())[0].key
    write(tmp_path, text.replace('"./ratings.csv", "synthetic"', '"./ratings.csv", "ratings.csv"'))
    with pytest.raises(SuiteError, match="data-sets must differ"):
        load_suite(str(tmp_path / "mine.toml"))


def test_the_later_of_the_layers_wins():
    """l2: defaults 0.01 < base 1 < data set 2 < quick 3 < variant 4 < variant on a data set 5."""
    suite = mine()
    none = suite.variants[0]

    def l2(with_quick=False, /, **layers):
        changed = suite.model_copy(
            update={
                "base": {**suite.base, **layers.get("base", {})},
                "data_set": {"synthetic": layers.get("data_set", {})},
                "quick": suite.quick.model_copy(update={"overrides": layers.get("quick", {})}),
            }
        )
        variant = none.model_copy(
            update={"overrides": layers.get("variant", {}), "data_set": {"synthetic": layers.get("both", {})}}
        )
        return cell_of(changed, variant, "synthetic", 1, with_quick, "").values["l2"]

    layers = {}
    assert l2() == 0.01
    for value, name in enumerate(("base", "data_set", "quick", "variant", "both"), 1):
        layers[name] = {"l2": value}
        assert l2(True, **layers) == value
        assert l2(False, **layers) == (2 if name == "quick" else value)
    assert isinstance(l2(base={"l2": 1}), float)


def test_a_recipe_is_laid_below_the_base():
    suite = mine(lambda values: values.update(conf="conf/study"))
    values = cell_of(suite, suite.variants[1], "yelp", 3, False, "/data").values
    assert values["l2"] == 0.02  # conf/study/yelp.toml
    assert values["num-rounds"] == 6  # the suite's base
    assert (values["data-set"], values["seed"], values["data-dir"]) == ("yelp", 3, "/data")
    assert (values["threads"], values["user-metrics"]) == (1, True)
    assert conf_values("conf/study", "no-such-set") == {}
    assert conf_values("conf/study", "../study/yelp") == {}


def test_a_tuned_model_has_the_values_of_its_data_set():
    suite = load_suite("performance")
    tuned = next(variant for variant in suite.variants if variant.recipe == "fedmf")
    found = {name: cell_of(suite, tuned, name, 1, False, "").values for name in ("gowalla-100k", "yelp", "synthetic")}
    for name, file in (("gowalla-100k", "fedmf"), ("yelp", "yelp/fedmf"), ("synthetic", "fedmf")):
        shipped = tomllib.loads((ROOT / "conf" / "baselines" / f"{file}.toml").read_text())
        assert found[name]["item-learning-rate"] == shipped["item-learning-rate"]
        assert found[name]["l2"] == shipped["l2"]  # not that of conf/<data set>.toml, which is FastPFRec's
        assert found[name]["data-set"] == name


def test_a_central_model_has_the_settings_of_its_data_set_and_they_are_part_of_its_key(monkeypatch):
    suite = load_suite("performance")
    model = next(variant for variant in suite.variants if variant.model == "lightgcn")
    before = {name: cell_of(suite, model, name, 1, False, "") for name in ("gowalla-1m", "synthetic")}
    own = ROOT / "conf" / "central" / "gowalla-1m" / "lightgcn.toml"
    assert before["gowalla-1m"].chosen == tomllib.loads(own.read_text())
    assert before["synthetic"].chosen == {}
    monkeypatch.setattr(cells, "central_values", lambda name, data_set: {"epochs": 7})
    after = {name: cell_of(suite, model, name, 1, False, "") for name in before}
    assert all(after[name].key != before[name].key for name in before)
    knn = next(variant for variant in suite.variants if variant.model == "item-knn")
    assert cell_of(suite, knn, "yelp", 1, False, "").chosen == {}


@pytest.mark.parametrize("name", shipped_names())
def test_what_compiles_a_studys_kernels_is_a_configuration_that_tells_nobody(name, tmp_path, monkeypatch):
    """One small run for each choice of kernels, before the runs that are timed."""
    from fastpfrec_flwr.experiments import runner, worker
    from fastpfrec_flwr.simulation import run

    seen = []
    monkeypatch.setattr(run, "simulate", lambda values, super_nodes: seen.append(parse_run_config(values)))
    chosen = runner.first_of_each_kernel(cells_of(load_suite(name), Choice(seeds=[1])))
    for number, cell in enumerate(chosen):
        values = {**cell.values, "trackers": "mlflow", "metrics-file": str(tmp_path / "m.prom"), "catalogue": "/c.json"}
        worker.write_settings(tmp_path / f"{number}.toml", values)
    worker._warm({"settings": [str(tmp_path / f"{number}.toml") for number in range(len(chosen))]})
    assert len(seen) == len(chosen) > 0
    assert {(each.trackers, each.metrics_file, each.catalogue, each.num_rounds) for each in seen} == {("", "", "", 2)}


def test_runs_come_seed_by_seed():
    cells = cells_of(mine(), Choice())
    assert [(cell.seed, cell.variant) for cell in cells] == [
        (seed, name) for seed in (1, 2) for name in ("none", "10 % false", "ItemKNN")
    ]
    quick = cells_of(mine(), Choice(quick=True))
    assert {cell.seed for cell in quick} == {1}
    assert quick[0].values["num-rounds"] == 2
    some = cells_of(mine(), Choice(seeds=[7], variants=["itemknn", "NONE"], data_sets=["synthetic", "yelp"]))
    assert [(cell.data_set, cell.variant) for cell in some] == [
        ("synthetic", "none"), ("synthetic", "ItemKNN"), ("yelp", "none"), ("yelp", "ItemKNN"),
    ]  # fmt: skip


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(nonsense=1), ["mine.toml: ", "unknown key 'nonsense'"]),
        (lambda v: v.pop("title"), ["mine.toml: title is missing"]),
        (lambda v: v.update(name="Mine!"), ["name", "'Mine!'"]),
        (lambda v: v.update(seeds=[]), ["seeds", "at least 1", "[]"]),
        (lambda v: v.update(seeds=[-1]), ["seeds.1", "greater than or equal to 0", "-1"]),
        (lambda v: v.update(seeds=[1, 1]), ["seeds must differ", "1 twice"]),
        (lambda v: v.update(seeds=[True]), ["seeds.1", "True"]),
        (lambda v: v.update(metrics=["ndcg"]), ["metrics.1", "'ndcg@10'", "got 'ndcg'"]),
        (lambda v: v.update(reference="nobody"), ["reference must be a variant's name", "'nobody'", "'ItemKNN'"]),
        (lambda v: v.update(conf="nowhere"), ["conf", "'nowhere'"]),
        (lambda v: v["base"].update(seed=3), ["base.seed is set for each run", "3"]),
        (lambda v: v["quick"]["overrides"].update(threads=3), ["quick.overrides.threads is set for each run"]),
        (lambda v: v["base"].update(l2=[1]), ["base.l2", "[1]"]),
        (lambda v: v["variants"][1].update(name="NONE"), ["variants must differ", "'none' twice"]),
        (lambda v: v["variants"][1].update(name="a, b"), ["variants.2", "no comma", "'a, b'"]),
        (lambda v: v["variants"][1].update(name="%"), ["variants.2", "letter or digit"]),
        (lambda v: v["variants"][2].pop("model"), ["variants.3", "model must be given"]),
        (lambda v: v["variants"][2].update(overrides={"l2": 1.0}), ["variants.3", "takes no overrides"]),
        (lambda v: v["variants"][0].update(model="popularity"), ["variants.1", "model must be given"]),
        (lambda v: v["paper"][0].update(rows=[["x", "y", 1, 2]]), ["rows of 'Table 1'", "'x'"]),
        (lambda v: v["paper"][0].update(rows=[["none", "y", 1]]), ["paper.1", "2 numbers"]),
        (lambda v: v["paper"][0].update(columns=["variant", "data-set", "auc"]), ["paper.1", "auc"]),
        (lambda v: v["quick"].update(variants=["x"]), ["quick.variants", "'x'"]),
        (lambda v: v["quick"].pop("seeds"), ["quick.seeds is missing"]),
    ],
)
def test_errors_name_file_key_rule_and_value(change, words):
    text = refusal(change)
    assert text.startswith("mine.toml: ")
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"noise-scale": -0.1}, ["noise-scale must be >= 0", "got -0.1"]),
        ({"noise-scal": 0.1}, ["unknown key 'noise-scal'", "did you mean 'noise-scale'"]),
        ({"noise": "none"}, ["noise-scale must be 0.0 with noise = 'none'"]),
        ({"refit": 1}, ["refit must be true or false", "got 1"]),
    ],
)
def test_a_variant_that_cannot_run_is_named_before_anything_runs(overrides, words):
    suite = mine(lambda values: values["variants"][1].update(overrides=overrides))
    with pytest.raises(SuiteError) as caught:
        cells_of(suite, Choice())
    text = str(caught.value)
    assert text.startswith("mine.toml: variant '10 % false' on synthetic: ")
    assert all(word in text for word in words), text
    # Whoever leaves it out can run the rest.
    assert len(cells_of(suite, Choice(variants=["none"]))) == 2


def test_unknown_names_are_told_the_known_ones(tmp_path):
    with pytest.raises(SuiteError, match=r"'ablatoin'; did you mean 'ablation'\? There are ablation, "):
        load_suite("ablatoin")
    with pytest.raises(SuiteError, match=r"nowhere\.toml: cannot be read"):
        load_suite(str(tmp_path / "nowhere.toml"))
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(SuiteError, match=r"broken\.toml: is not TOML"):
        load_suite(str(tmp_path / "broken.toml"))
    with pytest.raises(SuiteError, match="has no variant 'two'; it has 'none', '10 % false', 'ItemKNN'"):
        cells_of(mine(), Choice(variants=["two"]))


# ---- the shipped suites ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_suite_validates(name):
    suite = load_suite(name)
    assert suite.name == name
    sets = [*suite.data_sets, *suite.other_data_sets]
    for choice in (Choice(data_sets=sets), Choice(quick=True)):
        cells = cells_of(suite, choice)
        assert len({cell.key for cell in cells}) == len(cells), "two variants are the same run"
        assert len({cell.folder for cell in cells}) == len(cells)
        for cell in cells:
            parse_run_config(cell.values)
    assert {row[1] for table in suite.paper for row in table.rows} <= set(sets)


def test_every_data_set_of_the_study_recipes_has_one():
    for name in shipped_names():
        suite = load_suite(name)
        if suite.conf:
            for data_set in [*suite.data_sets, *suite.other_data_sets]:
                assert conf_values(suite.conf, data_set), (name, data_set)


def test_shipped_suites_and_recipes_are_in_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["conf"] == "fastpfrec_flwr/conf"
    assert wheel["packages"] == ["fastpfrec_flwr"]


def test_the_runner_sets_what_suites_may_not():
    assert set(default_values()) >= RUNNER_KEYS


def test_the_documented_suite_is_one():
    text = (ROOT / "docs" / "studies.md").read_text()
    suite = parse_suite(tomllib.loads(text.split("```toml\n")[1].split("```")[0]), "docs/studies.md")
    cells = cells_of(suite, Choice())
    assert len(cells) == 2 * 5 * 3
    l2 = {(cell.data_set, cell.variant): cell.values["l2"] for cell in cells}
    assert l2["synthetic", "50 %"] == 0.03
    assert l2["/home/me/ratings.csv", "50 %"] == 0.02
    assert l2["synthetic", "10 %"] == 0.01
