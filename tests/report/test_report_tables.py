"""Tables in every format, letter by letter, and their figures from runs."""

import csv
import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr.report import cost_tables, metric_tables
from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.node_tables import nodes_table
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import read_all, read_study
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words
from fastpfrec_flwr.report.writing import latex_text, markdown_text, to_csv, to_latex, to_markdown
from tests.report.studies import users_of, write_json, write_run, write_study

SMALL = Table(
    "small",
    "Small",
    "By hand.",
    (Column("data set", "left"), Column("variant", "left"), Column("NDCG@20")),
    (
        (words("a", "data_set"), words("50 % & more_or|less", "variant"),
         Cell("0.1234 ± 0.0100", 0.12345, {"ndcg@20": 0.12345, "ndcg@20_sd": 0.01}, strong=True)),
        (words("b", "data_set"), words("plain", "variant"), number("–", None, "ndcg@20")),
    ),
    ("A note.",),
)  # fmt: skip


def test_csv_as_written():
    assert to_csv(SMALL) == (
        "data_set,variant,ndcg@20,ndcg@20_sd\n"
        "a,50 % & more_or|less,0.12345,0.01\n"
        "b,plain,,\n"
    )  # fmt: skip


def test_markdown_as_written():
    assert to_markdown(SMALL) == (
        "By hand.\n\n"
        "| data set | variant               |             NDCG@20 |\n"
        "| -------- | --------------------- | ------------------: |\n"
        "| a        | 50 % & more\\_or\\|less | **0.1234 ± 0.0100** |\n"
        "| b        | plain                 |                   – |\n"
        "\nA note.\n"
    )


def test_latex_as_written():
    assert to_latex(SMALL).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Small. By hand.}",
        r"\label{tab:small}",
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"data set & variant & NDCG@20 \\",
        r"\midrule",
        r"a & 50 \% \& more\_or|less & \textbf{0.1234 $\pm$ 0.0100} \\",
        r"\midrule",
        r"b & plain & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\\[2pt]",
        r"{\footnotesize A note.}",
        r"\end{table}",
    ]


def test_latex_escapes():
    assert latex_text("a_b & 50% $5 #1 {x} ~ ^ \\ <>") == (
        r"a\_b \& 50\% \$5 \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}\textgreater{}"
    )
    assert latex_text("−0.1 ± 0.2\n–\n∞") == r"$-$0.1 $\pm$ 0.2 -- $\infty$"


@given(st.text())
def test_no_bare_special_letter_is_left_for_latex(text):
    left = re.sub(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\$-\$|\$\\pm\$|\$\\infty\$", "", latex_text(text))
    assert not set(left) & set("&%$#_{}~^\\")


def test_markdown_stays_in_its_cell():
    assert markdown_text("a|b\nc *d* <e> `f`") == "a\\|b c \\*d\\* &lt;e> \\`f\\`"


def test_rows_fit_the_columns():
    with pytest.raises(ValueError, match="table t: every row must have 1 cells"):
        Table("t", "", "", (Column("one"),), ((words("a", "x"), words("b", "y")),))


def test_numbers_as_read():
    assert show.metric(0.12345) == "0.1235"
    assert show.metric(math.nan) == show.metric(None) == "–"
    assert [show.difference(each) for each in (0.01, -0.01, 0.0, -0.00001, None)] == [
        "+0.0100", "−0.0100", "0.0000", "0.0000", "–",
    ]  # fmt: skip
    assert show.mean_and_deviation(0.5, math.nan) == "0.5000"
    assert show.interval(-0.1, 0.2, signed=True) == "[−0.1000, +0.2000]"
    assert [show.p_value(each) for each in (0.00099, 0.001, 1.0)] == ["< 0.001", "0.001", "1.000"]
    assert [show.duration(each) for each in (0.25, 12.0, 599.9, 600.0)] == ["250 ms", "12.0 s", "599.9 s", "10.0 min"]
    assert [show.epsilon(each) for each in ("infinity", 1284392.4, 0.5, None)] == ["∞", "1,284,392", "0.5", "–"]


# ---- figures of a study ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_study(write_study(tmp_path_factory.mktemp("study")).path)


@pytest.fixture(scope="module")
def results(study):
    return Results(study)


def lines_of(table):
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def test_quality_beside_the_paper(results):
    line = lines_of(metric_tables.quality_table(results, "ndcg"))[0]
    means = [users_of(0.30, seed)["ndcg@20"].astype(float).mean() for seed in (1, 2)]
    mean = sum(means) / 2
    assert (line["data_set"], line["variant"], line["seeds"]) == ("a", "FastPFRec", "2")
    assert float(line["ndcg@20"]) == pytest.approx(mean)
    assert float(line["ndcg@20_sd"]) == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2))
    assert float(line["ndcg@20_low"]) < mean < float(line["ndcg@20_high"])
    assert float(line["paper"]) == 0.1
    assert float(line["@20_minus_paper"]) == pytest.approx(mean - 0.1)
    assert float(line["@10_minus_paper"]) == pytest.approx(float(line["ndcg@10"]) - 0.1)


