"""From a whole run to a list: the run folder, its exports, the state on the devices, the commands, HTTP."""

import json
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.cli import app
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.data.preparation import prepare, split_settings
from fastpfrec_flwr.recommend import ModelError, Recommender, losses
from fastpfrec_flwr.recommend.device import private_vector
from fastpfrec_flwr.recommend.loading import load_run
from fastpfrec_flwr.recommend.losses import export_losses, split_of_run
from fastpfrec_flwr.recommend.measure import measure, users_with_truth
from fastpfrec_flwr.recommend.serving import build_server
from tests.whole_runs import Finished, settings_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run whose devices keep their state (it has a checkpoint)."""
    from fastpfrec_flwr.simulation.run import simulate

    folder = tmp_path_factory.mktemp("run")
    values = settings_of(
        {"output_dir": str(folder / "run"), "state_dir": str(folder / "state"), "checkpoint_every": 12}
    )
    simulate(values, 2)
    return Finished(folder / "run")


def call(*arguments, **more):
    return CliRunner().invoke(app, [str(each) for each in arguments], **more)


def test_with_the_devices_vectors_the_figures_are_the_runs(run):
    """The API, user by user, against what the devices measured themselves: same users, same metrics."""
    model = load_run(run.folder)
    split, refit = split_of_run(dict(model.manifest), "")
    users = users_with_truth(split)
    state_dir, state_id = run.folder.parent / "state", run.json("config.json")["state_id"]
    assert run.summary["best_round"] == 12  # the state on the devices is that of the table
    privates = np.stack([private_vector(state_dir, state_id, user) for user in users.tolist()])
    found = measure(model, split, users, refit, privates=privates)
    for name in ("hit_ratio_micro@10", "ndcg@10", "hit_ratio_micro@20", "ndcg@20"):
        assert found.metrics[name] == pytest.approx(run.summary["test"][name], abs=1e-9)
    assert measure(model, split, users, refit).metrics["ndcg@20"] == pytest.approx(
        run.summary["test"]["ndcg@20"], abs=0.02
    )


def test_exports_lose_next_to_nothing(run):
    rows = {row["name"]: row for row in export_losses(run.folder)}
    reference = rows["npz fp32"]
    assert reference["overlap"] == 1
    for name, overlap in (("npz fp16", 0.99), ("npz int8", 0.95)):
        assert rows[name]["overlap"] > overlap
        assert rows[name]["ndcg@20"] == pytest.approx(reference["ndcg@20"], abs=0.005)
        assert rows[name]["bytes"] < reference["bytes"]


def test_onnx_is_held_against_lists_without_a_fit_in_any_order(run, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    one, other = (
        {row["name"]: row for row in export_losses(run.folder, most_users=60, formats=formats)}
        for formats in (["npz", "onnx"], ["onnx", "npz"])
    )
    assert {name: row["overlap"] for name, row in one.items()} == {name: row["overlap"] for name, row in other.items()}
    assert one["npz fp32"]["overlap"] == 1
    assert one["onnx fp32"]["overlap"] > 0.999
    assert one["npz fp32"]["ndcg@20"] != one["onnx fp32"]["ndcg@20"]
    assert [one[name]["fitted"] for name in ("npz fp32", "onnx fp32")] == [True, False]
    monkeypatch.setenv("COLUMNS", "120")
    assert "onnx int8, no fit" in call("measure", run.folder, "--users", 20, "--formats", "onnx").stdout


def test_the_data_of_a_run_is_looked_for_where_it_was(run, tmp_path, monkeypatch):
    """In the run's own data-dir, unless another is given; not in one that this machine has not."""
    looked = []

    def split(facts, data_dir, catalogue=None):
        looked.append(data_dir)
        raise ModelError("enough")

    monkeypatch.setattr(losses, "split_of_run", split)
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    facts = run.json("config.json")
    for own, given in ((tmp_path, ""), (tmp_path, "/other"), (tmp_path / "gone", "")):
        facts["config"]["data-dir"] = str(own)
        (copy / "config.json").write_text(json.dumps(facts))
        with pytest.raises(ModelError, match="enough"):
            export_losses(copy, given)
    assert looked == [str(tmp_path), "/other", ""]


def test_a_manifest_says_where_the_model_comes_from_and_not_where_it_lay(run):
    manifest = load_run(run.folder).manifest
    assert manifest["run"]["rounds"] == 12
    assert manifest["run"]["data_fingerprint"] == run.summary["data_fingerprint"]
    assert manifest["metrics"]["test"] == run.summary["test"]
    assert manifest["privacy"]["epsilon_per_upload"] == run.summary["privacy"]["epsilon_per_upload"]
    assert any(line["observer"] == "final model" for line in manifest["privacy"]["lines"])
    assert str(run.folder.parent) not in json.dumps(manifest)


def test_popularity_is_kept_in_the_run_folder(finished):
    run = finished(
        loss="ccl", unit_rows=True, popularity_weight=0.05, item_learning_rate=32.0, num_rounds=4, evaluate_every=2
    )
    model = load_run(run.folder)
    assert model.counts is not None
    assert (model.counts > 1).mean() > 0.5
    assert np.ptp(model.bias) > 0.05
    split, _ = split_of_run(dict(model.manifest), "")
    users = users_with_truth(split)
    # Without the private vector: user-weight is small, but popularity must be in it or the lists are others.
    found = measure(model, split, users).metrics["ndcg@20"]
    assert found == pytest.approx(run.summary["test"]["ndcg@20"], abs=0.02)


