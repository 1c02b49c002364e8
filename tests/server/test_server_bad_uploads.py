"""Every bad upload of the list, against the real strategy, through Flower's own bytes: each is refused and costs one client."""

import re
import tracemalloc
from functools import lru_cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.proto.recorddict_pb2 import MetricRecord as ProtoMetricRecord

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.device_strategy import add_up_metric_sums
from fastpfrec_flwr.server.nodes import Exchange, SuperNodes
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.simulation.grid import FIRST_NODE
from fastpfrec_flwr.trusted_node.roster import assign_nodes
from tests.hostile import BAD, ITEMS, Cohort, K, description, honest_content, nonce_of, spoiled
from tests.wire import WireGrid, with_body

CLIENTS, LIAR = 8, 5
SETTINGS = {
    "embedding-dim": K, "clients-per-round": CLIENTS, "num-trusted-nodes": 2, "threads": 1, "num-rounds": 5, "round-timeout": 0.2,
}  # fmt: skip


def a_strategy(clients=CLIENTS, **changes):
    values = {**default_values(), **SETTINGS, **{key.replace("_", "-"): value for key, value in changes.items()}}
    strategy = build_strategy(parse_run_config(values))
    strategy.attach(
        SuperNodes([FIRST_NODE + i for i in range(clients)], [description(i) for i in range(clients)], []), "s"
    )
    table = np.random.default_rng(0).normal(size=(ITEMS, K)).astype(np.float32)
    strategy.begin("train", ServerState.start(table))
    return strategy


def a_grid(faults=None, size=1.0, clients=CLIENTS):
    return WireGrid(Cohort(faults or {}, size), clients, {})


def fails(message, content):
    raise ZeroDivisionError("out of battery")


@lru_cache(maxsize=2)
def without_the_liar(rounds=1):
    """What the honest clients alone make of the table."""
    strategy = a_strategy()
    for server_round in range(1, rounds + 1):
        faults = {LIAR: fails} if server_round == rounds else {}
        assert strategy.run_round(a_grid(faults), server_round).trained == CLIENTS - bool(faults)
    return strategy.state.item_table.tobytes()


def assert_cost_one(strategy, outcome, reason, rounds=1):
    assert outcome.trained == CLIENTS - 1
    assert len(outcome.refused) == 1
    assert re.search(reason, outcome.refused[0]), outcome.refused
    assert outcome.moved
    assert outcome.isolated == 0
    assert strategy.state.item_table.tobytes() == without_the_liar(rounds), "the others' round must be untouched"


@pytest.mark.parametrize("name", BAD)
def test_it_costs_one_client(name):
    spoil, reason = BAD[name]
    strategy = a_strategy()
    outcome = strategy.run_round(a_grid({LIAR: spoiled(spoil)}), 1)
    assert_cost_one(strategy, outcome, reason)


def no_value(partition, contents):
    """`positives` of the liar without a value, which Flower's own records cannot hold and its decoder does not expect."""

    def change(body):
        record = ProtoMetricRecord.FromString(body)
        for item in record.items:
            if item.key == "positives":
                item.value.Clear()
        return record.SerializeToString()

    if partition != LIAR:
        return contents
    return {
        name: with_body(content, change) if content.startswith(b"MetricRecord") else content
        for name, content in contents.items()
    }


def test_a_count_of_none_costs_one_client():
    """Flower's grid raises on it, which used to end the run."""
    strategy, grid = a_strategy(), a_grid()
    strategy._exchange = Exchange(one_by_one=True)  # as with real devices
    grid.tamper = no_value
    assert_cost_one(strategy, strategy.run_round(grid, 1), "reply cannot be read: AttributeError")


