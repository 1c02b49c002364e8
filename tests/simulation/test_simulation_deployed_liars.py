"""Real devices, one of which lies, or whose server changes its mind: what that costs, and what it does not tell."""

import shutil

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fastpfrec_flwr.client import opening, own_data
from fastpfrec_flwr.client.app import app as honest_app
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.messages import encode_array


def lying(change):
    """The smallest device's replies, changed."""

    def call(message, context):
        reply = honest_app(message, context)
        if not reply.has_error() and "device-2" in context.node_config["data-path"]:
            change(reply.content)
        return reply

    return call


@pytest.mark.parametrize("users", [2**40, 2**62, 2**63 - 1])
def test_a_claim_of_more_users_than_there_are_people_costs_whoever_makes_it(deployed, users):
    def boast(content):
        if "description" in content:
            content["description"] = ConfigRecord({**content["description"], "users": users})

    run = deployed(lying(boast), clients_per_round=10)
    assert run.json("config.json")["data"]["users"] == 17
    assert run.summary["clients"]["trained"] == 3 * 10
    assert f"users {users} and num-items" in run.log


def test_a_dense_upload_of_one_row_is_refused(deployed):
    """The noise of a real device lies on the whole table."""

    def one_row(content):
        if "uploads" in content:
            uploads = content["uploads"]
            uploads["values"] = encode_array(np.full((1, 8), 0.5, np.float32))
            uploads["rows"] = encode_array(np.array([3], np.int32))
            uploads["pointer"] = encode_array(np.array([0, 1], np.int64))

    clients = deployed(lying(one_row)).summary["clients"]
    assert (clients["trained"], clients["refused"]) == (3 * 17, 3)
    assert list(clients["reasons"]) == ["more or fewer rows than every upload has"]


def test_stars_of_other_probabilities_tell_nothing_for_certain(deployed, monkeypatch):
    """With the same draws, items of the one star that are not in the other would all be true ones."""
    stars, true = {}, {}
    local_updates = Node.local_updates

    def spy(node, table, graphs, private, users, order, deviations):
        history = node._history(order.phase)
        for place, user in enumerate(users.tolist()):
            who = (node.secret, user)
            mine = int(np.searchsorted(node.shard.users, user))
            true[who] = set(history.items[history.starts[mine] : history.ends[mine]].tolist())
            star = graphs.items[graphs.pointer[place] : graphs.pointer[place + 1]]
            stars.setdefault(who, {})[node.config.keep_prob] = set(star.tolist())
        return local_updates(node, table, graphs, private, users, order, deviations)

    monkeypatch.setattr(Node, "local_updates", spy)
    for keep, add in ((0.9, 0.1), (0.5, 0.4)):
        deployed(
            perturbation="randomised-response", keep_prob=keep, perturbation_prob=add, num_rounds=1, evaluate_every=1
        )
    both = [(each[0.9] - each[0.5], true[who]) for who, each in stars.items() if len(each) == 2]
    assert len(both) == 18
    found, right = sum(len(odd) for odd, _ in both), sum(len(odd & mine) for odd, mine in both)
    # Of 18 people: true ones .9 x .5 of all, others .1 x .6 of some hundred. All of them were true before.
    assert found > 50
    assert right < 0.9 * found


def test_a_devices_own_limit_does_not_follow_the_servers_idea_of_a_neighbour(deployed, devices, book_of):
    devices[2]["epsilon-limit"] = 6.0
    settings = {"clip_norm": 1.0, "clip_kind": "l1", "row_clip": 0.0, "noise_scale": 1.0, "num_rounds": 8}
    sent = []
    for adjacency in ("replace", "zero-out"):
        shutil.rmtree(devices[2]["state-dir"], ignore_errors=True)
        opening.close_states()
        opening._open_device.cache_clear()
        own_data._read.cache_clear()
        deployed(adjacency=adjacency, evaluate_every=8, **settings)
        sent.append(book_of(devices[2])[0][1:])
    assert sent[0][0] == 3
    assert sent[1] == sent[0]
