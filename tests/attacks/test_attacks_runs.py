"""Whole runs with liars, through the real apps: what is sent, what is counted, and that honest runs stay what they were."""

import csv
import json

import numpy as np
import pytest

from fastpfrec_flwr.attacks.apps import AttackedClientApp
from fastpfrec_flwr.attacks.attackers import lying_users
from fastpfrec_flwr.attacks.exposure import exposed_users
from fastpfrec_flwr.attacks.notes import RoundNotes
from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.data.types import ShardRows
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.messages import Order
from tests.whole_runs import settings_of

ALL = (
    "noise", "shift", "scaling", "sign-flip", "replacement", "gradient-ascent", "label-flip", "alie", "ipm", "min-max",
    "promotion", "shilling", "clustering", "sybil",
)  # fmt: skip
SHORT = {"num_rounds": 3, "evaluate_every": 3}


def test_without_an_attack_the_wrapped_apps_change_no_bit(finished):
    wrapped, honest = finished(**SHORT), finished(client_app=honest_client_app, **SHORT)
    wrapped.assert_same(honest)
    assert "attack" not in wrapped.summary
    assert not (wrapped.folder / "attack.json").exists()


def test_nobody_lies_and_is_measured_all_the_same(finished):
    """The measurement changes no bit, and finds no damage where the check isolates nobody."""
    plain = finished(check="none", node_z_threshold=0.0, **SHORT)
    measured = finished(check="none", node_z_threshold=0.0, attack="noise", attack_fraction=0.0, **SHORT)
    measured.assert_same(plain)
    attack = measured.summary["attack"]
    assert (attack["damage"], attack["change_damage"], attack["users"]) == (0.0, 0.0, 0)
    assert attack["honest"] == {"trained": 300, "isolated": 0, "lost_with_nodes": 0}
    assert attack["detected"] is None


@pytest.mark.parametrize("attack", ALL)
@pytest.mark.parametrize("upload", ["dense", "sparse"])
def test_every_attack_runs_and_is_counted(finished, attack, upload):
    run = finished(attack=attack, upload=upload, **SHORT)
    found = run.summary
    assert found["clients"]["refused"] == 0
    assert found["attack"]["users"] == 180
    assert found["attack"]["attackers"]["trained"] + found["attack"]["honest"]["trained"] == 300
    # 300 of the 600 users train once: of 180 liars 90 +- 8.
    assert 60 <= found["attack"]["attackers"]["trained"] <= 120
    assert found["attack"]["damage"] > 0 or found["attack"]["detected"] == 1.0
    lines = list(csv.DictReader((run.folder / "attack_rounds.csv").open()))
    assert [line["round"] for line in lines] == ["1", "2", "3"]
    assert found["attack"]["rounds"] == 3
    assert sum(int(line["liars"]) for line in lines) == found["attack"]["attackers"]["trained"]
    assert json.loads((run.folder / "attack.json").read_text()) == found["attack"]


def test_lies_travel_in_eight_bits(finished):
    run = finished(attack="scaling", attack_fraction=0.2, upload_precision="int8", **SHORT)
    assert run.summary["clients"]["refused"] == 0
    assert run.summary["attack"]["attackers"]["trained"] > 0
    assert run.summary["attack"]["detected"] == 1.0


def test_lies_travel_in_whole_tables_without_row_numbers(finished):
    """Every honest upload covers all of the 400 items."""
    run = finished(attack="sign-flip", attack_fraction=0.2, noise="none", noise_scale=0.0, num_negatives=512, **SHORT)
    assert run.summary["clients"]["refused"] == 0
    assert run.summary["attack"]["attackers"]["trained"] > 0


def test_an_attacked_runs_log_has_the_format_that_was_asked_for(finished):
    run = finished(attack="noise", attack_fraction=0.2, log_format="json", **SHORT)
    assert all(isinstance(json.loads(line), dict) for line in run.log.splitlines())


@pytest.mark.parametrize("attack", ["noise", "alie", "label-flip", "sybil"])
def test_the_same_seed_the_same_lies(finished, attack):
    one, two, other = (
        finished(attack=attack, threads=threads, seed=seed, **SHORT) for threads, seed in ((1, 1), (2, 1), (1, 2))
    )
    one.assert_same(two)
    assert one.table.tobytes() != other.table.tobytes()


