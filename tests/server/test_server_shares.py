"""Who is asked for how many clients: in proportion to the users, in each round others, never more than there are."""

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.messages import Description
from fastpfrec_flwr.messages.secure import Hello, encode_hellos
from fastpfrec_flwr.privacy.masking import group_threshold
from fastpfrec_flwr.privacy.secure_sum import Member
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.nodes import SuperNodes
from fastpfrec_flwr.server.secure import _Sums
from fastpfrec_flwr.server.steps import ServerState
from tests.hostile import ITEMS, K
from tests.whole_runs import settings_of

pytestmark = pytest.mark.usefixtures("inside_a_run")


def devices(users, partition=-1):
    descriptions = [Description(partition, each, ITEMS, "catalogue", "data", "name") for each in users]
    return SuperNodes(list(range(100, 100 + len(users))), descriptions, [])


def test_simulated_supernodes_are_told_the_total():
    assert devices([3, 4], partition=0).shares(5, 1, 1) == [5, 5]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 99))
def test_each_gets_its_share_but_for_one(users, clients, server_round):
    found = np.array(devices(users).shares(clients, 7, server_round))
    wanted = min(clients, sum(users))
    assert found.sum() == wanted
    exact = wanted * np.array(users) / max(sum(users), 1)
    assert (np.floor(exact - 1e-9) <= found).all()
    assert (found <= np.minimum(np.ceil(exact + 1e-9), users)).all()


@pytest.mark.parametrize(("users", "clients"), [([1] * 10, 4), ([1, 1, 1, 50], 8)])
def test_over_the_rounds_every_user_has_the_same_chance(users, clients):
    """Means of 4,000 rounds, each within four standard deviations of its share (a coin's: at most 1/2 a round)."""
    nodes = devices(users)
    found = np.array([nodes.shares(clients, 1, server_round) for server_round in range(1, 4001)])
    exact = clients * np.array(users) / sum(users)
    part = exact - np.floor(exact)
    assert (np.abs(found.mean(axis=0) - exact) <= 4 * np.sqrt(part * (1 - part) / 4000) + 1e-12).all()
    assert nodes.shares(clients, 1, 3) == nodes.shares(clients, 1, 3)
    assert len(np.unique(found, axis=0)) > len(users) - 1


def secure_strategy(nodes):
    settings = {"secure_sum": True, "check": "none", "clients_per_round": 6, "num_trusted_nodes": 1, "embedding_dim": K}
    strategy = build_strategy(parse_run_config(settings_of(settings)))
    strategy.attach(nodes, "s")
    strategy.begin("train", ServerState.start(np.zeros((ITEMS, K), np.float32)))
    return strategy


def test_a_secure_round_with_nobody_on_line_leaves_the_model():
    strategy = secure_strategy(SuperNodes([], [], []))

    class Nobody:
        def push_messages(self, messages):
            return [message.metadata.message_id for message in messages]

        def pull_messages(self, message_ids):
            return []

    outcome = strategy.run_round(Nobody(), 1)
    assert (outcome.trained, outcome.moved) == (0, False)


def test_in_a_secure_sum_a_device_names_no_more_clients_than_it_was_asked_for(monkeypatch):
    nodes = devices([1, 1])
    strategy = secure_strategy(nodes)
    orders = {node: strategy.order(1, 1) for node in nodes.ids}

    def replies(grid, action, contents, sums):
        for node, clients in ((100, [1, 2]), (101, [3])):
            question = Message(messages.encode_query(orders[node]), node, "train.hello")
            hellos = {client: Member(b"sum", 0).hello() for client in clients}
            yield node, Message(encode_hellos(hellos), reply_to=question)

    monkeypatch.setattr(strategy, "_ask", replies)
    sums = _Sums()
    assert set(strategy._hellos(None, orders, sums, nodes.most_uploads(2, 1, 1))) == {3}
    assert sums.refused == ["hello: 2 distinct nonces for 2 keys, at most 1"]


def test_a_secure_group_is_never_smaller_than_the_ledger_counts():
    """Of six clients in one group none may fail; where five say hello, no sum is opened."""
    nodes = devices([1] * 6)
    strategy = secure_strategy(nodes)
    hello = Hello(bytes(32), bytes(32))
    least = group_threshold(6, strategy._config.dropout_fraction)
    for clients in (6, least, least - 1):
        sums = _Sums()
        groups = strategy._groups(dict.fromkeys(range(1, clients + 1), hello), 1, sums)
        assert [group.threshold for group in groups] == ([least] if clients >= least else [])
        assert len(sums.refused) == (0 if clients >= least else clients)
    assert sums.refused[0].startswith(
        f"secure sum: {least - 1} clients of a group came, at least {least} are wanted (drop"
    )