def test_the_best_of_each_data_set_is_marked(results):
    table = metric_tables.quality_table(results, "hit_ratio_micro")
    strong = [(row[0].text, row[1].text) for row in table.rows if row[5].strong]
    assert strong == [("a", "no noise"), ("b", "no noise"), ("c", "no noise")]


def test_every_table_of_figures_names_its_protocol_and_the_paper(results):
    ranks, _ = results.ranks()
    tables = [
        metric_tables.quality_table(results, "ndcg"),
        metric_tables.quality_table(results, "hit_ratio_micro"),
        metric_tables.comparison_table(results),
        cost_tables.privacy_table(results),
        metric_tables.ranks_table(results, ranks),
    ]
    for table in tables:
        assert "Full ranking, test part." in table.caption
        assert "paper" in " ".join([*(column.title for column in table.columns), *table.notes]).lower()


def test_comparisons_with_the_reference(results):
    lines = lines_of(metric_tables.comparison_table(results))
    assert len(lines) == 3 * 4 * 2
    line = next(
        each for each in lines if (each["data_set"], each["metric"], each["variant"]) == ("a", "NDCG@20", "more noise")
    )
    assert float(line["difference"]) < float(line["high"]) < 0
    assert float(line["p"]) <= float(line["p_holm"]) < 0.001
    assert line["stars"] == "***"
    assert line["users"] == "120"
    better = next(
        each for each in lines if (each["data_set"], each["metric"], each["variant"]) == ("a", "NDCG@10", "no noise")
    )
    assert float(better["paper_difference"]) == pytest.approx(0.025)
    notes = " ".join(metric_tables.comparison_table(results).notes)
    assert "no test over 2 seeds: a two-sided Wilcoxon test over 2 pairs cannot go below p = 0.5; it takes 6" in notes


def test_six_seeds_are_tested(tmp_path):
    found = Results(read_study(write_study(tmp_path, ("a",), (1, 2, 3, 4, 5, 6)).path))
    assert {each.seeds for each in found.comparisons if each.variant == "more noise"} == {
        "Wilcoxon over 6 seeds: p = 0.0312, not adjusted"
    }


def test_ranks(results):
    ranks, reason = results.ranks()
    assert reason == ""
    assert ranks.mean_ranks == {"FastPFRec": 2.0, "no noise": 1.0, "more noise": 3.0}
    first = lines_of(metric_tables.ranks_table(results, ranks))[0]
    assert (first["variant"], first["mean_rank"], first["nemenyi_p_to_first"]) == ("no noise", "1.0", "")


def test_too_few_data_sets_to_rank(tmp_path):
    ranks, reason = Results(read_study(write_study(tmp_path, ("a", "b")).path)).ranks()
    assert ranks is None
    assert "at least 3 data sets and 3 variants" in reason


def test_costs(study):
    line = lines_of(cost_tables.time_table(study))[0]
    assert float(line["seconds_round_median"]) == 0.25
    assert float(line["bytes_up"]) == 1_500_000
    assert float(line["peak_rss_mb"]) == 400


