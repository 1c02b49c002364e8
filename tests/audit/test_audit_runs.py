"""Audits of whole runs: looking changes nothing, what is looked at is what left, and protections show."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.audit.measuring import FIGURES
from fastpfrec_flwr.audit.protections import Protection, protections
from fastpfrec_flwr.audit.recording import Recorder
from fastpfrec_flwr.audit.running import audited_config, run_audit
from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import parse_run_config
from tests.whole_runs import settings_of


def config_of(**changes):
    return parse_run_config(settings_of({"clients_per_round": 200, "threads": 1, **changes}))


def figures(protection, users=40, uploads=3, **changes):
    (found,) = run_audit(config_of(**changes), [protection], users, uploads, lambda name: None)
    return found


def named(name):
    return next(each for each in protections() if each.name.startswith(name))


def test_looking_changes_nothing_and_sees_each_upload(finished):
    changes = {"num_rounds": 6, "evaluate_every": 6, "clients_per_round": 200}
    honest = finished(**changes)
    recorder = Recorder(config_of(**changes), np.arange(0, 600, 20), 400)
    watched = finished(client_app=recorder, **changes)
    recorder.close_round()
    watched.assert_same(honest)
    # 600 users, 200 a round: each trains twice in six rounds (some have nothing to learn from and never do).
    counts = {len(each.upload_scores) for each in recorder.seen.values()}
    assert counts <= {0, 2}
    assert sum(len(each.upload_scores) == 2 for each in recorder.seen.values()) > 25
    for each in recorder.seen.values():
        assert len(each.touched) == len(each.upload_scores) == len(each.node_scores)
        assert all(scores.shape == (400,) for scores in each.upload_scores + each.node_scores)


def test_without_protection_items_are_read_off_and_with_enough_noise_they_are_not():
    open_to_all = figures(named("none")).figures
    assert open_to_all["node_auc_one"].value > 0.9
    assert open_to_all["touched_recall_one"].value == 1
    hidden = figures(named("dense, false items, clip 1, lambda 20")).figures
    for name in ("node_auc_one", "node_auc_all", "server_auc_one", "server_auc_all"):
        assert abs(hidden[name].value - 0.5) < 2.5 * hidden[name].margin
    assert hidden["reconstructed_all"].value < open_to_all["reconstructed_all"].value / 3


def test_under_a_catalogue_the_truth_has_its_rows(tmp_path):
    Catalogue(tuple(str(n) for n in reversed(range(400))), 5).save(tmp_path / "c.json")
    found = figures(named("none"), users=20, uploads=1, catalogue=str(tmp_path / "c.json")).figures
    assert found["node_auc_one"].value > 0.9
    assert found["touched_recall_one"].value == 1


def test_rows_that_always_move_are_the_star_and_fresh_false_items_drop_out_of_it():
    """Negatives are new each round: rows that move every time are true and kept false items; fresh false ones do not stay."""
    kept = figures(named("false items"), perturbation_prob=0.5).figures
    fresh = figures(named("false items drawn anew"), perturbation_prob=0.5).figures
    assert kept["touched_precision_all"].value > kept["touched_precision_one"].value
    assert fresh["touched_precision_all"].value > kept["touched_precision_all"].value + 0.02
    assert kept["touched_recall_all"].value == fresh["touched_recall_all"].value == 1


def test_randomised_response_bounds_what_even_a_sparse_upload_tells():
    """With q = 0.5 and p = 0.1 half of the items never show, whatever the trusted node does."""
    told = Protection(
        "response",
        {"perturbation": "randomised-response", "keep_prob": 0.5, "perturbation_prob": 0.1, "noise": "none",
         "noise_scale": 0.0},
    )  # fmt: skip
    found = figures(told).figures
    assert found["touched_recall_all"].value < 0.75
    assert found["node_auc_all"].value < figures(named("none")).figures["node_auc_all"].value


def test_the_audited_run_lets_each_user_upload_so_often():
    config = audited_config(config_of(refit=True), 4, 600)
    assert (config.num_rounds, config.evaluate_every, config.refit) == (12, 0, False)
    assert audited_config(config_of(clients_per_round=1000), 4, 600).num_rounds == 4


def test_without_trusted_nodes_there_is_no_line_for_the_servers_sums():
    found = figures(named("none"), tier="direct")
    assert np.isnan(found.figures["server_auc_one"].value)
    assert found.figures["node_auc_one"].value > 0.9


@pytest.mark.parametrize("each", protections(), ids=lambda each: each.name)
def test_every_protection_is_a_configuration(each):
    config = each.applied_to(config_of())
    assert config.noise == "none" or config.noise_scale > 0


def test_the_command_writes_its_tables(tmp_path):
    from fastpfrec_flwr.cli import app

    options = "data-set=synthetic embedding-dim=16 clients-per-round=200 num-negatives=32 num-trusted-nodes=4 threads=1"
    arguments = [
        "audit",
        "-c",
        options,
        "--users",
        "20",
        "--uploads",
        "2",
        "--trials",
        "20000",
        "--only",
        "lambda 0.1 (paper)",
    ]
    result = CliRunner().invoke(app, [*arguments, "--output-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    whole = json.loads((tmp_path / "audit.json").read_text())
    assert [each["protection"] for each in whole["protections"]] == ["dense, false items, lambda 0.1 (paper)"]
    assert set(whole["protections"][0]["figures"]) == set(FIGURES)
    assert all(row["as_expected"] for row in whole["canaries"])
    assert len((tmp_path / "observers.csv").read_text().splitlines()) == 3
    assert "lambda 0.1 (paper)" in (tmp_path / "observers.md").read_text()
    assert "half the noise" in (tmp_path / "canaries.md").read_text()


def test_the_command_says_what_is_wrong():
    from fastpfrec_flwr.cli import app

    result = CliRunner().invoke(app, ["audit", "--only", "prayer"])
    assert result.exit_code == 2
    assert "is in no protection's name" in result.output


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    from fastpfrec_flwr.cli import app

    monkeypatch.setattr("fastpfrec_flwr.audit.running.run_audit", lambda *arguments: pytest.fail("has begun"))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        result = CliRunner().invoke(app, ["audit", "--output-dir", str(place)])
        assert result.exit_code == 2, result.output
        assert f"error: --output-dir must be a folder that can be written, got '{place}'" in result.stderr
