"""One catalogue in real runs: devices with data of their own, another version refused, reserved rows, new items trained alone."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.cli import app
from fastpfrec_flwr.client import opening
from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.preparation import prepare
from fastpfrec_flwr.data.synthetic import synthetic_interactions
from fastpfrec_flwr.data.types import SplitSettings
from fastpfrec_flwr.recommend import Recommender
from fastpfrec_flwr.recommend.device import private_vector
from fastpfrec_flwr.recommend.loading import load_run
from fastpfrec_flwr.server.app import app as server_app
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.whole_runs import Finished, settings_of

ITEMS = tuple(str(n) for n in range(400))


@pytest.fixture(scope="module")
def interactions():
    made = synthetic_interactions()
    return list(zip(made.users.tolist(), made.items.tolist(), strict=True))


def write(path, pairs):
    path.write_text("user,item\n" + "".join(f"u{user},{item}\n" for user, item in pairs))
    return path


def deployed(tmp_path, values, catalogues, data=None):
    """A run whose SuperNodes are real devices, each with its own state folder and catalogue file, and data if given."""
    grid = InProcessGrid(client_app, len(catalogues), values)
    for number, (context, catalogue) in enumerate(zip(grid.contexts.values(), catalogues, strict=True)):
        context.node_config = {"state-dir": str(tmp_path / f"device-{number}")}
        if catalogue is not None:
            context.node_config["catalogue"] = str(catalogue)
        if data is not None:
            context.node_config["data-path"] = str(data)
    run_in_process(server_app, grid, values)
    return Finished(Path(values["output-dir"]))


# ---- data under a catalogue ------------------------------------------------------------------------------------------


def test_a_devices_items_get_the_catalogues_rows_and_the_rest_is_counted(tmp_path):
    path = write(tmp_path / "own.csv", [(1, "c"), (1, "x"), (1, "a"), (1, "b"), (2, "y"), (2, "c"), (2, "a")])
    catalogue = Catalogue(("a", "b", "c", "d"), reserved=2)
    settings = SplitSettings("random", 0.0, 0.0)
    split = prepare(str(path), None, settings, catalogue=catalogue).load()
    assert split.item_ids.tolist() == catalogue.row_names
    assert (split.num_items, split.num_reserved) == (6, 2)
    assert [split.train.row(u).tolist() for u in range(2)] == [[0, 1, 2], [0, 2]]
    assert split.report["items_not_in_catalogue"] == 2
    assert split.report["interactions_not_in_catalogue"] == 2
    # Without one the data's own items are all there is, and the two do not share a cache.
    assert prepare(str(path), None, settings).load().num_items == 5


def test_test_items_count_that_the_device_has_never_seen(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    write(folder / "train.csv", [(1, "a"), (1, "b"), (2, "a")])
    write(folder / "test.csv", [(1, "d"), (2, "who")])
    split = prepare(str(folder), None, SplitSettings("released"), catalogue=Catalogue(("a", "b", "c", "d"))).load()
    assert split.test.row(0).tolist() == [3]
    assert split.report["test_items_unseen"] == 0


def test_foreign_ids_are_refused(tmp_path):
    path = write(tmp_path / "own.csv", [(1, "x"), (1, "y")])
    with pytest.raises(DataError, match=r"none of its 2 items \(the first is 'x'\) is in catalogue version 1"):
        prepare(str(path), None, SplitSettings(), catalogue=Catalogue(("a", "b")))


# ---- agreement over messages -----------------------------------------------------------------------------------------


def test_a_run_under_a_catalogue_keeps_it_and_ranks_no_reserved_row(finished, tmp_path):
    Catalogue(ITEMS, 20, 3, {"7": "Seven"}).save(tmp_path / "c.json")
    run = finished(catalogue=str(tmp_path / "c.json"))
    assert run.table.shape == (420, 16)
    assert run.summary["test"]["ndcg@20"] > 0.2
    model = load_run(run.folder)
    assert (model.catalogue.version, model.catalogue.reserved, model.catalogue.titles) == (3, 20, {"7": "Seven"})
    items = Recommender(model).recommend(["1"], 1000).items
    assert len(items) == 399
    # Twice the same, with twenty rows more: the reserved ones take nothing from the ranking.
    plain = finished()
    assert run.summary["test"]["ndcg@20"] == pytest.approx(plain.summary["test"]["ndcg@20"], abs=0.03)


def test_devices_with_data_of_their_own_train_one_table(tmp_path, interactions):
    """A file lacks most items and has one that nobody knows; the catalogue puts it on the common table."""
    Catalogue(ITEMS).save(tmp_path / "c.json")
    path = write(tmp_path / "own.csv", [pair for pair in interactions if pair[0] < 150] + [(1, "unheard-of")])
    values = settings_of({
        "catalogue": "/the/servers/own/path.json", "output_dir": str(tmp_path / "run"),
        "num_rounds": 2, "evaluate_every": 1, "clients_per_round": 60,
    })  # fmt: skip
    values["catalogue"] = str(tmp_path / "c.json")
    run = deployed(tmp_path, values, [tmp_path / "c.json"] * 2, path)
    assert run.table.shape == (400, 16)
    # The device recommends with what it kept, its own vector included.
    recommender = Recommender.load(tmp_path / "device-0" / "model.npz")
    assert recommender.catalogue.row_names == list(ITEMS)
    state_id = recommender.manifest["run"]["state_id"]
    with closing(sqlite3.connect(tmp_path / "device-0" / state_id / "train" / "0-of-1.sqlite3")) as state:
        (somebody,) = state.execute("SELECT min(user) FROM users").fetchone()  # chance decides who trains
    private = private_vector(tmp_path / "device-0", state_id, somebody)
    assert len(recommender.recommend(["1", "2"], 5, private).items) == 5
    np.testing.assert_array_equal(recommender.model.table, run.table)


def test_a_device_with_another_version_is_refused_with_both_and_the_remedy(tmp_path):
    first = Catalogue(ITEMS, 5)
    second = first.extended(["new"])
    first.save(tmp_path / "1.json")
    second.save(tmp_path / "2.json")
    values = settings_of({
        "catalogue": str(tmp_path / "2.json"), "output_dir": str(tmp_path / "run"), "num_rounds": 2, "evaluate_every": 2
    })  # fmt: skip
    run = deployed(tmp_path, values, [tmp_path / "2.json", tmp_path / "1.json"])
    assert (
        f"a SuperNode does not take part: this SuperNode has catalogue version 1 (hash {first.hash}), the server "
        f"catalogue version 2 (hash {second.hash}): copy the server's catalogue file to the device"
    ) in run.log
    assert run.json("config.json")["super_nodes"] == 1
    values |= {"catalogue": str(tmp_path / "1.json")}
    with pytest.raises(RunError, match=r"this device's is newer: start the run with the newer file"):
        deployed(tmp_path, values, [tmp_path / "2.json"])
    with pytest.raises(RunError, match=r"none\.json: the catalogue cannot be read .*--node-config"):
        deployed(tmp_path, values, [tmp_path / "none.json"])


def test_a_device_whose_items_change_in_mid_run_is_refused_from_then_on(tmp_path, interactions):
    """Without a catalogue file the data gives the items, so a changed file changes the rows: no round may use it."""
    path = write(tmp_path / "own.csv", interactions)
    values = settings_of(
        {"data_set": str(path), "output_dir": str(tmp_path / "run"), "num_rounds": 3, "evaluate_every": 3}
    )

    def changing(message, context):
        order = message.content.get("order", {})
        if order.get("server-round") != 2 or context.node_config["partition-id"] != 1:
            return client_app(message, context)
        # A device's process begins anew with every message; here one process plays them all, so it has to forget.
        write(path, [*interactions, (1, "one-more")])
        opening._prepared.cache_clear()
        reply = client_app(message, context)
        write(path, interactions)
        opening._prepared.cache_clear()
        return reply

    grid = InProcessGrid(changing, 2, values)
    run_in_process(server_app, grid, values)
    run = Finished(Path(values["output-dir"]))
    assert "round 2: 1 refused: this SuperNode has the catalogue of a data set (hash" in run.log
    assert "give it the same data set as the others" in run.log


def test_a_catalogue_that_cannot_be_read_ends_the_run_in_plain_words(finished, tmp_path):
    with pytest.raises(ConfigError, match=r"catalogue: .*cannot be read"):
        finished(catalogue=str(tmp_path / "none.json"))


# ---- new items -------------------------------------------------------------------------------------------------------

NEW = tuple(str(n) for n in range(380, 400))


@pytest.fixture(scope="module")
def before(tmp_path_factory, interactions):
    """A model of a shop that does not have the last twenty items yet, under a catalogue with room for them."""
    from fastpfrec_flwr.simulation.run import simulate

    folder = tmp_path_factory.mktemp("before")
    old = Catalogue(ITEMS[:380], 20)
    old.save(folder / "1.json")
    old.extended(NEW).save(folder / "2.json")
    write(folder / "old.csv", [pair for pair in interactions if pair[1] < 380])
    write(folder / "all.csv", interactions)
    simulate(settings_of({
        "data_set": str(folder / "old.csv"), "catalogue": str(folder / "1.json"), "output_dir": str(folder / "run"),
        "split": "random", "num_rounds": 20, "evaluate_every": 10,
    }))  # fmt: skip
    return folder


def hits_of_new_items(model, interactions, users=range(0, 600, 3)):
    """Share of the users' new items among the first 60 of their lists, from their old items alone."""
    histories = {user: [] for user in users}
    for user, item in interactions:
        if user in histories:
            histories[user].append(str(item))
    hits = count = 0
    for history in histories.values():
        wanted = {item for item in history if item in NEW}
        lists = Recommender(model).recommend([item for item in history if item not in NEW], 60).items
        hits += len(wanted & {each.item for each in lists})
        count += len(wanted)
    return hits / count


