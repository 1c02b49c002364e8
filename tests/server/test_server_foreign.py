"""Other strategies on our clients: the contract for each of Flower's and for our own, what they are given, and the errors."""

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM

sys.path.insert(0, str(Path(__file__).parent))  # as a user's folder would stand on PYTHONPATH

import own_strategies

from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.messages import TrainReport
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.foreign import ForeignStrategy
from fastpfrec_flwr.server.foreign_names import KNOWN, load_strategy, parse_options
from fastpfrec_flwr.server.receiving import Received
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.testing import StrategyContractError, check_strategy
from fastpfrec_flwr.trusted_node.uploads import Uploads

OPTIONS = {
    "FedAvgM": "server_learning_rate=0.5 server_momentum=0.5",
    "FedAdam": "eta=0.05",
    "FedAdagrad": "eta=0.05",
    "FedTrimmedAvg": "beta=0.1",
    "Krum": "num_malicious_nodes=10",
    "MultiKrum": "num_malicious_nodes=10 num_nodes_to_select=80",
    "Bulyan": "num_malicious_nodes=2",
}

# ---- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_flowers_own_keep_the_contract(name):
    # Krum keeps one upload of a round: a hundredth of what the mean learns from.
    report = check_strategy(f"flwr:{name}", OPTIONS.get(name, ""), learns=name != "Krum")
    assert report.refused == 12 * 2


def test_ours_keeps_the_contract():
    assert check_strategy().ndcg > 0.2
    settings = {"node-aggregator": "geometric-median", "server-step": "momentum", "server-learning-rate": 0.3}
    check_strategy(settings=settings)


def test_a_users_own_keeps_the_contract_by_name_and_as_an_object():
    by_name = check_strategy("own_strategies:FromScratch", "share=0.5", settings={"num-rounds": 6})
    given = check_strategy(own_strategies.FromScratch(0.5), settings={"num-rounds": 6})
    made = check_strategy(lambda: own_strategies.FromScratch(0.5), settings={"num-rounds": 6})
    assert by_name.table.tobytes() == given.table.tobytes() == made.table.tobytes()
    with pytest.raises(ValueError, match="options go with a strategy's name"):
        check_strategy(FedAvg(), "eta=1")


@pytest.mark.parametrize(
    ("strategy", "broken"),
    [
        (own_strategies.Restless(), "is deterministic"),
        (own_strategies.Answers("nothing"), "the model never moved"),
        (own_strategies.Answers("random"), "learns: test NDCG@20 is"),
    ],
    ids=lambda value: getattr(value, "answer", None),
)
def test_the_contract_finds_what_is_broken(strategy, broken):
    with pytest.raises(StrategyContractError, match=broken):
        check_strategy(strategy, settings={"num-rounds": 2, "evaluate-every": 2})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("other key", "must return the array 'item-table' and no other, got \\['table'\\]"),
        ("other shape", r"must return a table of shape \(400, 16\), got \(399, 16\)"),
        ("infinity", "returned a table that is not finite"),
    ],
)
def test_what_is_no_table_ends_the_run_with_the_strategys_name(answer, message):
    with pytest.raises(RunError, match=f"strategy Answers, round 1: {message}"):
        check_strategy(own_strategies.Answers(answer))


# ---- what a strategy is given ----------------------------------------------------------------------------------------


def foreign(make=FedAvg, clients=3, **changes):
    values = {**default_values(), "clients-per-round": clients, "num-trusted-nodes": 1, "strategy": "x:Y", **changes}
    return ForeignStrategy(parse_run_config(values), make, "x:Y")


def test_it_fixes_no_rows():
    with pytest.raises(RunError, match="strategy x:Y moves all rows: train-items must be 'all'"):
        foreign().fix_rows(np.ones(3, bool))