def test_the_state_says_what_it_has_not(run, tmp_path):
    state_dir, state_id = run.folder.parent / "state", run.json("config.json")["state_id"]
    with pytest.raises(ModelError, match=r"holds \d+ users; say which"):
        private_vector(state_dir, state_id)
    with pytest.raises(ModelError, match="user 9999 has trained here yet"):
        private_vector(state_dir, state_id, 9999)
    with pytest.raises(ModelError, match="no state of this training"):
        private_vector(tmp_path, state_id)


# ---- commands --------------------------------------------------------------------------------------------------------


def test_recommend_as_table_json_and_csv(run, tmp_path):
    (tmp_path / "h.txt").write_text("3\n5\n8\nnobody\n")
    arguments = ("recommend", "--model", run.folder, "--history", tmp_path / "h.txt", "--top", 4)
    as_json = call(*arguments, "--format", "json")
    found = json.loads(as_json.stdout)
    assert (found["known"], found["unknown"], len(found["items"])) == (3, 1, 4)
    assert "1 of 4 items are not in the catalogue" in as_json.stderr
    expected = Recommender.load(run.folder).recommend(["3", "5", "8"], 4)
    assert found["items"] == [each.to_dict() for each in expected.items]
    lines = call(*arguments, "--format", "csv").stdout.splitlines()
    assert lines[0] == "rank,item,title,score"
    assert [line.split(",")[1] for line in lines[1:]] == [each.item for each in expected.items]
    table = call(*arguments)
    assert table.exit_code == 0
    assert all(each.item in table.stdout for each in expected.items)
    assert call("recommend", "-m", run.folder, "--items", "3,5,8", "--format", "json", "--top", 4).stdout != ""


def test_recommend_with_the_devices_vector(run):
    state = run.folder.parent / "state"
    arguments = ("recommend", "-m", run.folder, "--items", "3,5", "--format", "json")
    plain = json.loads(call(*arguments, "--no-fit").stdout)
    fitted = json.loads(call(*arguments).stdout)
    assert [each["score"] for each in plain["items"]] != [each["score"] for each in fitted["items"]]
    own = json.loads(call(*arguments, "--state-dir", state, "--user-number", 0).stdout)
    assert [each["score"] for each in plain["items"]] != [each["score"] for each in own["items"]]


def test_strangers_are_told_so(run):
    result = call("recommend", "-m", run.folder, "--items", "unknown", "--format", "json")
    assert result.exit_code == 0
    assert "what suits most people" in result.stderr
    assert len(json.loads(result.stdout)["items"]) == 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--items", "1", "--top", "0"), "must be >= 1"),
        (("--items", "1", "--format", "xml"), "must be table, json or csv"),
        ((), "either --history"),
        (("--history", "/nowhere"), "cannot be read"),
    ],
)
def test_bad_calls(run, arguments, words):
    result = call("recommend", "--model", run.folder, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_export_and_its_catalogue(run, tmp_path):
    result = call("catalogue", "make", "synthetic", "-o", tmp_path / "c.json", "--reserve", 0)
    assert result.exit_code == 0, result.stderr
    result = call(
        "export", run.folder, "--precision", "int8", "-o", tmp_path / "m.npz", "--catalogue", tmp_path / "c.json"
    )
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "m.npz.json").is_file()
    found = call("recommend", "-m", tmp_path / "m.npz", "--items", "1,2", "--format", "json")
    assert len(json.loads(found.stdout)["items"]) == 10


def test_measure_command(run):
    result = call("measure", run.folder, "--users", 50, "--json")
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == ["npz fp32", "npz fp16", "npz int8"]
    assert all(row["users"] == 50 for row in rows)
    assert "npz int8" in call("measure", run.folder, "--users", 20).stdout
    assert call("measure", run.folder, "--users", -5).exit_code == 2


# ---- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(run):
    server = build_server(Recommender.load(run.folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(address, path, body=None):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def test_http_answers_what_the_api_answers(run, address):
    found = ask(address, "/recommend", {"items": ["3", 5, "none"], "k": 3, "without": ["1"]})
    assert found == Recommender.load(run.folder).recommend(["3", "5", "none"], 3, without=["1"]).to_dict()
    assert ask(address, "/model")["catalogue"]["items"] == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/recommend", {"k": 0}, 400),
        ("/recommend", {"k": True}, 400),
        ("/recommend", {"items": "50"}, 400),
        ("/recommend", {"history": []}, 400),
        ("/recommend", [1], 400),
        ("/recommend", b"[" * 100_000, 400),
        ("/other", {}, 404),
        ("/other", None, 404),
    ],
)
def test_http_refuses(address, path, body, status):
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(address, path, body)
    assert error.value.code == status
    assert json.loads(error.value.read())["error"]


def test_synthetic_has_the_catalogue_of_its_split(run):
    config = parse_run_config(settings_of({}))
    ids = prepare("synthetic", None, split_settings(config)).load().item_ids.tolist()
    assert Path(run.folder, "catalogue.json").exists() is False
    assert load_run(run.folder).catalogue.row_names == ids