def test_new_items_are_trained_alone_and_no_old_row_moves(finished, before, interactions):
    run = finished(
        data_set=str(before / "all.csv"), catalogue=str(before / "2.json"), initial_model=str(before / "run"),
        train_items="new", split="random", num_rounds=20, evaluate_every=10,
    )  # fmt: skip
    old = Finished(before / "run").table
    assert run.table.shape == old.shape
    np.testing.assert_array_equal(run.table[:380], old[:380])
    assert (run.table[380:] != old[380:]).all()
    assert "only rows that the initial model does not have are trained: 20 of 400" in run.log
    untrained = load_run(before / "run")
    assert hits_of_new_items(load_run(run.folder), interactions) > 0.3
    assert untrained.catalogue.num_items == 380


def test_new_items_are_filled_from_what_they_are_chosen_with(before, interactions, tmp_path):
    seen = write(tmp_path / "panel.csv", [pair for pair in interactions if pair[0] % 3])
    result = CliRunner().invoke(app, [
        "catalogue", "fill", str(before / "run"), "--catalogue", str(before / "2.json"), "-o", str(tmp_path / "m.npz"),
        "--interactions", str(seen),
    ])  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "20 new items, 20 filled" in result.stdout
    after = Recommender.load(tmp_path / "m.npz").model
    np.testing.assert_array_equal(after.table[:380], Finished(before / "run").table[:380])
    # Users 0, 3, 6, ... are not in the panel: their new items are ranked from their old ones alone.
    assert hits_of_new_items(after, interactions) > 0.3


