"""The table of runs with liars."""

import json

import pytest

from fastpfrec_flwr.report.attack_tables import attack_table
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import read_study
from tests.report.studies import write_study


def attack_of(found, damage, honest_ndcg, exposure=None):
    return {
        "attackers": {"trained": 200, "isolated": found}, "honest": {"trained": 800, "isolated": 8, "lost_with_nodes": 4},
        "bad_nodes": {"seen": 10, "isolated": 5}, "good_nodes": {"seen": 0, "isolated": 0}, "damage": damage,
        "honest_ndcg": honest_ndcg, "exposure": exposure,
    }  # fmt: skip


@pytest.fixture
def study(tmp_path):
    """Attacked: "more noise" on both seeds; the reference measured without a liar."""
    folder = write_study(tmp_path / "study", data_sets=("a",))
    for (_, variant, seed), path in folder.runs.items():
        summary = json.loads((path / "summary.json").read_text())
        summary["seconds"]["trusted_nodes_round"] = 0.05
        if variant == "more noise":
            summary["attack"] = attack_of(150 + 10 * seed, 0.1 * seed, 0.12, 0.25)
        if variant == "FastPFRec":
            summary["attack"] = {**attack_of(0, 0.0, 0.16), "attackers": {"trained": 0, "isolated": 0}}
        (path / "summary.json").write_text(json.dumps(summary))
    paper = [{"variant": "more noise", "data_set": "a", "metric": "damage", "value": 2.34, "where": "Table"}]
    folder.change(paper=paper)
    return read_study(folder.path)


def cells(table, variant):
    names = [column.title for column in table.columns]
    (row,) = [row for row in table.rows if row[1].text == variant]
    return dict(zip(names, row, strict=True))


def test_rates_damage_and_what_was_kept(study):
    row = cells(attack_table(Results(study)), "more noise")
    assert row["liars found"].text == "82.50%"  # (160 + 170) / 400
    assert row["false alarms"].text == "1.00%"
    assert row["lost with nodes"].text == "0.50%"
    assert row["bad nodes found"].text == "50.00%"
    assert row["good nodes lost"].text == "\N{EN DASH}"
    assert row["damage"].value == pytest.approx(0.15)
    assert row["damage"].parts["damage_sd"] == pytest.approx(0.0707, abs=1e-4)
    assert row["kept"].text == "75.0%"
    assert row["ER@10"].text == "25.00%"
    assert row["check"].text == "5 ms"  # 50 ms of ten nodes
    assert row["paper"].text == "damage 2.34"


def test_nobody_to_count_is_a_dash(study):
    table = attack_table(Results(study))
    clean, untold = cells(table, "FastPFRec"), cells(table, "no noise")
    assert clean["liars found"].text == untold["liars found"].text == untold["damage"].text == "\N{EN DASH}"
    assert clean["kept"].text == "100.0%"
    assert clean["ER@10"].text == "\N{EN DASH}"


def test_no_table_without_liars(tmp_path):
    assert attack_table(Results(read_study(write_study(tmp_path / "study", data_sets=("a",)).path))) is None
