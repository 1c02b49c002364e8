"""Who takes part between rounds: joiners, leavers, refusals, and nobody waited for longer than said."""

import pytest
from flwr.app import Message, RecordDict

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, Order
from fastpfrec_flwr.server import presence as module
from fastpfrec_flwr.server.nodes import SuperNodes
from fastpfrec_flwr.server.presence import Presence

ORDER = Order("source", "training", "train", 0, 0)


pytestmark = pytest.mark.usefixtures("inside_a_run")


def holds(users, catalogue="cat", items=9):
    return Description(-1, users, items, catalogue, catalogue, "items")


class FakeGrid:
    """SuperNodes that answer a query when the test says so."""

    def __init__(self, online):
        self.online = set(online)
        self.asked = []
        self.answers = {}
        self._messages = {}

    def get_node_ids(self):
        return list(self.online)

    def push_messages(self, outgoing):
        ids = []
        for message in outgoing:
            ids.append(f"m{len(self._messages)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._messages[ids[-1]] = message
            self.asked.append(message.metadata.dst_node_id)
        return ids

    def pull_messages(self, ids):
        for message_id in ids:
            question = self._messages[message_id]
            content = self.answers.pop(question.metadata.dst_node_id, None)
            if content is not None:
                yield Message(content, reply_to=question)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make(online, known):
    grid, said, clock = FakeGrid(online), [], Clock()
    nodes = SuperNodes(list(known), [holds(users) for users in known.values()], [])
    return Presence(grid, nodes, ORDER, said.append, clock), grid, said, clock


def test_a_late_joiner_is_asked_without_waiting_and_takes_part_from_the_next_round():
    presence, grid, said, _ = make({1, 2}, {1: 5, 2: 7})
    assert presence.update().ids == [1, 2]
    grid.online.add(3)
    assert presence.update().ids == [1, 2]
    assert grid.asked == [3]
    assert presence.update().ids == [1, 2], "no answer yet"
    assert grid.asked == [3], "asked once"
    grid.answers[3] = messages.encode_description(holds(4))
    nodes = presence.update()
    assert nodes.ids == [1, 2, 3]
    assert nodes.num_users == 16
    assert said == ["SuperNode 3 takes part from now on (4 users)"]


def test_who_left_is_not_asked_and_comes_back_as_it_was():
    presence, grid, said, _ = make({1, 2}, {1: 5, 2: 7})
    grid.online = {2}
    assert presence.update().ids == [2]
    grid.online = {1, 2}
    assert presence.update().ids == [1, 2]
    assert grid.asked == []
    assert said == [
        "SuperNode 1 is off line: it is not asked until it comes back", "SuperNode 1 takes part from now on (5 users)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (messages.encode_refusal("no data-path"), "no data-path"),
        (messages.encode_description(holds(3, "other", 8)), "another catalogue"),
        (RecordDict(), "is missing"),
    ],
)
def test_who_is_refused_is_told_why_and_asked_again_later(answer, reason):
    presence, grid, said, clock = make({1, 3}, {1: 5})
    assert presence.update().ids == [1]
    grid.answers[3] = answer
    assert presence.update().ids == [1]
    assert "SuperNode 3 does not take part" in said[-1]
    assert reason in said[-1]
    assert grid.asked == [3]
    clock.now += module.ASK_AGAIN_SECONDS + 1
    presence.update()
    assert grid.asked == [3, 3]
    grid.answers[3] = messages.encode_description(holds(2))
    assert presence.update().ids == [1, 3]


def test_where_nobody_is_on_line_a_round_waits_a_while(monkeypatch):
    presence, grid, said, clock = make(set(), {1: 5})
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        clock.now += seconds
        if len(slept) == 3:
            grid.online = {1}

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert presence.update(patience=10).ids == [1]
    assert slept == [1.0] * 3
    assert said[0] == "SuperNode 1 is off line: it is not asked until it comes back"
    grid.online = set()
    monkeypatch.setattr(module.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
    assert presence.update(patience=10).ids == [], "and is held without anybody then"
