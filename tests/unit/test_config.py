"""The run configuration: the same keys in pyproject.toml and in RunConfig, and errors that name key, rule and value."""

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from fastpfrec_flwr.config import ConfigError, RunConfig, default_values, parse_run_config

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = default_values(ROOT / "pyproject.toml")
# Settings of central models are no run-config: tests/experiments holds them to theirs.
CONF = sorted(path for path in (ROOT / "conf").rglob("*.toml") if "central" not in path.relative_to(ROOT).parts)


def parse(**changes):
    return parse_run_config({**DEFAULTS, **{key.replace("_", "-"): value for key, value in changes.items()}})


def message_of(**changes):
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    return str(caught.value)


def test_pyproject_and_fields_are_the_same_keys():
    assert {name.replace("_", "-") for name in RunConfig.model_fields} == set(DEFAULTS)


def test_defaults_parse_and_come_back_unchanged():
    assert parse().to_flat_dict() == DEFAULTS
    types = {key: type(value) for key, value in DEFAULTS.items()}
    assert {key: type(value) for key, value in parse().to_flat_dict().items()} == types


def test_no_field_has_a_second_default():
    assert all(field.is_required() for field in RunConfig.model_fields.values())


def test_a_missing_key_is_named():
    values = dict(DEFAULTS)
    del values["num-rounds"]
    with pytest.raises(ConfigError, match=r"^num-rounds is missing; .*pyproject.toml"):
        parse_run_config(values)


def test_config_cannot_be_changed():
    with pytest.raises(ValidationError):
        parse().seed = 2


SPECTRAL = {"encoder": "spectral", "server_step": "posterior", "perturbation": "none"}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_round", 3, ["unknown key 'num-round'", "did you mean 'num-rounds'?"]),
        ("zzz", 3, ["unknown key 'zzz'", "see pyproject.toml"]),
        ("seed", True, ["seed must be an integer", "got True"]),
        ("threads", False, ["threads must be an integer", "got False"]),
        ("l2", True, ["l2 must be a number", "got True"]),
        ("num_rounds", "10", ["num-rounds must be an integer", "got '10'"]),
        ("num_rounds", 10.0, ["num-rounds must be an integer", "got 10.0"]),
        ("l2", "0.1", ["l2 must be a number", "got '0.1'"]),
        ("refit", 1, ["refit must be true or false", "got 1"]),
        ("refit", "true", ["refit must be true or false", "got 'true'"]),
        ("data_set", 7, ["data-set must be a string", "got 7"]),
        ("data_set", "", ["data-set must not be empty", "got ''"]),
        ("item_learning_rate", float("nan"), ["item-learning-rate must be", "got nan"]),
        ("l2", float("nan"), ["l2 must be", "got nan"]),
        ("noise_scale", float("inf"), ["noise-scale must be a finite number", "got inf"]),
        ("validation_fraction", float("nan"), ["validation-fraction must be", "got nan"]),
        ("margin", float("nan"), ["margin must be", "got nan"]),
        ("blend_weight", float("nan"), ["blend-weight must be", "got nan"]),
        ("norm_exponent", float("inf"), ["norm-exponent must be <= 2", "got inf"]),
        ("noise_scale", -0.1, ["noise-scale must be >= 0", "got -0.1"]),
        ("item_learning_rate", 0.0, ["item-learning-rate must be > 0", "got 0.0"]),
        ("perturbation_prob", 1.5, ["perturbation-prob must be <= 1", "got 1.5"]),
        ("validation_fraction", 0.5, ["validation-fraction must be < 0.5", "got 0.5"]),
        ("num_rounds", 0, ["num-rounds must be >= 1", "got 0"]),
        ("seed", -1, ["seed must be >= 0", "got -1"]),
        ("blend_weight", 0.0, ["blend-weight must be > 0", "got 0.0"]),
        ("loss", "BPR", ["loss must be one of 'bpr' or 'ccl'", "got 'BPR'"]),
        ("upload", "", ["upload must be one of 'dense', 'sparse' or 'sampled'", "got ''"]),
        ("num_layers", 5, ["num-layers must be one of 1, 2, 3 or 4", "got 5"]),
        ("strategy", "FedAvg", ["strategy must be 'fastpfrec', 'flwr:<name>' or '<module>:<class>'", "got 'FedAvg'"]),
        pytest.param("noise_scale", 10**400, ["noise-scale must be a", "got 1000"], id="integer beyond floats"),
    ],
)
def test_errors_name_key_rule_and_value(key, value, expected):
    text = message_of(**{key: value})
    assert all(part in text for part in expected), text
    assert len(text.splitlines()) == 1


def test_every_field_refuses_a_foreign_type():
    for key in DEFAULTS:
        assert key in message_of(**{key.replace("-", "_"): None})
        if not isinstance(DEFAULTS[key], str):
            assert key in message_of(**{key.replace("-", "_"): "x"})


