"""SuperNodes that fail, refuse or send garbage, in whole runs."""

import numpy as np
import pytest
from flwr.app import Message

from fastpfrec_flwr import messages
from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.steps import initial_table


def with_fault(fault, partitions, kind="train"):
    """The ClientApp, with `fault(message, honest reply)` in place of the replies of some SuperNodes."""

    def call(message, context):
        reply = client_app(message, context)
        wrong = context.node_config["partition-id"] in partitions and message.metadata.message_type.startswith(kind)
        return fault(message, reply) if wrong else reply

    return call


def raises(message, reply):
    raise ZeroDivisionError("out of battery")


def refuses(message, reply):
    return Message(messages.encode_refusal("the disk is full"), reply_to=message)


def sends_nothing(message, reply):
    del reply.content["uploads"]
    return reply


def sends_nan(message, reply):
    arrays = reply.content["uploads"]
    values = arrays["values"].numpy().copy()
    values[:] = np.nan
    arrays["values"] = messages.encode_array(values)
    return reply


def sends_rows_beyond(message, reply):
    arrays = reply.content["uploads"]
    arrays["rows"] = messages.encode_array(arrays["rows"].numpy() + np.int32(400))
    return reply


def sends_bytes(message, reply):
    array = reply.content["uploads"]["values"]
    array.data = array.data[: len(array.data) // 2]
    return reply


FAULTS = [
    pytest.param(raises, "client failed (code", id="raises"),
    pytest.param(refuses, "the disk is full", id="refuses"),
    pytest.param(sends_nothing, "train reply: records must be", id="a record is missing"),
    pytest.param(sends_nan, "values not finite", id="not a number"),
    pytest.param(sends_rows_beyond, "row ids out of range", id="rows out of range"),
    pytest.param(sends_bytes, "values: ", id="half an array"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_bad_supernode_costs_itself(finished, fault, reason):
    run = finished(5, with_fault(fault, {3}))
    clients = run.summary["clients"]
    assert 12 * 100 * 0.7 < clients["trained"] < 12 * 100 * 0.9  # a fifth of the users is lost, nobody else
    assert clients["refused"] >= 12
    assert any(reason in text for text in clients["reasons"]), clients["reasons"]
    assert reason in run.log
    assert run.summary["test"]["ndcg@20"] > 0.2
    assert run.summary["rounds_without_update"] == 0


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_where_all_fail_the_model_stays_and_the_run_says_so(finished, fault, reason):
    run = finished(2, with_fault(fault, {0, 1}), num_rounds=2, evaluate_every=1)
    assert run.summary["rounds_without_update"] == 2
    assert run.summary["clients"]["trained"] == 0
    assert run.log.count("nothing healthy arrived; the model stays as it was") == 2
    config = parse_run_config(run.json("config.json")["config"])
    assert run.table.tobytes() == initial_table(400, 16, config).tobytes()


def test_a_supernode_that_cannot_describe_itself_is_left_out(finished):
    run = finished(4, with_fault(refuses, {1}, kind="query"))
    assert "a SuperNode does not take part: the disk is full" in run.log
    assert run.json("config.json")["super_nodes"] == 3
    assert run.json("config.json")["data"]["users"] == 450
    assert run.summary["test"]["ndcg@20"] > 0.2


def test_where_nobody_takes_part_the_reason_is_told(finished):
    with pytest.raises(RunError, match="no SuperNode can take part: the disk is full"):
        finished(2, with_fault(refuses, {0, 1}, kind="query"))
    with pytest.raises(RunError, match=r"/nowhere\.csv"):
        finished(data_set="/nowhere.csv")


def test_a_supernode_that_cannot_evaluate_is_told_and_left_out(finished):
    run = finished(2, with_fault(raises, {0}, kind="evaluate"))
    assert "evaluation refused: client failed" in run.log
    assert 0 < run.summary["test"]["ndcg@20"] < 1


def test_where_nobody_can_evaluate_the_run_still_ends(finished):
    run = finished(2, with_fault(raises, {0, 1}, kind="evaluate"), num_rounds=4, evaluate_every=2)
    assert "evaluation refused: client failed" in run.log
    assert run.summary["test"]["ndcg@20"] is None


def test_other_code_on_a_supernode_is_refused(finished, monkeypatch):
    from fastpfrec_flwr.server import device_strategy

    monkeypatch.setattr(device_strategy, "source_fingerprint", lambda: "0123456789abcdef")
    with pytest.raises(RunError, match=r"runs other code than the server .* end the local SuperLink"):
        finished()