def test_liars_who_stay_away_send_nothing(finished):
    run = finished(attack="absent", check="none", node_z_threshold=0.0, user_metrics=True, **SHORT)
    attack = run.summary["attack"]
    assert attack["attackers"]["trained"] == 0
    assert run.summary["clients"]["trained"] == attack["honest"]["trained"] < 300
    assert attack["damage"] == 0.0
    with np.load(run.folder / "user_metrics.npz") as arrays:
        users, ndcg = arrays["users"], arrays["ndcg@20"]
    liars = lying_users(parse_run_config(settings_of({"attack": "absent"})), 600, 1)
    assert attack["honest_test"]["ndcg@20"] == pytest.approx(ndcg[~np.isin(users, liars)].mean())
    assert attack["honest_ndcg"] == attack["honest_test"]["ndcg@20"]


def test_liars_drawn_anew_are_found_and_everybody_counts_as_honest_in_the_end(finished):
    one, two = (
        finished(
            attack="scaling",
            attack_strength=30.0,
            attack_drawn="each-round",
            user_metrics=True,
            num_supernodes=count,
            **SHORT,
        )
        for count in (1, 2)
    )
    one.assert_same(two)
    attack = one.summary["attack"]
    assert attack["users"] == 180
    assert attack["detected"] == 1.0
    assert attack["false_positives"] == 0.0
    assert attack["damage"] == 0.0
    lines = list(csv.DictReader((one.folder / "attack_rounds.csv").open()))
    assert all(15 <= int(line["liars"]) <= 45 for line in lines)  # 30 of 100 on the mean
    assert attack["honest_ndcg"] == pytest.approx(one.summary["test"]["ndcg@20"])
    once = finished(attack="scaling", attack_strength=30.0, **SHORT)
    assert once.table.tobytes() != one.table.tobytes()


@pytest.mark.parametrize("attack", ["noise", "sign-flip", "label-flip", "promotion", "shilling"])
def test_attacks_of_single_liars_do_not_depend_on_the_number_of_supernodes(finished, attack):
    few, many = (finished(num_supernodes=count, attack=attack, **SHORT) for count in (1, 3))
    few.assert_same(many)
    assert few.summary["attack"]["promoted"] == many.summary["attack"]["promoted"]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_easily_seen_is_isolated_and_does_no_damage(finished, precision):
    run = finished(attack="scaling", attack_strength=30.0, upload_precision=precision, **SHORT)
    attack = run.summary["attack"]
    assert attack["detected"] == 1.0
    assert attack["attackers"]["isolated"] == attack["attackers"]["trained"]
    assert attack["false_positives"] == 0.0
    assert attack["damage"] == 0.0
    assert attack["honest"]["isolated"] + attack["attackers"]["isolated"] == run.summary["clients"]["isolated"]


def test_honest_until_the_attack_begins(finished):
    plain = finished(**SHORT)
    late = finished(attack="scaling", attack_from_round=4, **SHORT)
    late.assert_same(plain)
    assert late.summary["attack"]["attackers"]["trained"] == 0
    third = finished(attack="shift", attack_from_round=3, check="none", node_z_threshold=0.0, **SHORT)
    lines = list(csv.DictReader((third.folder / "attack_rounds.csv").open()))
    assert [float(line["damage"]) > 0 for line in lines] == [False, False, True]


def test_colluders_in_one_node_take_it_over(finished):
    run = finished(attack="noise", attack_strength=0.01, attack_placement="one-node", check="none", **SHORT)
    attack = run.summary["attack"]
    # 30 of 100 clients in one of four nodes, with about 18 honest ones: it is bad in each of the three rounds.
    assert attack["bad_nodes"]["seen"] == 3
    assert attack["good_nodes"]["seen"] == 9


def test_a_refit_lies_too(finished):
    run = finished(attack="scaling", attack_strength=30.0, refit=True, **SHORT)
    attack = run.summary["attack"]
    assert attack["attackers"]["trained"] + attack["honest"]["trained"] == 600
    assert attack["detected"] == 1.0


@pytest.mark.parametrize("attack", ["noise", "shift", "scaling", "replacement"])
def test_compromised_nodes(finished, attack):
    lies = {"node_attack": attack, "compromised_nodes": 1, "node_attack_strength": 50.0}
    found = finished(**lies, **SHORT).summary["attack"]
    assert found["bad_nodes"] == {"seen": 1, "isolated": 1}  # then it is in quarantine
    assert found["good_nodes"] == {"seen": 9, "isolated": 0}
    assert found["attackers"]["trained"] == 0
    assert found["honest"]["isolated"] == found["honest"]["lost_with_nodes"] > 0
    free = finished(**lies, quarantine_rounds=0, **SHORT).summary["attack"]
    assert free["bad_nodes"] == {"seen": 3, "isolated": 3}
    assert free["honest"]["lost_with_nodes"] > 2 * found["honest"]["lost_with_nodes"]
    open_door = finished(
        node_attack=attack, compromised_nodes=1, node_attack_strength=50.0, check="none", node_z_threshold=0.0, **SHORT
    ).summary["attack"]
    assert open_door["bad_nodes"]["isolated"] == 0
    assert open_door["damage"] > found["damage"]


