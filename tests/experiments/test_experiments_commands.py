"""`fastpfrec experiment` and its tables: what is printed, worked out by hand."""

import json

import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.cli import app
from fastpfrec_flwr.experiments.cells import Choice, cells_of
from fastpfrec_flwr.experiments.study import Study, default_study
from fastpfrec_flwr.experiments.suite import load_suite, shipped_names
from fastpfrec_flwr.experiments.table import status_table, study_tables
from tests.experiments.own import MINE, write


def call(*arguments):
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


def as_lists(table):
    columns = [column.header for column in table.columns]
    return [columns, *(list(row) for row in zip(*(column.cells for column in table.columns), strict=True))]


def invented_study(folder, failing=()):
    """A study whose runs have figures that can be checked by hand: NDCG@20 is 0.1 * seed, one more for each variant."""
    suite = load_suite(str(write(folder, MINE.replace('metrics = ["hit', 'figures = ["bytes.up"]\nmetrics = ["hit'))))
    cells = cells_of(suite, Choice())
    study = Study(folder / "study")
    with study.lock():
        study.write(suite, cells, False)
        for i, cell in enumerate(cells[:3] + cells[3:5]):
            run = study.folder(cell)
            run.mkdir(parents=True)
            if i in failing:
                study.write_record(cell, "failed", 1.0, "no space left")
                continue
            test = {"ndcg@20": 0.1 * cell.seed + i % 3, "hit_ratio_micro@20": 0.4}
            summary = {"test": test, "seconds": {"round_median": 0.25}, "bytes": {"up": 1234567}}
            (run / "summary.json").write_text(json.dumps(summary))
            study.write_record(cell, "done", 2.0)
    return study.path


def test_the_table_by_hand(tmp_path):
    (table,) = study_tables(invented_study(tmp_path))
    assert table.title == "False items: synthetic"
    assert as_lists(table) == [
        [
            "variant",
            "HR@20",
            "NDCG@20",
            "paper HR",
            "diff HR@20",
            "paper NDCG",
            "diff NDCG@20",
            "s/round",
            "bytes up",
            "n",
        ],
        # NDCG@20 of "none": 0.1 and 0.2, mean 0.15, sd 0.0707; the paper's 0.25.
        [
            "none",
            "0.4000 ± 0.0000",
            "0.1500 ± 0.0707",
            "0.5000",
            "-0.1000",
            "0.2500",
            "-0.1000",
            "0.25",
            "1,234,567",
            "2",
        ],
        ["10 % false", "0.4000 ± 0.0000", "1.1500 ± 0.0707", "-", "-", "-", "-", "0.25", "1,234,567", "2"],
        # The reference's second run is missing: one value has no spread.
        ["ItemKNN", "0.4000", "2.1000", "-", "-", "-", "-", "0.25", "1,234,567", "1 of 2"],
    ]


def test_status_counts_and_says_why(tmp_path):
    table, failures = status_table(invented_study(tmp_path, failing=(1,)))
    assert as_lists(table) == [
        ["data set", "variant", "done", "failed", "running", "missing"],
        ["synthetic", "none", "2", "0", "0", "0"],
        ["synthetic", "10 % false", "1", "1", "0", "0"],
        ["synthetic", "ItemKNN", "1", "0", "0", "1"],
    ]
    assert len(failures) == 1
    assert failures[0].startswith("failed: synthetic, 10 % false, seed 1: no space left\n")


def test_runs_of_two_versions_are_noticed(tmp_path):
    path = invented_study(tmp_path)
    record = next(path.glob("runs/*/*/seed-1/run.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "source": "0" * 16}))
    _, notes = status_table(path)
    assert notes[-1].startswith("note: these runs were made by 2 versions of the code: 0000")


def test_seeds_of_unlike_data_are_noticed(tmp_path):
    path = invented_study(tmp_path)
    runs = [path / entry["folder"] for entry in Study(path).read()["runs"] if entry["variant"] == "none"]

    def tell(folder, digest):
        report = {"files": [{"role": "all", "sha256": digest}]}
        (folder / "config.json").write_text(json.dumps({"data": {"users": 60, "report": report}}))

    for folder in runs:
        tell(folder, "1")
    assert status_table(path)[1] == []
    tell(runs[1], "2")
    (note,) = status_table(path)[1]
    assert note.startswith(
        f"note: none on synthetic: its seeds are not of one data set; these are of other data than {runs[0]}; "
    )
    assert note.splitlines()[1:] == [f"  {runs[1]}"]


def test_runs_that_were_cut_off_are_noticed(tmp_path):
    path = invented_study(tmp_path)
    record = next(path.glob("runs/*/*/seed-1/run.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "running"}))
    _, notes = status_table(path)
    assert notes == ["note: nobody runs this study now; 1 runs were cut off and begin again with the next call"]
    with Study(path).lock():
        assert status_table(path)[1] == []


def test_status_command(tmp_path):
    result = call("status", invented_study(tmp_path, failing=(0,)))
    assert result.exit_code == 0, result.output
    assert "failed: synthetic, none, seed 1: no space left" in result.stdout
    assert "0.2000" in result.stdout  # what is left of it


def test_list_names_all_suites():
    result = call("list")
    assert result.exit_code == 0, result.output
    assert all(f"{name}: " in result.stdout for name in shipped_names())
    assert {"attack-resilience", "node-failure", "node-compromise", "detection", "performance"} <= set(shipped_names())


def test_default_folders_are_the_users_and_quick_has_its_own():
    assert default_study("ablation", True).name == "ablation-quick"
    assert default_study("ablation", False).parts[-3:] == ("fastpfrec", "studies", "ablation")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "ablatoin"], ["'ablatoin'", "did you mean 'ablation'"]),
        (["run", "/nowhere/mine.toml"], ["/nowhere/mine.toml", "cannot be read"]),
        (["run", "performance", "--seeds", "one"], ["--seeds must be whole numbers", "'one'"]),
        (["run", "performance", "--variants", "two"], ["--variants", "'two'", "'ItemKNN'"]),
        (["run", "performance", "--workers", "-1"], ["--workers must be >= 0", "-1"]),
        (["run", "performance", "--output-dir", "/proc/nowhere"], ["/proc/nowhere", "cannot be written"]),
        (["run", "performance", "--seeds", "1,²"], ["--seeds must be whole numbers", "'²'"]),
        (["run", "performance", "--model", "fedmf"], ["--model is of `experiment run tuning`", "'fedmf'"]),
        (["run", "tuning", "--quick"], ["--quick is of suites", "--data-sets"]),
        (["run", "tuning", "--seeds", "1"], ["--seeds is of suites", "'1'"]),
        (["run", "tuning", "--variants", "none"], ["--variants is of suites", "'none'"]),
        (["run", "tuning", "--workers", "2"], ["--workers is of suites", "2"]),
        (["status", "performance"], ["study.json", "is", "a study folder?"]),
    ],
)
def test_foreseen_errors_are_plain_words(arguments, words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert all(word in result.stderr for word in words), result.stderr


def test_a_broken_study_is_named(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    result = call("status", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path / 'study.json'}: is no study (keys are missing)" in result.stderr


def test_a_broken_summary_is_named(tmp_path):
    path = invented_study(tmp_path)
    summary = next(path.glob("runs/*/*/seed-1/summary.json"))
    summary.write_text('{"test": ')
    result = call("status", path)
    assert result.exit_code == 2
    assert f"{summary}: is no summary" in result.stderr