def test_every_broken_key_gets_its_line():
    lines = message_of(seed=-1, l2="x", loss="mse", nonsense=1).splitlines()
    assert len(lines) == 4
    for key in ("seed", "l2", "loss", "nonsense"):
        assert any(key in line for line in lines)


def test_integers_are_taken_where_a_float_is_meant():
    floats = [key for key, value in DEFAULTS.items() if isinstance(value, float)]
    assert len(floats) > 20
    for key in floats:
        below_one = ("validation-fraction", "test-fraction", "trim-fraction", "malicious-fraction", "server-momentum")
        if key in (*below_one, "dropout-fraction", "count-share"):
            assert "must be <" in message_of(
                **{key: 1}
            )  # no integer lies in their range; its type is none of the trouble
        else:
            value = 0 if key == "margin" else 1
            got = parse(**{key: value}).to_flat_dict()[key]
            assert type(got) is float
            assert got == value
    assert parse(item_learning_rate=320, clip_norm=60).clip_norm == 60.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"num_trusted_nodes": 20, "clients_per_round": 10},
            ["num-trusted-nodes must be <= clients-per-round (10)", "got 20"],
        ),
        ({"noise": "none", "noise_scale": 0.1}, ["noise-scale must be 0.0 with noise = 'none'", "got 0.1"]),
        ({"noise_scale": 0.0}, ["noise-scale must be > 0 with noise = 'laplace'", "got 0.0"]),
        (
            {"loss": "ccl", "unit_rows": True, "negatives": "per-positive"},
            ["negatives must be 'shared'", "got 'per-positive'"],
        ),
        ({"loss": "ccl"}, ["unit-rows must be true with loss = 'ccl'", "got false"]),
        (
            {"loss": "ccl", "unit_rows": True, "blend_weight": 0.5},
            ["blend-weight must be 1.0 with unit-rows", "got 0.5"],
        ),
        (
            {"check": "absolute", "clip_norm": 0.0},
            ["clip-norm must be > 0 with check = 'absolute'", "check = 'clients'"],
        ),
        ({"check": "absolute", "clip_norm": 60.0, "clip_kind": "l1"}, ["check = 'absolute'", "got clip-kind = 'l1'"]),
        ({"refit": True, "evaluate_every": 0}, ["evaluate-every must be >= 1 with refit = true"]),
        ({"early_stop_patience": 3, "evaluate_every": 0}, ["evaluate-every must be >= 1 with early-stop-patience > 0"]),
        ({"num_layers": 3}, ["num-layers must be 2 with encoder = 'fastgnn'", "got 3"]),
        ({"encoder": "lightgcn"}, ["leave-one-out must be false with encoder = 'lightgcn'"]),
        ({"encoder": "lightgcn", "leave_one_out": False}, ["norm-exponent must be 0.0", "got 1.0"]),
        (
            {"encoder": "lightgcn", "leave_one_out": False, "norm_exponent": 0.0},
            ["item-refresh-interval must be 1 with encoder = 'lightgcn'", "got 20"],
        ),
        (
            {
                "encoder": "lightgcn",
                "leave_one_out": False,
                "norm_exponent": 0.0,
                "item_refresh_interval": 1,
                "loss": "ccl",
                "unit_rows": True,
            },
            ["loss must be 'bpr' with encoder = 'lightgcn'"],
        ),
        ({"server_step": "posterior"}, ["server-step must not be 'posterior' with encoder = 'fastgnn'"]),
        ({"encoder": "spectral"}, ["server-step must be 'posterior' with encoder = 'spectral', got 'row-adam'"]),
        (SPECTRAL | {"perturbation": "relative"}, ["perturbation must be 'none' with encoder = 'spectral'"]),
        (SPECTRAL | {"unit_rows": True}, ["unit-rows must be false with encoder = 'spectral', got true"]),
        (SPECTRAL | {"embedding_dim": 1}, ["embedding-dim must be >= 2 with encoder = 'spectral', got 1"]),
        (SPECTRAL | {"user_l2": 0.0}, ["user-l2 must be > 0 with encoder = 'spectral'"]),
        (SPECTRAL | {"clip_norm": 0.0}, ["clip-norm must be > 0 with encoder = 'spectral' and noise"]),
        ({"download_precision": "int8", "strategy": "flwr:FedAvg"}, ["download-precision must be 'float32'", "int8"]),
        ({"upload_precision": "int8", "popularity_weight": 0.1}, ["popularity-weight must be 0.0", "int8"]),
        (
            {"upload_precision": "int8", "noise": "none", "noise_scale": 0.0},
            ["upload-precision must be 'float32' or 'float16' with noise = 'none'"],
        ),
        ({"node_aggregator": "row-median"}, ["node-aggregator = 'row-median' needs upload = 'sparse'"]),
        ({"node_aggregator": "median", "popularity_weight": 0.1}, ["popularity-weight must be 0.0", "got 0.1"]),
        ({"server_aggregator": "median", "popularity_weight": 0.1}, ["popularity-weight must be 0.0", "got 0.1"]),
        (
            {"perturbation": "randomised-response", "keep_prob": 0.1},
            ["keep-prob must be > perturbation-prob (0.1)", "got 0.1"],
        ),
        ({"noise": "gaussian", "noise_scale": 0.0}, ["noise-scale must be > 0 with noise = 'gaussian'"]),
        ({"noise_placement": "distributed"}, ["noise must be 'gaussian' with noise-placement", "got 'laplace'"]),
        (
            {"noise": "gaussian", "noise_placement": "distributed", "upload": "sparse"},
            ["upload must be 'dense' with noise-placement"],
        ),
        ({"upload": "sampled", "sampled_share": 0.0}, ["sampled-share must be > 0"]),
        ({"upload": "sampled", "popularity_weight": 0.1}, ["popularity-weight must be 0.0 with upload = 'sampled'"]),
        ({"upload": "sampled", "strategy": "flwr:FedAvg"}, ["upload must be 'dense' or 'sparse'"]),
        (
            {"upload": "sampled", "node_aggregator": "median"},
            ["node-aggregator must be 'mean' with upload = 'sampled'"],
        ),
        ({"upload": "sampled", "attack": "noise"}, ["attack and node-attack must be 'none' with upload = 'sampled'"]),
        ({"upload": "sampled", "secure_sum": True, "check": "none"}, ["upload must be 'dense' with secure-sum"]),
        (
            {"noise": "gaussian", "noise_placement": "distributed", "upload": "sampled"},
            ["upload must be 'dense' with noise-placement", "got 'sampled'"],
        ),
        ({"epsilon_budget": 1.0, "noise": "gaussian"}, ["epsilon-budget must be 0.0", "noise = 'laplace'"]),
        ({"epsilon_budget": 1.0, "upload": "sparse"}, ["epsilon-budget must be 0.0", "got 1.0", "upload = 'dense'"]),
        ({"epsilon_budget": 1.0, "noise": "none", "noise_scale": 0.0}, ["epsilon-budget must be 0.0"]),
        ({"epsilon_budget": 1.0, "clip_norm": 0.0, "row_clip": 0.0}, ["epsilon-budget must be 0.0", "clip-norm"]),
        ({"strategy_options": "eta=1"}, ["strategy-options must be '' with strategy = 'fastpfrec'"]),
        ({"strategy": "flwr:FedAvg", "blend_weight": 0.5}, ["blend-weight must be 1.0 with strategy = 'flwr:FedAvg'"]),
        ({"strategy": "flwr:FedAvg", "unit_rows": True}, ["unit-rows must be false with strategy = 'flwr:FedAvg'"]),
        ({"strategy": "a.b:C", "popularity_weight": 0.1}, ["popularity-weight must be 0.0 with strategy = 'a.b:C'"]),
        ({"user_weight": 0.0, "neighbour_weight": 0.0}, ["user-weight and neighbour-weight must not both be 0"]),
    ],
)
def test_contradictions_are_refused(changes, expected):
    text = message_of(**changes)
    assert all(part in text for part in expected), text


