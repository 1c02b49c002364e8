"""The ledger of a configuration: who sees what, what is infinite and why, and the noise that a target asks for."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import INTERACTION, Setting, user_adjacency
from fastpfrec_flwr.privacy.proposal import propose_noise
from fastpfrec_flwr.privacy.upload_costs import upload_epsilons

DEFAULTS = default_values(Path(__file__).resolve().parents[2] / "pyproject.toml")
# Small enough to be a figure that protects somebody.
TIGHT = {"clip_norm": 1.0, "noise_scale": 20.0, "evaluate_every": 0, "report_loss": False}


def setting_of(users=943, items=1682, deployed=False, colluding=0, **changes):
    values = {**DEFAULTS, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return Setting(parse_run_config(values), users, items, deployed, colluding)


def ledger_of(**changes):
    return build_ledger(setting_of(**changes))


def epsilon(observer, **changes):
    return ledger_of(**changes).of(observer).epsilon


def test_default_by_hand():
    """2 S sqrt(d) / lambda for one upload; a user trains once in 943 // 256 = 3 rounds, in 60 rounds 20 times."""
    one = 2 * 200.0 * math.sqrt(1682 * 64) / 0.1
    ledger = ledger_of()
    assert ledger.of("trusted node", scope="one upload").epsilon == pytest.approx(one)
    assert ledger.of("trusted node").epsilon == pytest.approx(20 * one)
    assert ledger.of("server").epsilon == pytest.approx(20 * one)
    assert ledger.of("trusted node").delta == 0
    line = next(line for line in ledger.lines if line.release.startswith("shuffling"))
    assert math.isinf(line.epsilon)
    assert "not applicable" in line.reason


SUMS = {**TIGHT, "check": "none", "num_trusted_nodes": 1}


def test_where_devices_stop_at_a_budget_no_sum_hides_anybody():
    """They stop in different rounds, so the last ones' uploads are summed with few others or none."""
    plain = ledger_of(**SUMS)
    assert "sums over at least 256 clients" in plain.of("server").reason
    assert plain.of("server").epsilon < 0.2 * plain.of("trusted node").epsilon
    budget = ledger_of(**SUMS, epsilon_budget=plain.of("trusted node").epsilon * 0.9)
    assert budget.of("server").epsilon == pytest.approx(budget.of("trusted node").epsilon)
    assert "at least 256 clients" not in budget.of("server").reason


def test_shuffling_hides_a_user_among_what_anybody_may_send():
    """The clones of its proof are of any two data sets, so with zero-out, too, its epsilon is that of replacing one."""

    def mixed(adjacency):
        ledger = ledger_of(
            users=200_000, clients_per_round=100_000, clip_norm=1.0, clip_kind="l1", noise_scale=0.5, num_rounds=2,
            adjacency=adjacency, evaluate_every=0, report_loss=False,
        )  # fmt: skip
        return next(line.epsilon for line in ledger.lines if line.release.startswith("shuffling"))

    assert mixed("zero-out") == mixed("replace") < 4.0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"noise_scale": 1150.0}, "noise-scale must leave uploads within .* at most 240.9 .*'laplace'.*, got 1150"),
        ({"noise_scale": 600.0, "noise": "gaussian"}, "at most 585.1 .*'gaussian'"),
    ],
)
def test_noise_that_cannot_be_sent_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        setting_of(**changes)
    setting_of(**changes, upload_precision="int8")


def test_a_proposal_that_cannot_be_sent_says_so():
    assert not propose_noise(setting_of(), 8.0).sendable
    assert propose_noise(setting_of(clip_norm=1.0), 8.0).sendable


@pytest.mark.parametrize(
    ("changes", "uploads"),
    [
        ({}, 20),
        ({"refit": True}, 40),
        ({"deployed": True}, 60),
        ({"deployed": True, "refit": True}, 120),
        ({"clients_per_round": 943}, 60),
        ({"clients_per_round": 5000}, 60),
        ({"num_rounds": 61}, 21),
    ],
)
def test_uploads_of_a_user(changes, uploads):
    assert setting_of(**changes).uploads == uploads


