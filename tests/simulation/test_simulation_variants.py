"""Every object that a configuration can ask for, in a whole run: it ends, and it learns more than chance knows."""

import pytest

CHANCE = 0.07  # NDCG@20 of random lists is 0.05 here, of popularity 0.22
ROUGH = 0.20
COSINE = {
    "loss": "ccl", "unit_rows": True, "num_negatives": 64, "item_learning_rate": 12.0, "user_weight": 0.0,
    "neighbour_weight": 1.0, "norm_exponent": 0.0, "l2": 0.0, "user_learning_rate": 0.0, "server_learning_rate": 0.1,
}  # fmt: skip

LIGHTGCN = {"encoder": "lightgcn", "leave_one_out": False, "norm_exponent": 0.0, "item_refresh_interval": 1}


@pytest.mark.parametrize(
    ("changes", "at_least"),
    [
        pytest.param({"refit": True}, ROUGH, id="refit"),
        pytest.param({"evaluate_every": 0}, ROUGH, id="evaluated once"),
        pytest.param({"upload": "sparse"}, ROUGH, id="sparse"),
        pytest.param({"upload": "sampled", "sampled_share": 0.5}, ROUGH, id="half of the rows by lot"),
        pytest.param({"noise": "none", "noise_scale": 0.0}, ROUGH, id="no noise"),
        pytest.param({"tier": "direct"}, ROUGH, id="no tier"),
        pytest.param({"check": "none", "node_z_threshold": 0.0}, ROUGH, id="no check"),
        pytest.param({"check": "paper"}, ROUGH, id="paper's check"),
        pytest.param({"check": "absolute"}, ROUGH, id="absolute check"),
        pytest.param({"perturbation": "none"}, ROUGH, id="no false items"),
        pytest.param({"perturbation": "bernoulli", "perturbation_prob": 0.02}, ROUGH, id="bernoulli false items"),
        pytest.param(COSINE, 2 * CHANCE, id="cosine contrastive"),
        pytest.param({"negatives": "per-positive", "num_negatives": 2}, ROUGH, id="negatives per positive"),
        pytest.param({"local_optimizer": "adam", "item_learning_rate": 1.0, "num_rounds": 6}, CHANCE, id="local adam"),
        pytest.param({"server_step": "average", "server_learning_rate": 1.0}, ROUGH, id="plain average"),
        pytest.param({"blend_weight": 0.5, "num_rounds": 4, "evaluate_every": 4}, CHANCE, id="blend"),
        pytest.param({"clip_norm": 0.0, "row_clip": 0.0}, ROUGH, id="no clip"),
        pytest.param({"clip_kind": "l1", "clip_norm": 1000.0}, CHANCE, id="L1 clip"),
        pytest.param({"item_refresh_interval": 0}, ROUGH, id="items never refreshed"),
        pytest.param({"item_refresh_interval": 1}, CHANCE, id="items refreshed every round"),
        pytest.param({"report_loss": False}, ROUGH, id="loss not reported"),
        pytest.param({"server_schedule": "constant", "popularity_weight": 0.0}, ROUGH, id="constant rate"),
        pytest.param({"node_aggregator": "row-median", "upload": "sparse"}, ROUGH, id="row median"),
        pytest.param({"node_aggregator": "row-trimmed-mean", "upload": "sparse"}, ROUGH, id="row trimmed mean"),
        pytest.param({"node_aggregator": "multi-krum"}, ROUGH, id="multi-krum"),
        pytest.param({"node_aggregator": "geometric-median"}, ROUGH, id="geometric median"),
        pytest.param({"node_aggregator": "centered-clipping"}, ROUGH, id="centred clipping"),
        pytest.param({"node_aggregator": "geometric-median", "tier": "direct"}, ROUGH, id="geometric median, no tier"),
        pytest.param({"server_aggregator": "median"}, CHANCE, id="median across nodes"),
        pytest.param(
            {"server_aggregator": "trimmed-mean", "trim_fraction": 0.25}, ROUGH, id="trimmed mean across nodes"
        ),
        pytest.param({"server_aggregator": "geometric-median"}, ROUGH, id="geometric median across nodes"),
        pytest.param({"server_step": "momentum", "server_learning_rate": 0.3}, ROUGH, id="server momentum"),
        pytest.param(LIGHTGCN, ROUGH, id="LightGCN"),
        pytest.param({**LIGHTGCN, "num_layers": 3, "blend_weight": 0.5, "num_rounds": 4}, CHANCE, id="LightGCN, blend"),
        pytest.param({"clients_per_round": 600, "num_rounds": 4, "evaluate_every": 2}, CHANCE, id="all clients"),
        pytest.param({"clients_per_round": 1000, "num_rounds": 4, "evaluate_every": 2}, CHANCE, id="more than all"),
    ],
)
def test_a_variant_runs_and_learns(finished, changes, at_least):
    run = finished(**changes)
    assert run.summary["test"]["ndcg@20"] > at_least
    assert run.summary["stopped"] is False
    assert run.summary["clients"]["refused"] == 0


def test_it_finds_the_communities_of_taste(finished):
    from fastpfrec_flwr.baselines.central import reference_metrics
    from fastpfrec_flwr.data import SplitSettings, prepare

    split = prepare("synthetic", None, SplitSettings("auto", 0.1, 0.2, 1)).load()
    popularity = reference_metrics(split)["popularity"]["ndcg@20"]
    run = finished(num_rounds=40, evaluate_every=20)
    learnt = run.summary["test"]["ndcg@20"]
    assert learnt > 1.3 * popularity, (learnt, popularity)
    # An item's nearest neighbours share its community far more often than the quarter that chance gives.
    assert neighbours_of_one_community(run) > 0.5


def neighbours_of_one_community(run):
    import numpy as np

    from fastpfrec_flwr.data.synthetic import synthetic_interactions

    with np.load(run.folder / "item_table.npz") as arrays:
        table, ids = arrays["item_table"], arrays["item_ids"]
    community = synthetic_interactions().item_community[[int("".join(filter(str.isdigit, i))) for i in ids]]
    counts = np.bincount(synthetic_interactions().items, minlength=400)[
        [int("".join(filter(str.isdigit, i))) for i in ids]
    ]
    popular = np.flatnonzero(counts > np.median(counts))  # what few users have cannot be placed by anybody
    unit = table[popular] / np.linalg.norm(table[popular], axis=1, keepdims=True)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -2)
    nearest = np.argsort(-likeness, axis=1)[:, :5]
    return (community[popular][nearest] == community[popular][:, None]).mean()


def test_a_run_stops_early_when_validation_no_longer_improves(finished):
    run = finished(num_rounds=12, evaluate_every=1, early_stop_patience=1, server_learning_rate=1e-9)
    assert run.summary["rounds"] < 12
    assert "stopped early" in run.log
    assert run.summary["best_round"] == run.summary["rounds"] - 1


def test_refit_trains_as_long_as_validation_said(finished):
    run = finished(refit=True)
    assert run.summary["rounds"] == run.summary["best_round"]
    assert run.summary["refit"] is True
    assert "train + validation" in run.summary["protocol"]
    plain = finished()
    assert run.summary["validation"] == plain.summary["validation"]
    assert run.summary["test"] != plain.summary["test"]
