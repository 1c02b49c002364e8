"""Secure sums of which one client or SuperNode breaks its part: what is lost is its own sum, or less, and never the round."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fastpfrec_flwr.messages import encode_array
from tests.server.test_server_secure import GAUSSIAN, Between

FOUR = {**GAUSSIAN, "num_trusted_nodes": 4, "clients_per_round": 64}
DROPPING = {**FOUR, "dropout_fraction": 0.4}


def of_one(action, change):
    """A ClientApp whose second SuperNode changes its replies to `action`."""

    def between(asked, partition, reply):
        if (asked, partition) != (action, 1) or reply.has_error():
            return None
        change(reply.content)
        return reply.content

    return Between(between)


def test_a_missing_table_costs_its_sum(finished):
    """None may fail, so the sum of one in four is lost, with the 15 others that are in it."""

    def drop(content):
        arrays = {name: content["masked"][name].numpy()[1:].copy() for name in ("nonces", "steps")}
        content["masked"] = ArrayRecord({name: encode_array(array) for name, array in arrays.items()})

    run = finished(4, of_one("mask", drop), **FOUR)
    assert run.summary["rounds_without_update"] == 0
    assert run.summary["clients"]["refused"] == 3 * 15
    assert all("secure sum of node" in reason for reason in run.summary["clients"]["reasons"])


@pytest.mark.parametrize("kind", ["the same twice", "low order"])
def test_bad_keys_cost_their_client(finished, kind):
    def spoil(content):
        keys = content["hello"]["keys"].numpy().copy()
        keys[0, 32:] = keys[0, :32] if kind == "the same twice" else 0
        content["hello"] = ArrayRecord(
            {"nonces": encode_array(content["hello"]["nonces"].numpy().copy()), "keys": encode_array(keys)}
        )

    run = finished(4, of_one("hello", spoil), **DROPPING)
    assert run.summary["rounds_without_update"] == 0
    assert run.summary["clients"]["trained"] == 3 * 63
    assert run.summary["clients"]["reasons"] == {
        "secure sum: public keys that repeat, or that nobody can agree with": 3
    }


def test_keys_of_another_client_cost_both(finished):
    def copy(content):
        keys = content["hello"]["keys"].numpy().copy()
        keys[1] = keys[0]
        content["hello"] = ArrayRecord(
            {"nonces": encode_array(content["hello"]["nonces"].numpy().copy()), "keys": encode_array(keys)}
        )

    run = finished(4, of_one("hello", copy), **DROPPING)
    assert run.summary["rounds_without_update"] == 0
    assert run.summary["clients"]["trained"] == 3 * 62


def test_shares_that_nobody_can_open_cost_their_sum(finished):
    def garble(content):
        sealed = content["sealed"]
        senders, boxes = sealed["sender"].numpy(), sealed["content"].numpy().copy()
        boxes[senders == senders[0]] ^= 1
        content["sealed"] = ArrayRecord(
            {
                "sender": encode_array(senders.copy()),
                "receiver": encode_array(sealed["receiver"].numpy().copy()),
                "content": encode_array(boxes),
            }
        )

    run = finished(4, of_one("share", garble), **DROPPING)
    assert run.summary["rounds_without_update"] == 0
    assert run.summary["clients"]["refused"] == 3 * 16


@pytest.mark.parametrize(
    "figures", [{"loss-sum": 1.7e308}, {"positives": 2**62}, {"skipped": 65}, {"loss-sum": np.nan}]
)
def test_figures_that_make_no_sense_are_refused(finished, figures):
    def boast(content):
        content["train"] = MetricRecord({**content["train"], **figures})

    run = finished(4, of_one("mask", boast), **{**DROPPING, "evaluate_every": 1})
    assert any("figures make no sense" in reason for reason in run.summary["clients"]["reasons"])
    assert all(0 < line["loss"] < 10 for line in run.metrics)
