"""Folders as they are found: broken, unfinished, failed, missing; each is named, and the others are still reported."""

import json

import numpy as np
import pytest

from fastpfrec_flwr.report.chapters import chapter_of
from fastpfrec_flwr.report.errors import ReportError
from fastpfrec_flwr.report.reading import read_run
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import read_all, read_study
from tests.report.studies import write_json, write_run, write_study


def read(folder):
    notices = []
    return read_run(folder, notices), notices


def test_a_whole_run(tmp_path):
    run, notices = read(write_run(tmp_path / "run", "a", 3, 0.3))
    assert notices == []
    assert (run.data_set, run.seed, run.state, run.last_round) == ("a", 3, "done", 20)
    assert run.users is not None
    assert run.test["ndcg@20"] > 0


def test_a_run_without_figures_per_user(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3, with_users=False)
    assert read(folder)[0].users is None
    results = Results(read_all([folder])[0])
    assert results.intervals == {}
    assert results.notices == [], "a run need not have them"


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_broken_json_is_named(tmp_path, name):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    (folder / name).write_text('{"half": ')
    run, notices = read(folder)
    assert run is not None
    assert run.state == ("done" if name == "config.json" else "unfinished")
    assert len(notices) == 1
    assert notices[0].startswith(f"{folder / name}: cannot be read as JSON (")


