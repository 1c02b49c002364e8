"""The loop around the rounds: what it leaves, and what it refuses before round 1."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp

from fastpfrec_flwr import messages
from fastpfrec_flwr.client.app import app as client_app
from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.server.build import build_strategy
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.simulation.grid import InProcessGrid, run_in_process
from tests.whole_runs import settings_of

METRICS = {
    "ndcg@10", "ndcg@20", "hit_ratio_micro@10", "hit_ratio_micro@20", "hit_rate_user@10", "recall@10", "recall@20", "precision@10",
}  # fmt: skip


def device_states():
    root = Path(os.environ["XDG_STATE_HOME"]) / "fastpfrec" / "clients"
    # A database's log and its index come and go with the connection that an earlier test left open.
    found = root.rglob("*") if root.exists() else []
    return {path for path in found if path.is_file() and not path.name.endswith(("-wal", "-shm"))}


def test_the_run_folder(finished):
    run = finished(checkpoint_every=6)
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        "config.json", "metrics.jsonl", "summary.json", "item_table.npz", "log.txt", "learning_curve.png", "checkpoints/latest.npz",
    }  # fmt: skip
    summary = run.summary
    assert set(summary) >= {
        "data_set", "rounds", "best_round", "validation", "test", "seconds", "peak_rss_mb", "clients", "bytes",
    }  # fmt: skip
    assert set(summary["validation"]) >= METRICS
    assert set(summary["test"]) >= METRICS
    seconds = summary["seconds"]
    assert set(seconds) == {"total", "round_median", "epoch", "clients_round", "trusted_nodes_round", "server_round"}
    assert seconds["epoch"] == pytest.approx(6 * seconds["round_median"])
    assert 0 < seconds["trusted_nodes_round"] < seconds["total"] / 12
    assert set(summary["clients"]) >= {"trained", "refused", "isolated"}
    assert summary["clients"]["trained"] == 12 * 100
    table = 400 * 16 * 4
    assert summary["bytes"] == {"down": 100 * table, "up": 100 * table, "nodes_up": 4 * table}
    config = run.json("config.json")
    assert parse_run_config(config["config"]).to_flat_dict() == config["config"]
    assert config["data"]["users"] == 600
    assert {"python", "flwr", "torch", "numpy"} <= set(config["versions"])
    assert [line["round"] for line in run.metrics] == [6, 12]
    with np.load(run.folder / "item_table.npz") as arrays:
        assert arrays["item_table"].shape == (400, 16)
        assert len(set(arrays["item_ids"].tolist())) == 400
    assert (run.folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_arrays_to_begin_with_and_metrics_of_ones_own():
    """What Flower's `start` may be given, without a run folder."""
    values = settings_of({"num_rounds": 2, "evaluate_every": 1})
    own_app, results, tables = ServerApp(), [], {}

    def measure(server_round, arrays):
        tables[server_round] = arrays["item-table"].numpy()
        return MetricRecord({"mean": float(tables[server_round].mean())}) if server_round == 2 else None

    @own_app.main()
    def main(grid, context):
        ones = messages.encode_model(np.ones((400, 16), np.float32))
        results.append(build_strategy(parse_run_config(context.run_config)).start(grid, ones, evaluate_fn=measure))

    run_in_process(own_app, InProcessGrid(client_app, 2, values), values)
    (result,) = results
    assert list(tables) == [1, 2]
    assert 0.5 < tables[1].mean() < 1.5, "the seed's own table has a mean of 0"
    assert list(result.evaluate_metrics_serverapp) == [2]
    assert result.evaluate_metrics_serverapp[2]["mean"] == pytest.approx(tables[2].mean())
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[1]["clients"] == 100
    assert result.arrays["item-table"].numpy().shape == (400, 16)


def test_a_refit_begins_from_the_given_arrays_too():
    """As if a run on train and validation had been given them: here one of learning rate zero leaves them as they are."""
    given = np.random.default_rng(5).normal(size=(400, 16)).astype(np.float32)
    values = settings_of({"num_rounds": 2, "evaluate_every": 2, "refit": True, "server_learning_rate": 1e-12})
    own_app, results = ServerApp(), []

    @own_app.main()
    def main(grid, context):
        config = parse_run_config(context.run_config)
        results.append(build_strategy(config).start(grid, messages.encode_model(given)))

    run_in_process(own_app, InProcessGrid(client_app, 2, values), values)
    np.testing.assert_allclose(results[0].arrays["item-table"].numpy(), given, atol=1e-6)


def test_device_states_stay_only_for_a_checkpoint(finished):
    before = device_states()
    finished()
    assert device_states() == before, "what the devices kept of a finished simulation is of no use to anybody"
    finished(checkpoint_every=6)
    copies = {path.name for path in device_states() - before if "round-" in path.name}
    assert copies == {f"{i}-of-2.round-{r}.sqlite3" for i in (0, 1) for r in (6, 12)}, "a resume needs them"


def test_sparse_uploads_are_counted_as_sent(finished):
    assert 0 < finished(upload="sparse").summary["bytes"]["up"] < 100 * 400 * 16 * 4


def test_more_trusted_nodes_than_users(finished):
    with pytest.raises(RunError, match=r"num-trusted-nodes must be <= the users of the data set \(600\), got 700"):
        finished(num_trusted_nodes=700, clients_per_round=1000)


def test_a_step_that_knows_the_noise_of_more_clients_than_there_are(finished):
    spectral = {"encoder": "spectral", "server_step": "posterior", "perturbation": "none"}
    with pytest.raises(RunError, match=r"clients-per-round must be <= the users of the data set \(600\).*got 601"):
        finished(**spectral, clients_per_round=601)