def uploads(cover=0.0):
    """Two clients, three items, k = 2: the first changes row 0 by (1, 2), the second rows 0 and 2."""
    return Uploads(
        np.array([9, 4], np.uint64), np.array([0, 1, 3]), np.array([0, 0, 2], np.int32),
        np.array([[1, 2], [3, 4], [5, 6]], np.float32), cover,
    )  # fmt: skip


@pytest.fixture
def task_identity():
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1


def test_replies_by_hand(task_identity):
    strategy = foreign()
    table = np.array([[10, 10], [20, 20], [30, 30]], np.float32)
    strategy.begin("train", ServerState.start(table))
    strategy._calls = [Message(RecordDict(), node, "train") for node in (1, 2)]
    first, second = strategy._replies([uploads()], 1)
    # In the order of nonces: 4, then 9.
    np.testing.assert_array_equal(first.content["arrays"]["item-table"].numpy(), [[13, 14], [20, 20], [35, 36]])
    np.testing.assert_array_equal(second.content["arrays"]["item-table"].numpy(), [[11, 12], [20, 20], [30, 30]])
    assert [reply.content["metrics"]["num-examples"] for reply in (first, second)] == [1, 1]
    assert [reply.metadata.src_node_id for reply in (first, second)] == [1, 2]
    noised = strategy._replies([uploads(0.5)], 1)[0].content["arrays"]["item-table"].numpy()
    np.testing.assert_array_equal(noised[[0, 2]], [[13, 14], [35, 36]])
    assert (noised[1] != 20).all(), "cover noise is drawn"
    outcome = strategy._aggregate(1, Received([uploads()], [TrainReport(1, 0, 0.0, 0)], [], 0.0))
    np.testing.assert_array_equal(strategy.state.item_table, [[12, 13], [20, 20], [32.5, 33]])
    assert outcome.moved
    assert strategy.state.steps == 1


def test_nothing_arrived_leaves_the_model(task_identity):
    strategy = foreign()
    table = np.ones((3, 2), np.float32)
    strategy.begin("train", ServerState.start(table))
    outcome = strategy._aggregate(1, Received([], [], ["all bad"], 0.0))
    assert not outcome.moved
    assert outcome.refused == ["all bad"]
    np.testing.assert_array_equal(strategy.state.item_table, table)


def test_each_phase_begins_with_a_fresh_strategy():
    made = []

    def make():
        made.append(FedAvgM(server_momentum=0.5))
        return made[-1]

    strategy = foreign(make)
    for phase in ("train", "refit"):
        strategy.begin(phase, ServerState.start(np.ones((3, 2), np.float32)))
    assert strategy._strategy is made[-1]
    assert len({id(each) for each in made}) == len(made) >= 3


def test_too_much_memory_is_refused_with_what_would_fit():
    strategy = foreign(clients=1000, **{"strategy-memory": 0.001})
    strategy._nodes = type("Nodes", (), {"num_users": 5000})()
    with pytest.raises(RunError, match=r"1000 x 0.0 MB = 0.01 GB.*strategy-memory allows 0.001 GB.*at most 125"):
        strategy.begin("train", ServerState.start(np.ones((1000, 2), np.float32)))


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_the_log_says_that_the_tier_is_bypassed(finished):
    run = finished(strategy="flwr:FedAvg", num_rounds=2, evaluate_every=2)
    assert "100 clients a round to flwr:FedAvg on the server, past the trusted nodes" in run.log
    assert "no trusted nodes and no checks" in run.log
    assert run.summary["clients"]["isolated"] == 0


@pytest.mark.parametrize("strategy", ["flwr:FedAdam", "flwr:FedMedian"])
def test_supernodes_and_arrival_change_nothing(finished, strategy):
    changes = {"strategy": strategy, "num_rounds": 3, "evaluate_every": 3}
    finished(1, **changes).assert_same(finished(5, **changes))


