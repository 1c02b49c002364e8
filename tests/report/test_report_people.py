"""Users are paired by number only where a number means the same person."""

import json

import numpy as np

from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import read_study
from tests.report.studies import write_json, write_study

NOTICE = (
    "no noise on a: no paired test, its runs are of other data than FastPFRec's (data_fingerprint in summary.json), so that a "
    "user's number may mean somebody else"
)


def results_of(tmp_path, fingerprint, change):
    """A study in which the runs of `no noise` say another fingerprint, and their files per user are changed."""
    study = write_study(tmp_path / "study", ("a",))
    for (_, variant, _), folder in study.runs.items():
        if variant == "no noise":
            summary = json.loads((folder / "summary.json").read_text())
            with np.load(folder / "user_metrics.npz") as arrays:
                users = change({name: arrays[name] for name in arrays.files})
            write_json(folder / "summary.json", {**summary, "data_fingerprint": fingerprint})
            np.savez(folder / "user_metrics.npz", **users)
    results = Results(read_study(study.path))
    found = {each.variant: each for each in results.comparisons if each.metric == "ndcg@20"}
    return results, found


def renumbered(users):
    """The same figures under the numbers of others."""
    return {**users, "users": users["users"] + 2}  # they are even


def test_runs_of_other_people_are_not_paired(tmp_path):
    results, found = results_of(tmp_path, "of another file", renumbered)
    assert NOTICE in results.notices
    assert found["no noise"].interval is None
    assert found["no noise"].test is None
    assert found["no noise"].reason == "no figures per user to pair"
    assert found["more noise"].test is not None  # the others are
    assert found["no noise"].difference > 0  # means over seeds are means of each run's own users


def test_another_cut_of_the_same_people_is_paired(tmp_path):
    results, found = results_of(tmp_path, "another validation part", lambda users: users)
    assert found["no noise"].test is not None
    assert NOTICE not in results.notices


def test_runs_of_one_data_set_are_paired_over_the_users_that_all_have(tmp_path):
    results, found = results_of(tmp_path, None, renumbered)  # as the others', which say none
    assert NOTICE not in results.notices
    assert found["no noise"].test is not None


def seeds_of(tmp_path, reports, **facts):
    """A study with a run of each variant for each of `reports`, which is what the preparation of its data said."""
    study = write_study(tmp_path / "study", ("a",), tuple(range(1, len(reports) + 1)))
    for (_, _, seed), folder in study.runs.items():
        whole = json.loads((folder / "config.json").read_text())
        data = {**whole["data"], "fingerprint": f"of the cut {seed}", "report": reports[seed - 1]}
        write_json(folder / "config.json", {**whole, "data": data, **facts})
    return study, Results(read_study(study.path))


def report_of(digest, users=120):
    return {"users_in_source": users, "items_in_source": 300, "files": [{"role": "all", "sha256": digest}]}


def test_seeds_of_unlike_data_have_no_intervals_over_users(tmp_path):
    study, results = seeds_of(tmp_path, [report_of("1"), report_of("1"), report_of("2")])
    assert results.intervals == {}
    assert all(each.test is None and each.interval is None for each in results.comparisons)
    first, other = study.runs["a", "no noise", 1], study.runs["a", "no noise", 3]
    (notice,) = (
        each for each in results.notices if each.startswith("no noise on a: its seeds are not of one data set")
    )
    assert f": {other} beside {first}. The mean mixes them" in notice
    assert str(study.runs["a", "no noise", 2]) not in notice
    assert results.seeds["a", "no noise", "ndcg@20"].n == 3


def test_seeds_that_say_how_many_users_but_not_of_which_file(tmp_path):
    _, results = seeds_of(tmp_path, [{"users_in_source": 120, "files": []}, {"users_in_source": 121, "files": []}])
    assert results.intervals == {}


def test_each_seeds_own_cut_of_one_file_is_the_same_people(tmp_path):
    _, results = seeds_of(tmp_path, [report_of("1"), report_of("1")])
    assert results.notices == []
    assert ("a", "no noise", "ndcg@20") in results.intervals


def test_where_the_data_is_not_told_nothing_is_held_against_it(tmp_path):
    _, results = seeds_of(tmp_path, [{}, report_of("1")])
    assert results.notices == []
    _, results = seeds_of(tmp_path, [report_of("1"), report_of("2")], deployed=True)
    assert results.notices == []