def test_an_initial_model_that_does_not_fit_is_refused(finished, before, tmp_path):
    settings = {"data_set": str(before / "all.csv"), "split": "random", "initial_model": str(before / "run")}
    with pytest.raises(ConfigError, match="embedding-dim must be 16"):
        finished(**settings, embedding_dim=8)
    with pytest.raises(ConfigError, match="it has them all"):
        finished(**{**settings, "data_set": str(before / "old.csv")}, train_items="new")
    with pytest.raises(ConfigError, match=r"initial-model: .*no such run folder"):
        finished(**{**settings, "initial_model": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="initial-model must name a model"):
        finished(train_items="new")


def test_training_goes_on_from_a_model(finished, before):
    """Old rows begin where they were: after one round it is better than a model drawn from the seed after one."""
    settings = {"data_set": str(before / "all.csv"), "split": "random", "num_rounds": 1, "evaluate_every": 1}
    again = finished(**settings, initial_model=str(before / "run")).summary["validation"]["ndcg@20"]
    assert again > finished(**settings).summary["validation"]["ndcg@20"] + 0.05


# ---- commands --------------------------------------------------------------------------------------------------------


def test_make_show_extend(tmp_path):
    def call(*arguments):
        return CliRunner().invoke(app, ["catalogue", *map(str, arguments)])

    (tmp_path / "titles.csv").write_text("id,title\n3,Three\nnobody,No\n")
    made = call("make", "synthetic", "-o", tmp_path / "c.json", "--reserve", 2, "--titles", tmp_path / "titles.csv")
    assert made.exit_code == 0, made.stderr
    assert "400 items, 2 rows reserved, 1 titles" in made.stdout
    shown = call("show", tmp_path / "c.json", "--item", "3")
    assert "item 3: row 3, Three" in shown.stdout
    assert call("show", tmp_path / "c.json", "--item", "999").exit_code == 2
    (tmp_path / "new.json").write_text(json.dumps(["n1", "n2"]))
    assert "version 2" in call("extend", tmp_path / "c.json", "--items", tmp_path / "new.json").stdout
    assert Catalogue.load(tmp_path / "c.json").row("n2") == 401
    (tmp_path / "new.json").write_text(json.dumps(["n3"]))
    refused = call("extend", tmp_path / "c.json", "--items", tmp_path / "new.json")
    assert refused.exit_code == 2
    assert "reserve 1 more (--reserve)" in refused.stderr
    (tmp_path / "ids.txt").write_text("b\na\n")
    assert call("make", tmp_path / "ids.txt", "--ids", "-o", tmp_path / "d.json").exit_code == 0
    assert Catalogue.load(tmp_path / "d.json").ids == ("b", "a")
    # A line is an id, also where it looks like a user and an item.
    (tmp_path / "ids.txt").write_text("user 1\nb, large\nuser 2\n")
    assert call("make", tmp_path / "ids.txt", "--ids", "-o", tmp_path / "d.json").exit_code == 0
    assert Catalogue.load(tmp_path / "d.json").ids == ("user 1", "b, large", "user 2")
    nowhere = call("make", tmp_path / "none.txt", "--ids", "-o", tmp_path / "d.json")
    assert nowhere.exit_code == 2
    assert "none.txt: the ids cannot be read" in nowhere.stderr