def test_without_trusted_nodes_too(finished):
    attack = finished(tier="direct", attack="shift", **SHORT).summary["attack"]
    assert attack["attackers"]["isolated"] == 0
    assert attack["damage"] > 0.1


def test_another_strategy_is_attacked_but_not_looked_into(finished):
    clean, attacked = (finished(strategy="flwr:FedAvg", attack=each, **SHORT) for each in ("none", "shift"))
    assert attacked.table.tobytes() != clean.table.tobytes()
    assert "attack" not in attacked.summary


def test_exposure_is_reported_of_honest_users_who_have_not_got_the_item(finished):
    run = finished(attack="promotion", attack_target_item=7, **SHORT)
    promoted = run.summary["attack"]["promoted"]
    assert promoted["item"] == 7
    assert promoted["er@10"] == promoted["exposed"] / promoted["users"] == run.summary["attack"]["exposure"]
    honest = 600 - len(lying_users(parse_run_config(settings_of({"attack": "promotion"})), 600, 1))
    assert 0.8 * honest < promoted["users"] <= honest


def test_exposure_counts_as_by_hand():
    """Five users, vectors of one dimension: item 2 is in the top 10 of all who like items with positive rows, if not masked."""
    table = np.linspace(1.0, -1.0, 30, dtype=np.float32)[:, None]
    train = ShardRows(np.array([2, 5, 5], np.int32), np.array([0, 1, 2, 3, 3]), np.array([1, 2, 3, 3, 3]))
    validation = ShardRows(np.array([2], np.int32), np.array([0, 0, 0, 0, 0]), np.array([0, 0, 0, 0, 1]))
    # User 0 has it in train, 4 in validation, 2 lies; 1 likes it, 3 does not.
    nobody = ShardRows(np.empty(0, np.int32), np.zeros(5, np.int64), np.zeros(5, np.int64))

    class Node:
        shard = Shard(np.arange(5), 30, train, validation, nobody)
        threads = 1

        def ranker_for_all(self, table, phase):
            vectors = np.array([[1], [1], [1], [-1], [1]], np.float32)
            return lambda asked, masks: rank_top_k(vectors[asked], table, masks)

    assert exposed_users(Node(), table, Order("", "", "train", 1, 5), 2, np.array([2])) == (1, 2)
    assert exposed_users(Node(), table, Order("", "", "train", 1, 5), 2, np.arange(5)) == (0, 0)


def test_a_real_device_refuses():
    from flwr.app import Context, RecordDict

    from fastpfrec_flwr import messages
    from fastpfrec_flwr.messages import Order, RefusedError
    from fastpfrec_flwr.simulation.grid import InProcessGrid

    values = settings_of({"attack": "noise"})
    grid = InProcessGrid(AttackedClientApp(), 1, dict(values))
    (node,) = grid.contexts
    grid.contexts[node] = Context(1, node, {"state-dir": "/nowhere"}, RecordDict(), dict(values))
    from flwr.app import Message

    order = Order("source", "state", "train", 1, 5)
    model = messages.encode_model(np.zeros((400, 16), np.float32))
    (reply,) = grid.send_and_receive([Message(messages.encode_train(model, order), node, "train")])
    with pytest.raises(RefusedError, match="attacks are for simulations"):
        messages.usable_content(reply)


def test_counts_of_a_round():
    """Node 0: two liars of three, one caught; node 1: fine, one honest client caught; node 2: left out by the server."""
    notes = RoundNotes(
        1,
        np.array([0, 0, 0, 1, 1, 1, 2, 2]),
        np.array([1, 1, 0, 0, 0, 0, 0, 1], bool),
        np.array([0, 1, 1, 1, 1, 0, 1, 1], bool),
        np.array([], np.int64),
        accepted=np.array([0, 1]),
    )
    assert notes.counts() == {
        "liars": 3, "liars_isolated": 2, "honest": 5, "honest_isolated": 2, "honest_lost_with_nodes": 1,
        "bad_nodes": 2, "bad_nodes_isolated": 1, "good_nodes": 1, "good_nodes_isolated": 0,
    }  # fmt: skip
    notes.compromised = np.array([1])
    assert notes.counts()["bad_nodes"] == 3