def test_fedavg_is_our_plain_average_over_one_node(finished):
    """The same clients, the same mean: equal but for float32 sums and the draw of the cover noise, of which there is none."""
    same = {"num_rounds": 3, "evaluate_every": 3, "noise": "none", "noise_scale": 0.0}
    theirs = finished(strategy="flwr:FedAvg", **same)
    ours = finished(tier="direct", server_step="average", server_learning_rate=1.0, node_z_threshold=0.0, **same)
    np.testing.assert_allclose(theirs.table, ours.table, atol=2e-4)


def test_a_share_of_the_clients(finished):
    run = finished(strategy="flwr:FedAvg", strategy_options="fraction_train=0.5", num_rounds=2, evaluate_every=2)
    assert run.summary["clients"]["trained"] == 2 * 50


def test_refit_and_resume(finished, tmp_path):
    run = finished(strategy="flwr:FedAdam", refit=True, num_rounds=4, evaluate_every=2)
    assert run.summary["refit"] is True
    first = finished(strategy="flwr:FedAvg", num_rounds=4, evaluate_every=2, checkpoint_every=2)
    again = finished(
        strategy="flwr:FedAvg", num_rounds=4, evaluate_every=2, checkpoint_every=2,
        resume_from=str(first.folder / "checkpoints" / "latest.npz"),
    )  # fmt: skip
    assert "starts anew" in again.log


def test_more_clients_than_there_are_is_an_error_not_a_wait(finished):
    with pytest.raises(RunError, match=r"waits for more clients than a round has \(100\).*min_available_nodes"):
        finished(strategy="flwr:FedAvg", strategy_options="min_available_nodes=500")


def test_a_strategy_that_talks_to_clients_itself_is_told_that_nobody_hears():
    with pytest.raises(RunError, match="sends messages of its own"):
        check_strategy(own_strategies.Sends())


# ---- names and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flwr:FedMagic", "", "FedMagic is none of Flower's; known are 'flwr:FedAvg', 'flwr:FedAvgM'"),
        ("flwr:FedProx", "", "FedProx needs more of the clients than they send"),
        ("no_such_module:Thing", "", "module 'no_such_module' cannot be imported .*PYTHONPATH"),
        ("own_strategies:Missing", "", "module 'own_strategies' has no 'Missing'"),
        ("own_strategies:NoStrategy", "", "must be a subclass of flwr.serverapp.strategy.Strategy"),
        ("own_strategies:NOT_A_CLASS", "", "must be a subclass of flwr.serverapp.strategy.Strategy, got 3"),
        ("flwr:FedAdam", "etta=0.1", "cannot be made of .*etta.*it takes .*eta, eta_l"),
        ("flwr:FedTrimmedAvg", "beta=0.7", "`beta` must be in the range"),
        ("flwr:FedAdam", "eta", "must be 'name=value' with blanks between, got 'eta'"),
        ("flwr:FedAdam", "eta=1 eta=2", "eta is given twice"),
        ("flwr:FedAdam", "eta='1", "cannot be split"),
    ],
)
def test_errors_of_names_and_options(name, options, message):
    with pytest.raises(ConfigError, match=message):
        load_strategy(name, options)


def test_an_unknown_name_ends_a_run_before_it_begins(finished):
    with pytest.raises(ConfigError, match="known are 'flwr:FedAvg'"):
        finished(strategy="flwr:Fed")


def test_options_are_read_and_nothing_is_evaluated():
    text = "eta=0.1 n=3 on=True none=None name=plain quoted='two words' path=__import__('os').getcwd() list=[1,2]"
    assert parse_options(text) == {
        "eta": 0.1, "n": 3, "on": True, "none": None, "name": "plain", "quoted": "two words",
        "path": "__import__(os).getcwd()", "list": [1, 2],
    }  # fmt: skip
    assert parse_options("") == {}
    made = load_strategy("flwr:FedAdam", "eta=0.25 beta_1=0.5")()
    assert (made.eta, made.beta_1) == (0.25, 0.5)