def test_where_replies_are_pulled_together_it_costs_the_others_one_round_only():
    """In the first round everybody whose reply was pulled with it is gone, but not the run; from then on it costs one client."""
    strategy, grid = a_strategy(), a_grid()
    grid.tamper = no_value
    first = strategy.run_round(grid, 1)
    assert first.trained == 0
    assert len(first.refused) == CLIENTS
    assert not first.moved
    second = strategy.run_round(grid, 2)
    assert second.trained == CLIENTS - 1
    assert second.moved
    assert len(second.refused) == 1
    assert "reply cannot be read" in second.refused[0]


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda content: content[: len(content) // 2], id="half of it"),
        pytest.param(lambda content: b"", id="nothing"),
        pytest.param(lambda content: b"os.system " + content, id="another kind of object"),
        pytest.param(lambda content: content.replace(b"\0", b" ", 1), id="no head"),
    ],
)
@pytest.mark.parametrize(
    "kind", [b"MetricRecord", b"ConfigRecord", b"ArrayRecord", b"Array ", b"RecordDict", b"Message"]
)
def test_bytes_that_flower_cannot_read_cost_one_client(kind, tamper):
    strategy, grid = a_strategy(), a_grid()
    strategy._exchange = Exchange(one_by_one=True)
    strategy.run_round(grid, 1)
    grid.tamper = lambda partition, contents: {
        name: tamper(content) if partition == LIAR and content.startswith(kind) else content
        for name, content in contents.items()
    }
    outcome = strategy.run_round(grid, 2)
    assert outcome.trained == CLIENTS - 1
    assert len(outcome.refused) == 1
    assert outcome.moved
    assert strategy.state.item_table.tobytes() == without_the_liar(2)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_superlink_that_cannot_be_reached_for_a_moment_costs_nobody(one_by_one):
    class Shaky(WireGrid):
        calls = 0

        def pull_messages(self, message_ids):
            self.calls += 1
            if self.calls % 3:
                raise ConnectionError("try again")
            return super().pull_messages(message_ids)

    strategy, grid = a_strategy(round_timeout=60.0), Shaky(Cohort({}), CLIENTS, {})  # on a busy machine too
    strategy._exchange = Exchange(one_by_one)
    outcome = strategy.run_round(grid, 1)
    assert (outcome.trained, outcome.refused) == (CLIENTS, [])