def test_uploads_bound_what_a_simulation_does():
    from collections import Counter

    from fastpfrec_flwr.client.participation import round_users

    setting = setting_of(users=50, clients_per_round=12, num_rounds=23, num_trusted_nodes=2)
    counted = Counter(user for r in range(1, 24) for user in round_users(1, "train", r, 12, 50).tolist())
    assert max(counted.values()) <= setting.uploads == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upload": "sparse"}, "touched"),
        ({"noise": "none", "noise_scale": 0.0}, "no noise"),
        ({"clip_norm": 0.0, "row_clip": 0.0}, "no clip"),
    ],
)
def test_what_nothing_bounds_is_infinite_for_everybody_and_says_why(changes, words):
    ledger = ledger_of(evaluate_every=0, **changes)
    for observer in ("trusted node", "server", "final model"):
        line = ledger.of(observer)
        assert math.isinf(line.epsilon)
        assert words in line.reason


def test_sums_without_noise_are_infinite():
    ledger = ledger_of(**{**TIGHT, "report_loss": True})
    assert math.isinf(ledger.of("server", "metric sums").epsilon)
    assert math.isinf(ledger.of("server", "train loss sums").epsilon)
    with pytest.raises(KeyError):
        ledger_of(**TIGHT).of("server", "train loss sums")


def test_a_round_chosen_by_plain_sums_is_infinite_for_the_final_model():
    line = ledger_of(**{**TIGHT, "evaluate_every": 10}).of("final model")
    assert math.isinf(line.epsilon)
    assert "evaluate-every = 0" in line.reason
    assert math.isfinite(epsilon("final model", **{**TIGHT, "evaluate_every": 60}))


def test_a_sum_is_claimed_only_where_nothing_looks_at_single_uploads():
    single = epsilon("final model", **TIGHT)
    assert single == epsilon("trusted node", **TIGHT)
    summed = epsilon("final model", **TIGHT, check="none")
    assert summed < 0.5 * single
    assert epsilon("final model", **TIGHT, check="none", node_aggregator="median") == single
    # So is the server's, which gets nothing but sums then; with a check or a median it would be more.
    assert epsilon("server", **TIGHT, check="none") == summed
    assert epsilon("server", **TIGHT) == epsilon("server", **TIGHT, check="none", node_aggregator="median") == single


def test_without_nodes_the_server_sees_single_uploads_and_the_model_one_large_sum():
    ledger = ledger_of(**TIGHT, tier="direct", check="none")
    with pytest.raises(KeyError):
        ledger.of("trusted node")
    assert ledger.of("server").epsilon == epsilon("trusted node", **TIGHT)
    assert "256 clients" in ledger.of("final model").reason
    assert ledger.of("final model").epsilon < epsilon("final model", **TIGHT, check="none")


def test_colluding_clients_take_their_noise_away():
    figures = [epsilon("final model", **TIGHT, check="none", colluding=c) for c in (0, 100, 200, 255)]
    assert figures == sorted(figures)
    assert figures[0] < figures[-1] <= epsilon("trusted node", **TIGHT) * (1 + 1e-9)


def test_shuffling_counts_where_it_holds():
    tight = {**TIGHT, "clip_kind": "l1", "clip_norm": 2.0, "num_rounds": 4}
    ledger = ledger_of(users=200_000, clients_per_round=100_000, **tight)
    line = next(line for line in ledger.lines if line.release.startswith("shuffling"))
    assert math.isfinite(line.epsilon)
    assert ledger.of("server").epsilon == min(line.epsilon, ledger.of("trusted node").epsilon)
    assert ledger.of("server").epsilon < ledger.of("trusted node").epsilon


def test_counts_cost_more_once():
    plain, first = upload_epsilons(setting_of(popularity_weight=0.1).config, 1682)
    assert first == pytest.approx(32.0 * 1682 / 0.1)
    more = epsilon("trusted node", popularity_weight=0.1) - epsilon("trusted node")
    assert more == pytest.approx(first)
    assert upload_epsilons(setting_of().config, 1682) == (plain, 0.0)


