"""Every value of every key that offers a choice builds and runs a round: no switch that is read and never used."""

import typing

import pytest
import torch

from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.server.errors import RunError

SPECTRAL = {"encoder": "spectral", "server_step": "posterior", "perturbation": "none"}
# What else a value needs.
WITH = {
    ("encoder", "spectral"): SPECTRAL,
    ("server_step", "posterior"): SPECTRAL,
    ("num_layers", 1): {"encoder": "lightgcn"},
    ("num_layers", 3): {"encoder": "lightgcn"},
    ("num_layers", 4): {"encoder": "lightgcn"},
    ("loss", "ccl"): {"unit_rows": True},
    ("noise", "none"): {"noise_scale": 0.0},
    ("noise_placement", "distributed"): {"noise": "gaussian"},
    ("perturbation", "bernoulli"): {"perturbation_prob": 0.02},
    ("perturbation", "randomised-response"): {"perturbation_prob": 0.02},
    ("train_items", "new"): {"initial_model": "of another run"},
    ("node_aggregator", "row-median"): {"upload": "sparse"},
    ("node_aggregator", "row-trimmed-mean"): {"upload": "sparse"},
}
LIGHTGCN = {"leave_one_out": False, "norm_exponent": 0.0, "item_refresh_interval": 1}
# The synthetic data set has neither a test file nor times (tests/data has both), and a machine may have no CUDA device.
REFUSED = {
    ("split", "released"): "released",
    ("split", "chronological"): "needs timestamps",
    ("train_items", "new"): "needs items that initial-model does not have",  # tests/recommend has new ones
}
if not torch.cuda.is_available():
    REFUSED["device", "cuda"] = "no CUDA device is available"


def choices():
    for name, field in RunConfig.model_fields.items():
        if typing.get_origin(field.annotation) is typing.Literal:
            for value in typing.get_args(field.annotation):
                yield pytest.param(name, value, id=f"{name}={value}")


@pytest.mark.parametrize(("name", "value"), list(choices()))
def test_each_choice_runs_a_round(finished, name, value):
    changes = {name: value, **WITH.get((name, value), {})}
    if changes.get("encoder") == "lightgcn":
        changes |= LIGHTGCN
    if "initial_model" in changes:
        changes["initial_model"] = str(finished(num_rounds=1, evaluate_every=1).folder)
    changes = {"num_rounds": 1, "evaluate_every": 1, "clients_per_round": 40, **changes}
    if (name, value) in REFUSED:
        with pytest.raises((ConfigError, RunError), match=REFUSED[name, value]):
            finished(**changes)
        return
    run = finished(**changes)
    # Of the 40, those who lie by staying away send nothing: 30 % of all users, in a round of 40 between none and all.
    trained = run.summary["clients"]["trained"]
    assert 0 < trained < 40 if (name, value) == ("attack", "absent") else trained == 40
    assert run.summary["clients"]["refused"] == 0
    assert run.summary["rounds_without_update"] == 0
    assert run.json("config.json")["config"][name.replace("_", "-")] == value


def test_choices_of_objects_make_a_difference(finished):
    """No two values of a key that chooses arithmetic end in the same table."""
    for name in (
        "node_aggregator",
        "server_aggregator",
        "server_step",
        "encoder",
        "local_optimizer",
        "negatives",
        "perturbation",
        "noise",
    ):
        tables = {}
        for value in typing.get_args(RunConfig.model_fields[name].annotation):
            changes = {name: value, **WITH.get((name, value), {}), **(LIGHTGCN if value == "lightgcn" else {})}
            run = finished(
                **{"num_rounds": 2, "evaluate_every": 2, "clients_per_round": 40, "num_negatives": 8, **changes}
            )
            tables[value] = run.table.tobytes()
        assert len(set(tables.values())) == len(tables), name