def test_a_header_of_10_12_rows_allocates_nothing():
    for name in ("npy header of 10^12 rows", "npy header of 10^12 row ids", "count of 10^12"):
        strategy, grid = a_strategy(), a_grid({LIAR: spoiled(BAD[name][0])})
        strategy.run_round(grid, 1)  # whatever is set up once
        tracemalloc.start()
        outcome = strategy.run_round(grid, 2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(outcome.refused) == 1
        assert peak < 2_000_000


def test_a_duplicate_costs_one_client():
    def copies(message, content):
        return honest_content(0, 1, messages.decode_query(message.content).table_version)

    strategy = a_strategy()
    assert_cost_one(strategy, strategy.run_round(a_grid({LIAR: copies}), 1), "^upload came twice")


def test_a_supernode_that_stands_in_for_others_costs_itself():
    """Three uploads where one was asked for."""

    def three(message, content):
        parts = [honest_content(20 + i, 1)["uploads"] for i in range(3)]
        found = {name: np.concatenate([part[name].numpy() for part in parts]) for name in ("nonces", "rows", "values")}
        found["pointer"] = np.array([0, 5, 10, 15])
        content["uploads"] = ArrayRecord({name: Array(each) for name, each in found.items()})
        return content

    strategy = a_strategy()
    assert_cost_one(strategy, strategy.run_round(a_grid({LIAR: three}), 1), "3 clients, at most 1 were asked")


@pytest.mark.parametrize("one_by_one", [False, True])
def test_whoever_was_asked_is_the_sender(one_by_one):
    class Forged(WireGrid):
        def _through_bytes(self, reply):
            message = super()._through_bytes(reply)
            message.metadata.__dict__["_src_node_id"] = FIRST_NODE
            return message

    grid = Forged(Cohort({}), 3, {})
    questions = [Message(messages.encode_query(a_strategy().order(1)), FIRST_NODE + i, "train") for i in range(3)]
    replies = list(Exchange(one_by_one)(grid, questions, 1.0))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [FIRST_NODE, FIRST_NODE + 1, FIRST_NODE + 2]


def test_figures_of_more_users_than_a_supernode_has_are_refused():
    strategy = a_strategy()
    sums = MetricSums(2, 9, {10: 3, 20: 6}, {10: 2, 20: 2}, {10: 1 << 39, 20: 1 << 39}, {10: 7, 20: 5})
    question = Message(messages.encode_query(strategy.order(1)), FIRST_NODE, "evaluate")
    too_many = Message(messages.encode_metric_sums({"test": sums}), reply_to=question)
    assert strategy.aggregate_evaluate(1, [too_many]) is None
    assert strategy.evaluation_refused == ["evaluate reply: figures of more users than the SuperNode has (1)"]
    fewer = MetricSums(1, 9, {10: 1, 20: 1}, {10: 1, 20: 1}, {10: 1, 20: 1}, {10: 1, 20: 1})
    reply = Message(messages.encode_metric_sums({"test": fewer}), reply_to=question)
    nodes = SuperNodes([FIRST_NODE], [description(0)], [])
    assert add_up_metric_sums([reply, too_many, reply], nodes) == ({"test": fewer + fewer}, strategy.evaluation_refused)


@pytest.mark.parametrize(
    ("relabelled", "reason"),
    [
        ((), "reply to round 1 in round 2"),
        (("server-round",), "another version of the item table"),
        (("server-round", "table-version"), "replayed from the last round"),
    ],
)
def test_last_rounds_upload_replayed_costs_one_client(relabelled, reason):
    kept = {}

    def replays(message, content):
        order = messages.decode_query(message.content)
        if order.server_round == 1:
            kept["reply"] = honest_content(LIAR, 1, order.table_version)
            return content
        for key in relabelled:
            kept["reply"]["train"][key] = content["train"][key]
        return kept["reply"]

    strategy, grid = a_strategy(), a_grid({LIAR: replays})
    assert strategy.run_round(grid, 1).trained == CLIENTS
    assert_cost_one(strategy, strategy.run_round(grid, 2), reason, rounds=2)


def test_an_upload_made_in_another_phase_costs_one_client():
    """A refit counts its rounds from 1 again; a reply of the training with that number is none of its own."""
    kept = {}

    def late(message, content):
        return kept.setdefault(messages.decode_query(message.content).server_round, content)

    strategy, grid = a_strategy(), a_grid({LIAR: late})
    strategy.run_round(grid, 1)
    strategy.begin("refit", strategy.state)
    outcome = strategy.run_round(grid, 1)
    assert outcome.trained == CLIENTS - 1
    assert "another version of the item table" in outcome.refused[0]


def test_all_clients_failing_leaves_the_model():
    strategy = a_strategy()
    before = strategy.state.item_table.tobytes()
    outcome = strategy.run_round(a_grid(dict.fromkeys(range(CLIENTS), fails)), 1)
    assert (outcome.trained, outcome.moved, len(outcome.refused)) == (0, False, CLIENTS)
    assert all("out of battery" in reason for reason in outcome.refused)
    assert outcome.why_unmoved == "nothing healthy arrived"
    assert strategy.state.item_table.tobytes() == before


def test_one_hanging_is_cut_off_and_named():
    strategy, grid = a_strategy(), a_grid()
    grid.silent = frozenset({LIAR})
    assert_cost_one(strategy, strategy.run_round(grid, 1), r"no answer within 0\.2 s")


def test_one_client_left_on_a_node_is_averaged():
    """Two clients on two nodes, one on each: nothing to compare it with, and nothing that breaks."""
    nodes = 2
    for server_round in range(1, 40):
        drawn = assign_nodes(np.array([nonce_of(i, server_round) for i in range(2)], np.uint64), nodes)
        if set(drawn.tolist()) == {0, 1}:
            break
    for check in ("clients", "paper", "absolute", "none"):
        strategy = a_strategy(clients=2, check=check)
        outcome = strategy.run_round(a_grid(clients=2), server_round)
        assert (outcome.trained, outcome.isolated, outcome.moved, outcome.refused) == (2, 0, True, [])


def test_all_nodes_isolated_leaves_the_model_and_says_so():
    strategy = a_strategy(check="absolute", clip_norm=0.01, noise="none", noise_scale=0.0, upload="sparse")
    before = strategy.state.item_table.tobytes()

    def without_cover(message, content):
        content["cover"]["cover-scale"] = 0.0
        return content

    outcome = strategy.run_round(a_grid(dict.fromkeys(range(CLIENTS), without_cover), size=50.0), 1)
    assert outcome.trained == outcome.isolated == CLIENTS
    assert outcome.isolated_nodes == 2
    assert not outcome.moved
    assert outcome.why_unmoved == "nothing healthy arrived"
    assert strategy.state.item_table.tobytes() == before


def test_the_list_is_complete():
    """Each item of the list of bad uploads has a test: here by name, or of its own above."""
    above = {
        "count of none", "duplicate", "last round's upload replayed", "all clients failing", "one hanging",
        "one client left on a node", "all nodes isolated",
    }  # fmt: skip
    assert not above & set(BAD)
    assert len(above) + len(BAD) == 44


def test_reasons_are_bounded_lines():
    """A liar cannot fill the log or forge a line of it."""

    def shouts(message, content):
        return messages.encode_refusal("x\nround 1: all is well\x1b[2J" + "y" * 10**6)

    outcome = a_strategy().run_round(a_grid({LIAR: shouts}), 1)
    (reason,) = outcome.refused
    assert len(reason) <= messages.LONGEST_REASON
    assert reason.isprintable()