@pytest.mark.parametrize(
    "changes",
    [
        {"num_trusted_nodes": 10, "clients_per_round": 10},
        {"noise": "none", "noise_scale": 0.0},
        {"noise": "gaussian", "noise_placement": "distributed", "dropout_fraction": 0.2},
        {"epsilon_budget": 1.0, "clip_norm": 0.0, "row_clip": 0.0, "coordinate_clip": 0.1},
        {"loss": "ccl", "unit_rows": True},
        {"check": "absolute", "clip_norm": 60.0},
        {"clip_norm": 60.0, "clip_kind": "l1"},
        {"blend_weight": 0.5},
        {"user_weight": 0.0},
        {"evaluate_every": 0},
        {"upload": "sparse"},
        {"upload": "sampled", "sampled_share": 1.0, "epsilon_budget": 1.0},
        {"keep_prob": 0.0},
        {"epsilon_budget": 1e7, "clip_norm": 0.0},
        {"perturbation": "randomised-response"},
        SPECTRAL,
        {"adjacency": "zero-out"},
    ],
)
def test_what_only_looks_like_a_contradiction_is_accepted(changes):
    parse(**changes)


def test_effective_noise_scale():
    assert parse(noise_scale=0.2).effective_noise_scale == 0.2
    assert parse(noise="none", noise_scale=0.0).effective_noise_scale == 0.0


def flat(values, prefix=""):
    found = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


@pytest.mark.skipif(not CONF, reason="there is no conf/*.toml")
@pytest.mark.parametrize("path", CONF, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_conf_file_parses_and_holds_only_differences(path):
    values = flat(tomllib.loads(path.read_text(encoding="utf-8")))
    parse_run_config({**DEFAULTS, **values})
    if "baselines" in path.relative_to(ROOT).parts:
        return  # a search chose them, also where it chose the default; they are laid over other recipes
    repeated = [key for key, value in values.items() if DEFAULTS[key] == value]
    assert not repeated, f"{path.name} repeats the defaults of {repeated}"
