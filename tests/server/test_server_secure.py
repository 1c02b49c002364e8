"""Rounds on secure sums, through the real apps: the same model as open uploads give, drop-outs, liars, and who sees what."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.client.app import app as honest_app
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.data.synthetic import synthetic_interactions
from fastpfrec_flwr.messages import encode_array
from fastpfrec_flwr.messages.records import encode_refusal
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import Setting
from fastpfrec_flwr.server import secure as server_secure
from fastpfrec_flwr.server.app import app as server_app
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.nodes import SuperNodes
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.whole_runs import Finished, settings_of

SECURE = {
    "secure_sum": True, "check": "none", "num_trusted_nodes": 2, "clients_per_round": 12, "num_rounds": 3,
    "evaluate_every": 3, "embedding_dim": 8,
}  # fmt: skip
GAUSSIAN = {**SECURE, "noise": "gaussian", "noise_placement": "distributed"}


class Between:
    """A ClientApp whose replies somebody changes on the way: `change(action, partition, reply) -> reply or None`."""

    def __init__(self, change):
        self._change = change

    def __call__(self, message, context):
        reply = honest_app(message, context)
        action = message.metadata.message_type
        if not action.startswith("train."):
            return reply
        changed = self._change(action.removeprefix("train."), context.node_config["partition-id"], reply)
        return reply if changed is None else Message(changed, reply_to=message)


def test_secure_sums_give_the_model_that_open_uploads_give(finished):
    """Without noise, and with all clients in one node, both are the mean of the same uploads on the same grid."""
    plain = {"noise": "none", "noise_scale": 0.0, "num_trusted_nodes": 1}
    open_run = finished(**{**SECURE, **plain, "secure_sum": False})
    secure_run = finished(**{**SECURE, **plain})
    np.testing.assert_allclose(secure_run.table, open_run.table, atol=1e-6)
    assert secure_run.summary["clients"]["trained"] == open_run.summary["clients"]["trained"] == 36
    assert "behind masks" in secure_run.log


def test_runs_repeat_whatever_the_masks_and_the_number_of_supernodes(finished):
    runs = [finished(num_supernodes=n, **GAUSSIAN) for n in (1, 1, 3)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.table, runs[0].table)
    assert runs[0].summary["clients"]["refused"] == 0
    assert runs[0].summary["rounds_without_update"] == 0


def test_noise_of_the_sum_is_there(finished):
    """One step of the average on both: they differ by noise of sigma / n on every coordinate."""
    step = {"num_rounds": 1, "evaluate_every": 1, "server_step": "average", "server_learning_rate": 1.0,
            "server_schedule": "constant", "num_trusted_nodes": 1}  # fmt: skip
    quiet = finished(**{**SECURE, **step, "noise": "none", "noise_scale": 0.0})
    noisy = finished(**{**GAUSSIAN, **step, "noise_scale": 6.0})
    noise = noisy.table - quiet.table
    assert noise.std() == pytest.approx(6.0 / 12, rel=0.05)
    assert abs(noise.mean()) < 4 * noise.std() / np.sqrt(noise.size)


@pytest.mark.parametrize("step", ["hello", "share", "mask", "reveal"])
def test_a_supernode_that_fails_at_any_step_costs_itself(finished, step):
    def fail(action, partition, reply):
        return encode_refusal("out of battery") if (action, partition) == (step, 1) else None

    # Of four SuperNodes one fails, with about three of the twelve clients; up to five may.
    changes = {**GAUSSIAN, "num_trusted_nodes": 1, "dropout_fraction": 0.45}
    run = finished(num_supernodes=4, client_app=Between(fail), **changes)
    assert run.summary["rounds_without_update"] == 0
    assert any("out of battery" in reason for reason in run.summary["clients"]["reasons"])
    assert 18 <= run.summary["clients"]["trained"] <= 36


def test_a_sum_that_loses_too_many_is_lost_and_the_model_stays(finished):
    def fail(action, partition, reply):
        return encode_refusal("out of battery") if (action, partition) == ("mask", 1) else None

    run = finished(num_supernodes=2, client_app=Between(fail), **GAUSSIAN)  # dropout-fraction 0: nobody may fail
    assert run.summary["rounds_without_update"] == 3
    assert any("secure sum of node" in reason for reason in run.summary["clients"]["reasons"])


def test_what_arrives_in_the_clear_is_nothing_but_chance(finished):
    seen = []

    def look(action, partition, reply):
        if action == "mask":
            seen.append(np.array(reply.content["masked"]["steps"].numpy()))

    finished(
        client_app=Between(look),
        **{**SECURE, "noise": "none", "noise_scale": 0.0, "num_rounds": 1, "evaluate_every": 1},
    )
    tables = np.concatenate(seen)
    assert tables.shape == (12, 400 * 8)
    high = tables >> np.uint64(56)
    counts = np.bincount(high.ravel().astype(np.int64), minlength=256)
    from scipy import stats

    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_lying_table_is_inside_the_sum_and_a_wrong_shape_is_not(finished):
    """What is behind masks cannot be checked: a constant added to one table is in the sum. A table of another size is refused."""

    def lie(action, partition, reply):
        if action == "mask" and partition == 0:
            steps = np.array(reply.content["masked"]["steps"].numpy())
            steps[0] += np.uint64(1 << 20)  # 1.0 on every coordinate
            reply.content["masked"] = ArrayRecord(
                {"nonces": reply.content["masked"]["nonces"], "steps": encode_array(steps)}
            )
            return reply.content
        return None

    step = {"num_rounds": 1, "evaluate_every": 1, "server_step": "average", "server_learning_rate": 1.0,
            "server_schedule": "constant", "num_trusted_nodes": 1, "noise": "none", "noise_scale": 0.0}  # fmt: skip
    honest = finished(**{**SECURE, **step})
    poisoned = finished(client_app=Between(lie), **{**SECURE, **step})
    np.testing.assert_allclose(poisoned.table - honest.table, 1 / 12, atol=1e-5)

    def cut(action, partition, reply):
        if action == "mask" and partition == 0:
            steps = np.array(reply.content["masked"]["steps"].numpy())[:, :-1]
            reply.content["masked"] = ArrayRecord(
                {"nonces": reply.content["masked"]["nonces"], "steps": encode_array(steps)}
            )
            return reply.content
        return None

    refused = finished(client_app=Between(cut), **{**SECURE, **step})
    assert any("steps" in reason for reason in refused.summary["clients"]["reasons"])


def test_the_ledger_of_secure_sums():
    """12 clients at 2 nodes: sums of 6; a third may fail: 4 shares of sigma / sqrt(4). Nodes see no more than the server."""
    config = parse_run_config(
        settings_of({**GAUSSIAN, "noise_scale": 3.0, "clip_norm": 1.0, "dropout_fraction": 1 / 3, "evaluate_every": 0})
    )
    assert config.effective_noise_scale == pytest.approx(1.5)
    ledger = build_ledger(Setting(config, 600, 400))
    from dp_accounting import get_epsilon_gaussian

    expected = get_epsilon_gaussian(1.5, 1e-5)
    for observer in ("trusted node", "server"):
        assert ledger.of(observer, scope="one").epsilon == pytest.approx(expected)
        assert "at least 4 clients" in ledger.of(observer, scope="one").reason
    assert ledger.of("final model").epsilon == ledger.of("server").epsilon
    alone = build_ledger(Setting(config, 600, 400, colluding=3))
    assert alone.of("trusted node", scope="one").epsilon == pytest.approx(get_epsilon_gaussian(0.75, 1e-5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"check": "clients"}, "check must be 'none' with secure-sum"),
        ({"tier": "direct"}, "tier must be 'trusted-nodes'"),
        ({"node_aggregator": "median"}, "node-aggregator must be 'mean'"),
        ({"upload": "sparse"}, "upload must be 'dense'"),
        ({"upload_precision": "float16"}, "upload-precision must be 'float32'"),
        ({"clients_per_round": 5}, "at least 3 times"),
    ],
)
def test_what_secure_sums_do_not_go_with(changes, words):
    from fastpfrec_flwr.config import ConfigError

    with pytest.raises(ConfigError, match=words):
        parse_run_config(settings_of({**SECURE, **changes}))


def among_devices(tmp_path, clients):
    """A run of one round among four real devices with six people each."""
    made = synthetic_interactions()
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "own.csv"
    pairs = [pair for pair in zip(made.users.tolist(), made.items.tolist(), strict=True) if pair[0] < 6]
    path.write_text("user,item\n" + "".join(f"u{user},{item}\n" for user, item in pairs))
    Catalogue(tuple(str(n) for n in range(400))).save(tmp_path / "catalogue.json")
    values = settings_of({**GAUSSIAN, "num_rounds": 1, "evaluate_every": 1, "clients_per_round": clients})
    values["output-dir"] = str(tmp_path / "run")
    grid = InProcessGrid(honest_app, 4, values)
    for number, context in enumerate(grid.contexts.values()):
        context.node_config = {
            "state-dir": str(tmp_path / f"device-{number}"), "catalogue": str(tmp_path / "catalogue.json"),
            "data-path": str(path),
        }  # fmt: skip
    run_in_process(server_app, grid, values)
    return Finished(tmp_path / "run")


def test_real_devices_count_on_the_runs_own_size_of_a_sum(tmp_path, monkeypatch):
    """A server that opens sums of a few gets nothing from them: each device knows how many there must be."""
    assert among_devices(tmp_path / "a", 24).summary["clients"]["trained"] == 24
    monkeypatch.setattr(server_secure, "least_in_sum", lambda clients, nodes, fraction: 0)
    monkeypatch.setattr(SuperNodes, "shares", lambda nodes, clients, seed, server_round: [2] * 4)
    few = among_devices(tmp_path / "b", 24)
    assert few.summary["clients"]["trained"] == 0
    assert any("this device counts on 12 clients" in reason for reason in few.summary["clients"]["reasons"])


def test_fewer_devices_than_the_sums_count_on(tmp_path):
    with pytest.raises(
        RunError, match=r"clients-per-round must be <= the users of all devices \(24\) with secure-sum, got 26"
    ):
        among_devices(tmp_path, 26)
