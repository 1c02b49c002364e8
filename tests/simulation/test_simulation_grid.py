"""The in-process Grid shares its threads out among the SuperNodes."""

import threading

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.simulation.grid import FIRST_NODE, InProcessGrid


def names_of_workers(threads: int) -> list[str]:
    """The threads that four tasks of a SuperNode's own run on."""
    names: list[str] = []
    in_parallel(lambda _: names.append(threading.current_thread().name), range(4), threads)
    return names


@pytest.fixture
def together():
    """(ClientApp whose train calls wait until two of them are there, what they saw)."""
    app, seen, meeting = ClientApp(), [], threading.Barrier(2, timeout=1.0)

    @app.train()
    def train(message, context):
        meeting.wait()
        names = set(names_of_workers(2))
        meeting.wait()
        seen.append(names)
        if context.node_id == FIRST_NODE + 1:
            raise ValueError("this one breaks")
        return Message(RecordDict({"node": ConfigRecord({"id": str(context.node_id)})}), reply_to=message)

    return app, seen


def test_two_supernodes_work_at_once_with_one_thread_each(together):
    app, seen = together
    grid = InProcessGrid(app, 2, {}, threads=2)
    ids = grid.push_messages([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(ids)}
    good, broken = (replies[i] for i in ids)
    assert good.content["node"]["id"] == str(FIRST_NODE)
    assert broken.has_error()
    assert "this one breaks" in broken.error.reason
    assert [len(names) for names in seen] == [1, 1]
    assert seen[0] != seen[1]
    # Afterwards a caller has its helpers back.
    assert len(names_of_workers(2)) == 4


def test_fewer_messages_than_threads_come_one_after_the_other(together):
    app, _ = together
    grid = InProcessGrid(app, 2, {}, threads=3)
    ids = grid.push_messages([Message(RecordDict(), FIRST_NODE, "train")])
    (reply,) = grid.pull_messages(ids)
    assert reply.has_error()
    assert "BrokenBarrierError" in reply.error.reason