def test_the_check_without_attackers(study):
    table = cost_tables.check_table(study)
    line = lines_of(table)[0]
    assert (line["uploads"], line["isolated"], line["refused"]) == ("10240", "128", "6")
    assert float(line["isolated_share"]) == pytest.approx(128 / 10240)
    assert "attackers_isolated" not in line
    assert "false alarms" in table.notes[0]


def test_nodes_that_failed(tmp_path, study):
    assert nodes_table(study) is None, "no run had failures"
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    summary = {**read_all([folder])[0].runs[0].summary}
    summary["clients"] = {**summary["clients"], "lost": 512, "reassigned": 1200}
    summary["nodes"] = {"failures": 3, "rounds_away": 60, "rounds_quarantined": 4, "rounds_without_any": 2}
    write_json(folder / "summary.json", summary)
    (line,) = lines_of(nodes_table(read_all([folder])[0]))
    names = (
        "failures",
        "node_rounds_away",
        "node_rounds_in_quarantine",
        "rounds_without_a_node",
        "uploads",
        "sent_to_another_node",
        "lost",
    )
    assert [int(line[name]) for name in names] == [3, 60, 4, 2, 5120, 1200, 512]
    assert float(line["share_lost"]) == pytest.approx(0.1)


def test_the_check_with_attackers(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    summary = {**read_all([folder])[0].runs[0].summary}
    summary["attack"] = {"attackers": {"trained": 50, "isolated": 40}, "honest": {"trained": 950, "isolated": 19}}
    write_json(folder / "summary.json", summary)
    table = cost_tables.check_table(read_all([folder])[0])
    (line,) = lines_of(table)
    names = ("attackers_isolated", "attackers_let_in", "honest_isolated", "honest_let_in")
    assert [line[name] for name in names] == ["40", "10", "19", "931"]
    assert [cell.text for cell in table.rows[0][-4:]] == ["40 (80.00%)", "10 (20.00%)", "19 (2.00%)", "931 (98.00%)"]


def test_noise_and_its_price(results):
    lines = lines_of(cost_tables.privacy_table(results))
    assert [(line["noise_scale"], line["epsilon_per_upload"]) for line in lines[:3]] == [
        ("0.1", "10000.0"), ("0.0", ""), ("0.5", "2000.0"),
    ]  # fmt: skip


def test_what_differs(study):
    table = cost_tables.differences_table(study)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["noise", "laplace", "none", "laplace"],
        ["noise-scale", "0.1", "0.0", "0.5"],
    ]


def test_what_differs_between_many(tmp_path):
    """Five variants and one setting: a line for each variant."""
    scales = (0.1, 0.2, 0.3, 0.4, 0.5)
    folders = [write_run(tmp_path / f"run-{scale}", "a", 1, 0.3, **{"noise-scale": scale}) for scale in scales]
    table = cost_tables.differences_table(read_all(folders)[0])
    assert [column.title for column in table.columns] == ["variant", "noise-scale"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        [f"noise-scale = {scale}", str(scale)] for scale in scales
    ]


def test_central_references_have_no_noise(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    whole = read_all([folder])[0].runs[0]
    write_json(folder / "config.json", {"config": dict(whole.config), **whole.facts, "model": "item-knn"})
    study = read_all([folder])[0]
    assert study.variants[0].name == "item-knn"
    assert cost_tables.privacy_table(Results(study)).rows == ()


def test_nothing_differs(tmp_path):
    folders = [write_run(tmp_path / str(seed), "a", seed, 0.3) for seed in (1, 2)]
    assert cost_tables.differences_table(read_all(folders)[0]) is None


def test_all_metrics_are_there_for_other_tools(study):
    lines = lines_of(metric_tables.all_metrics_table(study))
    assert len(lines) == 18 * 2 * 6
    assert {line["metric"] for line in lines} == {
        f"{name}@{k}" for name in ("hit_ratio_micro", "recall", "ndcg") for k in (10, 20)
    }