def test_json_that_is_no_object(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    (folder / "summary.json").write_text("[1]")
    assert read(folder)[1] == [f"{folder / 'summary.json'}: must hold a JSON object, got list"]


ATTACK = {
    "attackers": {"trained": 10, "isolated": 9}, "honest": {"trained": 90, "isolated": 1}, "damage": 0.5, "honest_ndcg": 0.2,
}  # fmt: skip


def spoiled(folder, file, keys, value):
    """The run with something else in a place of a file."""
    whole = json.loads((folder / file).read_text())
    place = whole
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    write_json(folder / file, whole)


@pytest.mark.parametrize(
    ("file", "keys", "value", "said"),
    [
        ("config.json", ["config"], [1], "config: must be an object, got [1]"),
        ("config.json", ["versions"], None, "versions: must be an object, got None"),
        ("config.json", ["data"], "a", "data: must be an object, got 'a'"),
        ("summary.json", ["validation"], None, "validation: must be an object, got None"),
        ("summary.json", ["validation", "ndcg@20"], "high", "validation, ndcg@20: must be a number, got 'high'"),
        ("summary.json", ["seconds"], None, "seconds: must be an object, got None"),
        ("summary.json", ["clients", "trained"], [], "clients, trained: must be a number, got []"),
        ("summary.json", ["nodes"], {"rounds_away": "two"}, "nodes, rounds_away: must be a number, got 'two'"),
        ("summary.json", ["attack"], {**ATTACK, "honest": None}, "attack, honest: must be an object, got None"),
        ("summary.json", ["attack"], {**ATTACK, "damage": "some"}, "attack, damage: must be a number, got 'some'"),
        ("summary.json", ["privacy"], {"lines": ["x"]}, "privacy, lines 1: must be an object, got 'x'"),
    ],
)
def test_what_is_of_another_kind_is_named_and_the_rest_reported(tmp_path, file, keys, value, said):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    spoiled(folder, "summary.json", ["attack"], ATTACK)
    spoiled(folder, file, keys, value)
    chapter = chapter_of(read_all([folder])[0])
    assert f"{folder / file}, {said}: left out" in chapter.notices
    assert "ndcg" in [table.key for table in chapter.tables()]


def test_an_evaluated_round_of_another_kind(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    (folder / "metrics.jsonl").write_text(
        '{"round": 10, "validation": [1], "loss": "low"}\n{"round": 20, "validation": null}\n'
    )
    run, notices = read(folder)
    assert run.last_round == 20
    file = folder / "metrics.jsonl"
    assert notices == [
        f"{file}, line 1, validation: must be an object, got [1]: left out",
        f"{file}, line 1, loss: must be a number, got 'low': left out",
        f"{file}, line 2, validation: must be an object, got None: left out",
    ]


def test_what_a_run_may_leave_open_is_no_fault(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    for keys in (["privacy"], ["attack"], ["test", "recall@10"], ["seconds", "round_median"]):
        spoiled(folder, "summary.json", keys, None)
    assert read(folder)[1] == []


def test_a_broken_line_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 30\n{"loss": 1}\n')
    run, notices = read(folder)
    assert [line["round"] for line in run.lines] == [10, 20]
    assert notices[0].startswith(f"{folder / 'metrics.jsonl'}, line 3: is not JSON (")
    assert notices[1] == f"{folder / 'metrics.jsonl'}, line 4: has no round; the line is left out"


def test_figures_of_another_evaluation_are_not_used(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    with np.load(folder / "user_metrics.npz") as arrays:
        users = {name: arrays[name] for name in arrays.files}
    np.savez(folder / "user_metrics.npz", **{**users, "ndcg@20": users["ndcg@20"] * 0.9})
    run, notices = read(folder)
    assert run.users is None
    assert "figures of another evaluation, not used" in notices[0]


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_an_array_file_that_is_none(tmp_path, data):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    (folder / "user_metrics.npz").write_bytes(data)
    run, notices = read(folder)
    assert run.state == "done"
    assert run.users is None
    assert notices[0].startswith(f"{folder / 'user_metrics.npz'}: cannot be used (")


def test_a_summary_without_figures(tmp_path):
    folder = write_run(tmp_path / "run", "a", 3, 0.3)
    summary = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", {**summary, "test": {}})
    run, notices = read(folder)
    assert (run.state, run.error) == ("unfinished", "no test figures")
    assert "holds no test figures" in notices[0]


# ---- what paths may be -----------------------------------------------------------------------------------------------


def test_neither_run_nor_study(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError) as raised:
        read_all([tmp_path / "empty", tmp_path / "file", tmp_path / "nowhere"])
    first, second, third = str(raised.value).splitlines()
    assert first.startswith(f"{tmp_path / 'empty'}: is neither a run folder (")
    assert second == f"{tmp_path / 'file'}: is no folder; give a run folder or a study folder"
    assert third.startswith(f"{tmp_path / 'nowhere'}: is no folder")


def test_the_others_are_still_reported(tmp_path):
    (tmp_path / "empty").mkdir()
    (study,) = read_all([tmp_path / "empty", write_run(tmp_path / "run", "a", 1, 0.3)])
    assert len(study.runs) == 1
    assert study.notices[0].startswith(f"{tmp_path / 'empty'}: is neither")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"name": "x", "variants": ["v"], "data_sets": [], "seeds": []}'])
def test_a_study_that_is_none(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(ReportError, match=r"study\.json: (cannot be read as JSON|must hold|is no study)"):
        read_all([tmp_path])


# ---- studies ---------------------------------------------------------------------------------------------------------


def test_failed_running_and_missing_runs(tmp_path):
    study = write_study(tmp_path, ("a",))
    failed, running, missing = (
        study.runs["a", "no noise", 1],
        study.runs["a", "no noise", 2],
        study.runs["a", "more noise", 2],
    )
    for folder, status in ((failed, "failed"), (running, "running")):
        (folder / "summary.json").unlink()
        record = json.loads((folder / "run.json").read_text())
        write_json(
            folder / "run.json", {**record, "status": status, "error": "out of memory" if status == "failed" else None}
        )
    for file in missing.iterdir():
        file.unlink()
    found = read_study(tmp_path)
    states = {(run.variant, run.seed): (run.state, run.error) for run in found.runs if run.state != "done"}
    assert states == {
        ("no noise", 1): ("failed", "out of memory"),
        ("no noise", 2): ("unfinished", "still running, or its process ended without a word"),
    }
    assert ("a", "more noise", 2) in found.missing
    assert len(found.missing) == 1
    results = Results(found)
    assert results.variants_of("a") == ["FastPFRec", "more noise"]
    assert results.notices[0].startswith("more noise on a: its seeds [1] stand beside the reference's [1, 2]")


def test_the_studys_own_list_says_what_is_missing(tmp_path):
    """A reference that draws nothing runs with one seed: no others are missed."""
    study = write_study(tmp_path, ("a",))
    planned = [{"variant": "FastPFRec", "data_set": "a", "seed": seed, "folder": "", "key": ""} for seed in (1, 2, 3)]
    study.change(runs=planned)
    assert read_study(tmp_path).missing == (("a", "FastPFRec", 3),)


def test_the_later_of_two_runs_counts(tmp_path):
    study = write_study(tmp_path, ("a",), (1,))
    older = study.runs["a", "FastPFRec", 1]
    newer = older.parent.with_name("FastPFRec-87654321") / "seed-1"
    write_run(newer, "a", 1, 0.5)
    record = json.loads((older / "run.json").read_text())
    write_json(newer / "run.json", {**record, "finished_at": "2026-02-01T00:00:00"})
    found = read_study(tmp_path)
    assert [run.path for run in found.of("a", "FastPFRec")] == [newer.resolve()]
    assert "an earlier run of 'FastPFRec', seed 1" in found.notices[0]


def listed(study, **changes):
    """Let a study list its runs as the experiments do, and the key of one variant be another."""
    study.change(
        runs=[
            {"variant": variant, "data_set": data_set, "seed": seed, "key": changes.get(variant, "k"),
             "folder": folder.relative_to(study.path).as_posix()}
            for (data_set, variant, seed), folder in study.runs.items()
        ]
    )  # fmt: skip


def test_runs_of_an_earlier_version_of_a_variant_are_left_out(tmp_path):
    """A changed variant of which one seed has been run: the other seed's run on disk is of the old one."""
    study = write_study(tmp_path / "study", ("a",))
    old = {seed: study.runs.pop(("a", "FastPFRec", seed)) for seed in (1, 2)}
    new = study.path / "runs" / "a" / "FastPFRec-87654321" / "seed-1"
    study.runs["a", "FastPFRec", 1] = write_run(new, "a", 1, 0.5)
    record = json.loads((old[1] / "run.json").read_text())
    write_json(new / "run.json", {**record, "finished_at": "2025-01-01T00:00:00"})  # by a clock that is slow
    listed(study)
    study.path.rename(tmp_path / "moved")
    found = read_study(tmp_path / "moved")
    assert [run.path for run in found.of("a", "FastPFRec")] == [tmp_path / "moved" / new.relative_to(study.path)]
    assert found.missing == ()
    assert len(found.notices) == 1
    assert (
        "does not list 2 of the run folders beside it, as runs/a/FastPFRec-12345678/seed-1: left out"
        in found.notices[0]
    )


def test_a_listed_run_of_another_configuration_is_left_out(tmp_path):
    study = write_study(tmp_path, ("a",))
    listed(study, **{"no noise": "another"})
    found = read_study(tmp_path)
    assert found.of("a", "no noise") == []
    assert found.missing == (("a", "no noise", 1), ("a", "no noise", 2))
    folder = study.runs["a", "no noise", 1]
    assert found.notices[0].startswith(
        f"{folder}: is a run of another configuration than study.json lists there (key 'k' "
    )


def test_a_listed_folder_is_of_the_study_wherever_that_lies(tmp_path):
    study = write_study(tmp_path, ("a",))
    runs = [
        {
            "variant": variant,
            "data_set": data_set,
            "seed": seed,
            "folder": f"/where/it/was/{folder.relative_to(tmp_path)}",
        }
        for (data_set, variant, seed), folder in study.runs.items()
    ]
    study.change(runs=runs)
    assert len(read_study(tmp_path).done()) == len(runs)
    study.change(runs=[{**runs[0], "folder": 5}])
    with pytest.raises(ReportError, match=r"study\.json: is no study"):
        read_study(tmp_path)


def test_a_run_that_the_study_does_not_name(tmp_path):
    study = write_study(tmp_path, ("a",))
    study.change(variants=[{"name": "FastPFRec"}])
    found = read_study(tmp_path)
    assert {run.variant for run in found.runs} == {"FastPFRec"}
    assert len(found.notices) == 4


# ---- runs that stand alone -------------------------------------------------------------------------------------------


def test_seeds_of_one_configuration_are_one_variant(tmp_path):
    folders = [write_run(tmp_path / f"run-{seed}", "a", seed, 0.3, threads=seed) for seed in (2, 1)]
    (study,) = read_all(folders)
    assert [each.name for each in study.variants] == ["this configuration"]
    assert study.reference is None
    assert [run.seed for run in study.of("a", "this configuration")] == [1, 2]


def test_where_a_run_tells_what_it_does_makes_no_other_variant(tmp_path):
    places = {"metrics-file": str(tmp_path / "1.prom"), "log-format": "json", "trackers": "tensorboard"}
    (study,) = read_all([write_run(tmp_path / "1", "a", 1, 0.3), write_run(tmp_path / "2", "a", 2, 0.3, **places)])
    assert [each.name for each in study.variants] == ["this configuration"]


def test_names_say_what_differs(tmp_path):
    folders = [
        write_run(tmp_path / name, "a", 1, 0.3, **{"noise-scale": scale}) for name, scale in (("x", 0.1), ("y", 0.5))
    ]
    (study,) = read_all(folders)
    assert [each.name for each in study.variants] == ["noise-scale = 0.1", "noise-scale = 0.5"]
    assert study.reference == "noise-scale = 0.1"


def test_many_differences_leave_the_folders_names(tmp_path):
    other = {"noise-scale": 0.5, "embedding-dim": 32, "num-rounds": 5, "l2": 0.0}
    (study,) = read_all([write_run(tmp_path / "x", "a", 1, 0.3), write_run(tmp_path / "y", "a", 1, 0.2, **other)])
    assert [each.name for each in study.variants] == ["x", "y"]


def test_an_unfinished_run_alone(tmp_path):
    folder = write_run(tmp_path / "run", "a", 1, 0.3)
    (folder / "summary.json").unlink()
    (study,) = read_all([folder])
    assert [(run.state, run.error, run.last_round) for run in study.runs] == [
        ("unfinished", "summary.json is missing", 20)
    ]