def test_a_budget_bounds_the_whole_run():
    each, _ = upload_epsilons(setting_of(**TIGHT).config, 1682)
    assert epsilon("trusted node", **{**TIGHT, "epsilon_budget": each * 1000}) == epsilon("trusted node", **TIGHT)
    assert epsilon("trusted node", epsilon_budget=2e6) == 2e6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, math.inf),
        ({"perturbation": "bernoulli"}, math.inf),
        ({"perturbation": "none"}, math.inf),
        ({"perturbation": "randomised-response"}, math.log(9)),
        ({"perturbation": "randomised-response", "refit": True}, 2 * math.log(9)),
        ({"perturbation": "randomised-response", "keep_prob": 1.0}, math.inf),
        ({"perturbation": "randomised-response", "upload": "sparse"}, math.log(9)),
    ],
)
def test_local_graph(changes, expected):
    line = ledger_of(**changes).of("everybody", "local graph")
    assert line.epsilon == pytest.approx(expected)
    assert line.adjacency == INTERACTION


def test_every_line_says_everything_and_is_json():
    ledger = ledger_of()
    for line in ledger.lines:
        assert all([line.observer, line.release, line.scope, line.clip, line.assumed, line.reason])
        assert line.adjacency in (user_adjacency(ledger.setting.config), INTERACTION)
    told = json.loads(json.dumps(ledger.to_dict(), allow_nan=False))
    assert {line["epsilon"] for line in told["lines"] if isinstance(line["epsilon"], str)} == {"infinity"}
    assert "20 uploads" in ledger.whole_run_line()
    assert "metric sums" in ledger.whole_run_line()


@settings(deadline=None, max_examples=15)
@given(
    st.floats(5, 100),
    st.floats(1.1, 4),
    st.integers(1, 100),
    st.integers(1, 100),
    st.sampled_from(["trusted node", "final model"]),
)
def test_monotone(scale, factor, rounds, more, observer):
    def of(noise, num_rounds):
        changes = {**TIGHT, "noise_scale": noise, "num_rounds": num_rounds, "check": "none", "upload_precision": "int8"}
        return epsilon(observer, **changes)

    here = of(scale, rounds)
    assert of(scale * factor, rounds) <= here * (1 + 1e-6)
    assert of(scale, rounds + more) >= here * (1 - 1e-6)


@pytest.mark.parametrize("observer", ["trusted node", "server", "final model"])
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_a_proposal_meets_its_target_and_not_by_far(observer, target):
    setting = setting_of(**TIGHT, check="none")
    proposal = propose_noise(setting, target, observer)
    again = epsilon(observer, **{**TIGHT, "check": "none", "noise_scale": proposal.noise_scale})
    assert again == proposal.line.epsilon <= target
    less = epsilon(observer, **{**TIGHT, "check": "none", "noise_scale": proposal.noise_scale * 0.97})
    assert less > target
    changed = dict(proposal.changes)
    assert changed["clip-norm = 0.5 (half)"] < proposal.line.epsilon
    assert changed["num-rounds = 30 (half)"] < proposal.line.epsilon
    assert proposal.signal == pytest.approx(1 / math.sqrt(1682 * 64))


def test_a_proposal_that_cannot_be_says_why():
    with pytest.raises(ConfigError, match="touched"):
        propose_noise(setting_of(upload="sparse"), 8.0)
    with pytest.raises(ConfigError, match="validation sums"):
        propose_noise(setting_of(), 8.0, "final model")
    with pytest.raises(ConfigError, match="must be > 0"):
        propose_noise(setting_of(), -1.0)
    with pytest.raises(ConfigError, match="--observer"):
        propose_noise(setting_of(tier="direct", check="none"), 8.0, "trusted node")


def test_a_user_left_out_is_half_as_far_as_one_replaced():
    """Pure epsilon of an L1 clip S: 2 S / lambda, or S / lambda against a zero change."""
    settings = {"clip_kind": "l1", "clip_norm": 3.0, "row_clip": 0.0, "noise_scale": 1.5}
    scope = "one upload"
    assert ledger_of(**settings).of("trusted node", scope=scope).epsilon == pytest.approx(4.0, rel=1e-4)
    left_out = ledger_of(**settings, adjacency="zero-out").of("trusted node", scope=scope)
    assert left_out.epsilon == pytest.approx(2.0, rel=1e-4)
    assert "zero change" in left_out.adjacency
