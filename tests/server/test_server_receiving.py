"""Uploads as they arrive: each counts once, a bad reply costs its own clients, and what was received adds up."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.messages import TrainReport
from fastpfrec_flwr.server.assignment import with_key
from fastpfrec_flwr.server.receiving import Expected, Received, Receiver
from tests.hostile import ITEMS, K, honest_content, nonce_of

pytestmark = pytest.mark.usefixtures("inside_a_run")

NODES = (7, 8, 9)


def a_receiver():
    return Receiver(parse_run_config({**default_values(), "embedding-dim": K, "threads": 1}))


def expected(server_round=1, **changes):
    return Expected(**{
        "server_round": server_round, "table_version": 0, "num_rows": ITEMS, "most_uploads": dict.fromkeys(NODES, 2), **changes,
    })  # fmt: skip


def reply(node, content):
    question = Message(messages.encode_refusal("a question"), node, "train")
    return Message(content, reply_to=question)


def two_of(*partitions, server_round=1):
    """One reply with the uploads of several clients."""
    contents = [honest_content(partition, server_round) for partition in partitions]
    found = {
        name: np.concatenate([content["uploads"][name].numpy() for content in contents])
        for name in ("nonces", "rows", "values")
    }
    widths = [len(content["uploads"]["rows"].numpy()) for content in contents]
    found["pointer"] = np.cumsum([0, *widths])
    contents[0]["uploads"] = ArrayRecord({name: Array(each) for name, each in found.items()})
    return contents[0]


def nonces_of(received):
    return [part.nonces.tolist() for part in received.parts]


def test_replies_are_kept_apart_and_counted():
    received = a_receiver().receive([reply(7, two_of(0, 1)), reply(8, honest_content(2, 1))], expected())
    assert nonces_of(received) == [[nonce_of(0, 1), nonce_of(1, 1)], [nonce_of(2, 1)]]
    assert received.refused == []
    assert (received.num_clients, received.num_rows) == (3, sum(len(part.rows) for part in received.parts))
    assert len(received.reports) == 2


def test_replies_are_decoded_as_they_come():
    receiver, arrived = a_receiver(), []

    def replies():
        for partition, node in enumerate(NODES):
            yield reply(node, honest_content(partition, 1))
            arrived.append(node)

    received = receiver.receive(replies(), expected())
    assert arrived == list(NODES)
    assert received.num_clients == 3


@pytest.mark.parametrize(
    "twice",
    [
        pytest.param([(7, two_of(0, 0))], id="in one reply"),
        pytest.param([(7, honest_content(0, 1)), (8, honest_content(0, 1))], id="from two SuperNodes"),
    ],
)
def test_an_upload_counts_once(twice):
    received = a_receiver().receive([reply(node, content) for node, content in twice], expected())
    assert nonces_of(received) == [[nonce_of(0, 1)]]
    assert received.refused == ["upload came twice"]
    assert len(received.reports) == len(twice), "what a SuperNode says of its training is no upload"


def test_an_upload_of_the_last_round_is_a_replay():
    receiver = a_receiver()
    receiver.receive([reply(7, honest_content(0, 1))], expected(1))
    again = honest_content(0, 1)
    again["train"]["server-round"] = 2
    second = receiver.receive([reply(7, again), reply(8, honest_content(1, 2))], expected(2))
    assert second.refused == ["upload replayed from the last round"]
    assert nonces_of(second) == [[nonce_of(1, 2)]]
    again["train"]["server-round"] = 3
    third = receiver.receive([reply(7, again)], expected(3))
    assert third.refused == ["upload replayed from the last round"], "the replay of round 2 is remembered too"


def test_after_forgetting_nothing_is_a_replay():
    receiver = a_receiver()
    receiver.receive([reply(7, honest_content(0, 1))], expected(1))
    receiver.forget()
    assert receiver.receive([reply(7, honest_content(0, 1))], expected(1)).num_clients == 1


@pytest.mark.parametrize(
    ("bad", "changes", "reason"),
    [
        ((8, messages.encode_refusal("the disk is full")), {}, "the disk is full"),
        ((8, honest_content(1, 2)), {}, "reply to round 2 in round 1"),
        ((8, honest_content(1, 1)), {"most_uploads": {7: 1}}, "at most 0 clients"),
        ((8, honest_content(1, 1, 5)), {}, "another version of the item table"),
    ],
)
def test_a_bad_reply_costs_its_own_clients(bad, changes, reason):
    received = a_receiver().receive([reply(*bad), reply(7, honest_content(0, 1))], expected(**changes))
    assert nonces_of(received) == [[nonce_of(0, 1)]]
    assert len(received.refused) == 1
    assert reason in received.refused[0]
    assert len(received.reports) == 1


def test_simulated_uploads_lack_noise_that_real_ones_must_bring():
    receiver, content = a_receiver(), honest_content(0, 1)
    assert content["cover"]["cover-scale"] > 0
    assert receiver.receive([reply(7, content)], expected()).num_clients == 1
    refused = receiver.receive([reply(7, honest_content(1, 1))], expected(deployed=True)).refused
    assert len(refused) == 1
    assert "cover-scale must be 0.0" in refused[0]


def test_the_key_goes_into_nonces_that_are_used_not_into_those_remembered():
    receiver = a_receiver()
    received = receiver.receive([reply(7, honest_content(0, 1))], expected(key=12345))
    (part,) = received.parts
    assert part.nonces.tolist() == with_key(np.array([nonce_of(0, 1)], np.uint64), 12345).tolist()
    again = honest_content(0, 1)
    again["train"]["server-round"] = 2
    assert receiver.receive([reply(7, again)], expected(2, key=67890)).num_clients == 0


def test_what_the_reports_come_to():
    reports = [TrainReport(1, 3, 6.0, 4, 1), TrainReport(1, 0, 2.0, 4)]
    received = Received([], reports, [], 0.0)
    assert (received.skipped, received.skips) == (3, {"nothing to learn from": 2, "privacy budget spent": 1})
    assert received.loss == 1.0
    assert Received([], [], [], 0.0).loss is None
