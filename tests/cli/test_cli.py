"""The command line: help at once, options merged in their order, foreseen errors in plain words."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.cli import app
from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.files import source_fingerprint
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import Setting
from fastpfrec_flwr.simulation.options import merge_options, with_absolute_paths

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "data-set=synthetic embedding-dim=8 num-rounds=2 clients-per-round=40 num-negatives=8 num-trusted-nodes=2 "
    "evaluate-every=1 threads=2"
)


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["data", "simulate", "references"]),
        (("data",), ["list", "fetch", "show"]),
        (("simulate",), ["--num-supernodes", "--output-dir", "--data-dir"]),
        (("data", "fetch"), ["--from"]),
        (("privacy",), ["--users", "--items", "--json", "--delta", "--observer"]),
        (("data", "show"), ["--split", "--data-dir"]),
    ],
)
def test_help(arguments, words):
    result = call(*arguments, "--help")
    assert result.exit_code == 0
    assert all(word in result.stdout for word in words)


def test_version_is_that_of_the_package_and_what_it_runs_on():
    told = call("--version").stdout
    declared = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert told.startswith(
        f"fastpfrec {declared} (source {source_fingerprint()})\nPython {sys.version.split()[0]}, flwr "
    )
    assert f"torch {version('torch')}" in told


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from fastpfrec_flwr.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'numba', 'flwr', 'ray', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- -c --------------------------------------------------------------------------------------------------------------


def test_later_options_win(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text("seed = 5\nnum-rounds = 7\n[nested]\nkey = 'x'\n")
    defaults = {"seed": 1, "num-rounds": 1, "device": "auto"}
    assert merge_options([], defaults) == defaults
    assert merge_options(["seed=3", str(file)], defaults)["seed"] == 5
    merged = merge_options([str(file), "seed=3 device='cpu'", "seed=4"], defaults)
    assert merged == {"seed": 4, "num-rounds": 7, "device": "cpu", "nested.key": "x"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seed=3", 3),
        ("seed=1_000", 1000),
        ("seed=0.5", 0.5),
        ("seed=1e-3", 1e-3),
        ("seed=true", True),
        ('seed="a b"', "a b"),
        ("seed='3'", "3"),
        ("seed=word", "word"),
        ("seed=/some/path-1.2/x", "/some/path-1.2/x"),
        ("seed=a=b", "a=b"),
        ("seed=True", "True"),
    ],
)
def test_values_are_toml_and_bare_words_are_text(text, value):
    found = merge_options([text], {})["seed"]
    assert found == value
    assert type(found) is type(value)


def test_values_read_as_flower_reads_them():
    from flwr.common.config import parse_config_args

    text = "seed=3 num-rounds=7 noise-scale=0.25 refit=true data-set='ml-100k' loss=\"bpr\" a.b=1"
    assert merge_options([text], {}) == parse_config_args([text])
    for conf in sorted((ROOT / "conf").rglob("*.toml")):
        assert merge_options([str(conf)], {}) == parse_config_args([str(conf)])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("seed", ["'seed'", "key=value"]),
        ("seed = 3", ["no blanks around '='"]),
        ("", ["key=value"]),
        ("seed=3,4", ["seed=3,4", "TOML value"]),
        ("missing.toml", ["missing.toml", "cannot be read"]),
    ],
)
def test_an_option_that_cannot_be_read_is_named(option, words):
    with pytest.raises(ConfigError) as caught:
        merge_options([option], {})
    assert all(word in str(caught.value) for word in words)


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("seed = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml: is not TOML \(.*line 1"):
        merge_options([str(file)], {})


def test_paths_are_taken_from_where_the_command_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = with_absolute_paths(
        {
            "data-dir": "",
            "output-dir": "out",
            "state-dir": "~/x",
            "resume-from": "/a/b",
            "data-set": "./r.csv",
            "seed": 1,
        }
    )
    assert values == {
        "data-dir": "",
        "output-dir": str(tmp_path / "out"),
        "state-dir": str(Path("~/x").expanduser()),
        "resume-from": "/a/b",
        "data-set": str(tmp_path / "r.csv"),
        "seed": 1,
    }
    assert with_absolute_paths({"data-set": "ml-100k"}) == {"data-set": "ml-100k"}


def test_the_defaults_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_values() == default_values(ROOT / "pyproject.toml")
    parse_run_config(default_values())


# ---- commands --------------------------------------------------------------------------------------------------------


def test_simulate_is_the_direct_call(tmp_path, finished, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.toml").write_text("num-rounds = 1\nseed = 9\n")
    result = call(
        "simulate", "-c", TINY, "-c", "some.toml", "-c", "num-rounds=2", "--output-dir", "out", "--num-supernodes", 3
    )
    assert result.exit_code == 0, result.output
    assert f"run folder: {tmp_path / 'out'}" in result.stdout
    direct = finished(
        3,
        seed=9,
        embedding_dim=8,
        num_rounds=2,
        clients_per_round=40,
        num_negatives=8,
        num_trusted_nodes=2,
        evaluate_every=1,
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["test"] == direct.summary["test"]
    assert summary["seed"] == 9
    assert (tmp_path / "out" / "item_table.npz").read_bytes() == (direct.folder / "item_table.npz").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "-c", "sede=2"], ["unknown key 'sede'", "did you mean 'seed'"]),
        (["simulate", "-c", "seed=-1"], ["seed must be >= 0", "got -1"]),
        (["simulate", "-c", "refit=1"], ["refit must be true or false", "got 1"]),
        (["simulate", "-c", "nowhere.toml"], ["nowhere.toml", "cannot be read"]),
        (["simulate", "-c", TINY, "--num-supernodes", "0"], ["--num-supernodes must be >= 1", "got 0"]),
        (["simulate", "-c", TINY + " num-trusted-nodes=41"], ["num-trusted-nodes must be <= clients-per-round"]),
        (["simulate", "-c", TINY + " resume-from=/nowhere.npz"], ["resume-from", "/nowhere.npz"]),
        (["simulate", "-c", TINY + " data-set=/nowhere.csv"], ["/nowhere.csv"]),
        (["data", "show", "/nowhere.csv"], ["/nowhere.csv"]),
        (["data", "show", "synthetic", "--split", "weekly"], ["split must be one of", "'weekly'"]),
        (["data", "fetch", "nosuch"], ["nosuch", "ml-100k"]),
        (["data", "fetch", "yelp", "--from", "/nowhere"], ["/nowhere", "--from"]),
        (["references", "nosuch"], ["nosuch"]),
        (["privacy", "-c", "seed=-1"], ["seed must be >= 0"]),
        (["privacy", "-c", "data-set=nosuch"], ["nosuch"]),
        (
            ["privacy", "-c", "upload=sparse", "--users", "9", "--items", "9", "--target-epsilon", "8"],
            ["no noise-scale gives a finite epsilon", "touched"],
        ),
    ],
)
def test_foreseen_errors_are_plain_words(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.output


def test_data_list_names_all_sets():
    from fastpfrec_flwr.data import DATA_SET_NAMES

    result = call("data", "list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in DATA_SET_NAMES)


def test_data_show_counts_what_was_read(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u in range(6) for i in range(6)) + "u0,i0\n")
    result = call("data", "show", file)
    assert result.exit_code == 0, result.output
    rows = {
        cells[1].strip(): cells[2].strip() for line in result.stdout.splitlines() if len(cells := line.split("│")) == 4
    }
    assert rows["users"] == "6"
    assert rows["items"] == "6"
    assert rows["duplicates"] == "1"


def test_paths_are_whole_in_a_pipe(tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 15)
    folder.mkdir()
    own = folder / "own.csv"
    own.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u in range(6) for i in range(6)))
    assert str(own) in call("data", "show", own).stdout
    monkeypatch.setattr("fastpfrec_flwr.data.commands.named_files", lambda *arguments, **more: {"all": own})
    assert str(folder / "ml-100k") in call("data", "list", "--data-dir", folder).stdout


def test_references_beat_chance():
    result = call("references", "synthetic")
    assert result.exit_code == 0, result.output
    rows = {cells[1].strip(): cells[2:4] for line in result.stdout.splitlines() if len(cells := line.split("│")) == 5}
    popularity, item_knn = (float(cell) for cell in rows["ndcg@20"])
    assert 0.1 < popularity < item_knn


def test_data_and_references_go_by_the_runs_catalogue(tmp_path):
    """Half of the items: what is measured beside a run under a catalogue has the same items as the run."""
    Catalogue(tuple(str(n) for n in range(0, 400, 2)), 3).save(tmp_path / "c.json")
    chosen = f"catalogue={tmp_path / 'c.json'}"
    shown = call("data", "show", "synthetic", "-c", chosen)
    assert shown.exit_code == 0, shown.output
    assert re.search(r"│ items +│ 203 ", shown.stdout)
    with_all, with_half = call("references", "synthetic"), call("references", "synthetic", "-c", chosen)
    assert with_half.exit_code == 0, with_half.output
    assert with_half.stdout != with_all.stdout
    missing = call("references", "synthetic", "-c", f"catalogue={tmp_path / 'none.json'}")
    assert missing.exit_code == 2
    assert "the catalogue cannot be read" in missing.output


def test_names_of_files_are_no_markup(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    folder = tmp_path / "[old]"
    folder.mkdir()
    file = folder / "a[b].csv"
    file.write_text("1,2\n1,3\n1,4\n1,5\n1,6\n2,2\n2,3\n2,4\n2,5\n2,6\n")
    shown = call("data", "show", file)
    assert shown.exit_code == 0, shown.output
    assert "[old]/a[b].csv" in shown.stdout


# ---- privacy ---------------------------------------------------------------------------------------------------------

SIZES = ("--users", 943, "--items", 1682)


def test_the_ledger_counts_all_rows_that_a_model_sends():
    """PerFedRec sends the items' rows and each cluster's."""
    of_run = build_ledger(Setting(parse_run_config({**default_values(), "model": "perfedrec"}), 943, 1682 * 5 + 4)).of(
        "trusted node", scope="one upload"
    )
    found = json.loads(call("privacy", *SIZES, "-c", "model=perfedrec", "--json").stdout)
    shown = next(line for line in found["lines"] if (line["observer"], line["scope"]) == ("trusted node", "one upload"))
    assert shown["epsilon"] == pytest.approx(of_run.epsilon)


def test_privacy_prints_every_line_of_the_ledger(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = call("privacy", *SIZES)
    assert result.exit_code == 0, result.output
    rows = [
        [cell.strip() for cell in line.split("\u2502")[1:-1]] for line in result.stdout.splitlines() if "\u2502" in line
    ]
    assert ["2", "trusted node", "uploads", "whole run, at most 20 uploads", "26,247,804", "0"] in rows
    assert ["8", "server", "metric sums", "whole run", "infinity", "-"] in rows
    assert "2 S sqrt(d) / lambda" in result.stdout
    assert "sampling: nothing is claimed" in result.stdout


def test_privacy_as_json_with_a_proposal_that_holds():
    options = "clip-norm=1.0 check=none evaluate-every=0"
    result = call("privacy", *SIZES, "-c", options, "--target-epsilon", 8, "--delta", 1e-6, "--json")
    assert result.exit_code == 0, result.output
    proposal = json.loads(result.stdout)["proposal"]
    noise = proposal["noise-scale"]
    again = call("privacy", *SIZES, "-c", f"{options} noise-scale={noise}", "--delta", 1e-6, "--json")
    line = json.loads(again.stdout)["lines"][1]
    assert (line["observer"], line["delta"]) == ("trusted node", 1e-6)
    assert line["epsilon"] == proposal["line"]["epsilon"] <= 8


def test_privacy_counts_the_data_set_itself():
    told = json.loads(call("privacy", "-c", "data-set=synthetic", "--json").stdout)
    assert told["lines"] == json.loads(call("privacy", "--users", 600, "--items", 400, "--json").stdout)["lines"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--observer", "nobody"), "trusted node, server, final model"),
        (("--delta", "1"), "--delta"),
        (("--users", "-1"), "--users"),
        (("--colluding", "-1"), "--colluding"),
    ],
)
def test_privacy_refuses_what_makes_no_sense(arguments, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = call("privacy", *SIZES, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
