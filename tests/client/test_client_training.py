"""The local step: compiled form, autograd form and the formulas agree; a cohort is its users one by one."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import end_to_end
from dense_reference import cohort_step
from step_forms import CCL, autograd, close, cohort_for, compiled, operators, small_config

from fastpfrec_flwr.client import autograd_step as autograd_module
from fastpfrec_flwr.client.deviation import no_deviation
from fastpfrec_flwr.client.training import can_train, train_cohort
from fastpfrec_flwr.model.fastgnn import norm_weights
from fastpfrec_flwr.model.graph import build_local_graphs

VARIANTS = {
    "default": {},
    "whole sums": {"leave_one_out": False},
    "no norm weights": {"norm_exponent": 0.0},
    "whole sums, no norm weights": {"leave_one_out": False, "norm_exponent": 0.0},
    "fewer negatives than wanted": {"num_negatives": 500},
    "one negative": {"num_negatives": 1},
    "no L2": {"l2": 0.0, "user_l2": 0.0},
    "only neighbours": {"user_weight": 0.0, "neighbour_weight": 1.0},
    "only the private vector": {"user_weight": 1.0, "neighbour_weight": 0.0},
    "unit rows with bpr": {"unit_rows": True},
    "ccl": CCL,
    "ccl, whole sums": {**CCL, "leave_one_out": False},
    "ccl, no norm weights": {**CCL, "norm_exponent": 0.0, "l2": 0.0},
    "ccl, only neighbours": {**CCL, "user_weight": 0.0, "neighbour_weight": 1.0},
    "ccl, fewer negatives than wanted": {**CCL, "num_negatives": 500},
}
MORE_VARIANTS = {
    "per positive": {"negatives": "per-positive"},
    "per positive, whole sums": {"negatives": "per-positive", "leave_one_out": False, "norm_exponent": 0.0},
    "per positive, repeated draws": {"negatives": "per-positive", "num_negatives": 100},
    "adam": {"local_optimizer": "adam", "item_learning_rate": 0.01, "user_learning_rate": 0.01},
    "adam per positive, the paper": {"local_optimizer": "adam", "negatives": "per-positive", "num_negatives": 1},
    "ccl adam": {**CCL, "local_optimizer": "adam"},
}


@pytest.mark.parametrize("refresh", [False, True], ids=["plain", "refresh"])
@pytest.mark.parametrize("name", VARIANTS)
def test_all_three_forms_equal_the_formulas(name, refresh):
    config = small_config(**VARIANTS[name])
    cohort = cohort_for(config)
    fast = compiled(cohort, config, refresh)
    plan, slow = autograd(cohort, config, refresh)
    changes, private, losses = cohort_step(cohort, plan, config, refresh)
    assert (fast.rows == plan.rows).all()
    assert (fast.pointer == plan.pointer).all()
    for result in (fast, slow, operators(cohort, config, refresh)):
        close(result.changes, changes)
        close(result.private, private)
        close(result.losses, losses)
    assert np.abs(changes).max() > 0.01


@pytest.mark.parametrize("refresh", [False, True], ids=["plain", "refresh"])
@pytest.mark.parametrize("name", MORE_VARIANTS)
def test_autograd_equals_the_formulas(name, refresh):
    config = small_config(**MORE_VARIANTS[name])
    cohort = cohort_for(config)
    plan, result = autograd(cohort, config, refresh)
    changes, private, losses = cohort_step(cohort, plan, config, refresh)
    # g / |g| of a gradient near zero is a matter of its last bits: leave those coordinates out.
    sure = np.ones_like(changes, bool)
    if config.local_optimizer == "adam":
        plain = small_config(**{**MORE_VARIANTS[name], "local_optimizer": "sgd", "item_learning_rate": 1.0})
        gradient = cohort_step(cohort, plan, plain, refresh)[0]
        sure = np.abs(gradient) > 1e-4
        assert sure.mean() > 0.7
    close(result.changes[sure], changes[sure], 1e-4)
    close(result.private, private, 1e-4)
    close(result.losses, losses)


def test_first_adam_step_is_the_sign_of_the_gradient():
    config = small_config(local_optimizer="adam", item_learning_rate=0.01, user_learning_rate=0.02)
    cohort = cohort_for(config)
    _, adam = autograd(cohort, config)
    _, sgd = autograd(cohort, small_config(item_learning_rate=1.0, user_learning_rate=1.0))
    sure = np.abs(sgd.changes) > 1e-3
    np.testing.assert_allclose(adam.changes[sure], 0.01 * np.sign(sgd.changes[sure]), rtol=1e-4)
    step = sgd.private - cohort.private
    np.testing.assert_allclose(adam.private - cohort.private, 0.02 * np.sign(step), rtol=1e-3)


@pytest.mark.parametrize("name", ["default", "only neighbours", "ccl", "ccl, only neighbours"])
@pytest.mark.parametrize("refresh", [False, True], ids=["plain", "refresh"])
def test_users_of_one_item_without_false_items(name, refresh):
    """Leaving the only item out leaves an empty sum: exactly zero, not what rounding makes of it."""
    config = small_config(**VARIANTS[name], perturbation="none")
    cohort = cohort_for(config, sizes=(1, 1, 2, 1, 1, 1), perturbation="none", k=16)
    fast = compiled(cohort, config, refresh)
    plan, slow = autograd(cohort, config, refresh)
    changes, private, losses = cohort_step(cohort, plan, config, refresh)
    for result in (fast, slow, operators(cohort, config, refresh)):
        close(result.changes, changes)
        close(result.private, private)
        close(result.losses, losses)


def test_saturated_scores_stay_finite():
    config = small_config(user_learning_rate=0.0)
    cohort = cohort_for(config, spread=30.0)
    fast = compiled(cohort, config)
    _, slow = autograd(cohort, config)
    for result in (fast, slow, operators(cohort, config)):
        assert np.isfinite(result.changes).all()
        assert np.isfinite(result.losses).all()
    close(fast.changes, slow.changes)
    close(fast.losses, slow.losses)


@pytest.mark.parametrize("k", [1, 2, 3, 16, 64])
def test_compiled_equals_autograd_in_any_dimension(k):
    config = small_config(embedding_dim=k)
    cohort = cohort_for(config, k=k)
    _, slow = autograd(cohort, config)
    fast = compiled(cohort, config)
    close(fast.changes, slow.changes)
    close(fast.private, slow.private)


def test_autograd_in_blocks_equals_autograd_at_once(monkeypatch):
    """Users of like size share a product; where the blocks end must not matter."""
    config = small_config()
    cohort = cohort_for(config, sizes=(5, 1, 12, 12, 3, 20, 7, 1))
    _, whole = autograd(cohort, config)
    for pairs in (1, 60, 300):
        monkeypatch.setattr(autograd_module, "MAX_PAIRS", pairs)
        _, blocks = autograd(cohort, config)
        close(blocks.changes, whole.changes, 1e-6)
        close(blocks.losses, whole.losses, 1e-6)


@pytest.mark.parametrize("name", ["default", "ccl", "fewer negatives than wanted"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_cohort_is_its_users_one_by_one_bit_for_bit(name, threads):
    """More users than one task holds, so that with two threads the tasks really run side by side."""
    config = small_config(**VARIANTS[name], embedding_dim=64)
    cohort = cohort_for(config, sizes=tuple(1 + (7 * i) % 30 for i in range(50)), num_items=150, k=64)
    together = compiled(cohort, config, threads=threads)
    for u in range(50):
        alone = compiled(cohort.alone(u), config)
        mine = slice(together.pointer[u], together.pointer[u + 1])
        assert (alone.rows == together.rows[mine]).all()
        assert alone.changes.tobytes() == together.changes[mine].tobytes()
        assert alone.private.tobytes() == together.private[u : u + 1].tobytes()
        assert alone.losses[0] == together.losses[u]


@pytest.mark.parametrize("negatives", ["shared", "per-positive"])
@pytest.mark.parametrize("refresh", [False, True], ids=["plain", "refresh"])
def test_an_autograd_cohort_is_its_users_one_by_one(negatives, refresh):
    config = small_config(negatives=negatives)
    cohort = cohort_for(config)
    plan, together = autograd(cohort, config, refresh)
    for u in range(cohort.graphs.num_users):
        plan_alone, alone = autograd(cohort.alone(u), config, refresh)
        mine = slice(plan.pointer[u], plan.pointer[u + 1])
        assert (plan_alone.rows == plan.rows[mine]).all()
        close(alone.changes, together.changes[mine], 1e-6)
        close(alone.private[0], together.private[u], 1e-6)
        close(alone.losses[0], together.losses[u], 1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"negatives": "per-positive", "num_negatives": 3}], ids=["shared", "per-positive"]
)
def test_threads_do_not_change_a_large_cohort(changes):
    """Enough users for several tasks of the plan and of the step."""
    config = small_config(**changes)
    cohort = cohort_for(config, sizes=tuple(1 + (5 * i) % 17 for i in range(300)), num_items=90)
    one, two = compiled(cohort, config, threads=1), compiled(cohort, config, threads=2)
    for name in ("rows", "pointer", "changes", "private", "losses"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


def test_losses_do_not_change_the_step_and_inputs_are_left_alone():
    config = small_config()
    cohort = cohort_for(config)
    table, private = cohort.table.copy(), cohort.private.copy()
    cohort.table.flags.writeable = False
    with_losses = compiled(cohort, config)
    without = train_cohort(cohort.table, cohort.weights, cohort.graphs, cohort.private, cohort.keys, config)
    assert without.changes.tobytes() == with_losses.changes.tobytes()
    assert (cohort.table == table).all()
    assert (cohort.private == private).all()


@pytest.mark.parametrize(
    "changes",
    [{}, {"local_optimizer": "adam"}, {"negatives": "per-positive"}, {**CCL}, {"blend_weight": 0.5}],
    ids=["default", "adam", "per-positive", "ccl", "blend"],
)
@pytest.mark.parametrize("refresh", [False, True])
def test_a_cohort_of_nobody(changes, refresh):
    """A SuperNode may have no user in a round."""
    config = small_config(**changes, embedding_dim=4)
    graphs = build_local_graphs(*end_to_end([]), np.empty(0, np.uint64), 10, "relative", 0.1)
    table = np.ones((10, 4), np.float32)
    updates = train_cohort(
        table, norm_weights(table, 1.0), graphs, np.empty((0, 4), np.float32), np.empty(0, np.uint64), config,
        refresh=refresh, deviations=[] if config.blend_weight < 1 else None,
    )  # fmt: skip
    assert updates.changes.shape == (0, 4)
    assert updates.private.shape == (0, 4)
    assert updates.pointer.tolist() == [0]


def test_who_can_train():
    lists = [[], [1], list(range(10)), list(range(9))]
    graphs = build_local_graphs(*end_to_end(lists), np.arange(4, dtype=np.uint64), 10, "relative", 1.0)
    assert can_train(graphs).tolist() == [False, True, False, True]
    everything = build_local_graphs(*end_to_end([[1]]), np.arange(1, dtype=np.uint64), 10, "bernoulli", 1.0)
    assert can_train(everything).tolist() == [False]


def test_no_deviation_changes_nothing():
    """D = 0 goes through autograd and gives what the compiled step gives."""
    config = small_config()
    cohort = cohort_for(config)
    plain = compiled(cohort, config)
    with_zeros = train_cohort(
        cohort.table, cohort.weights, cohort.graphs, cohort.private, cohort.keys, config,
        deviations=[no_deviation(8)] * cohort.graphs.num_users,
    )  # fmt: skip
    close(with_zeros.changes, plain.changes)


def test_step_scales_with_its_learning_rates():
    config = small_config()
    cohort = cohort_for(config)
    one = compiled(cohort, config)
    twice = compiled(cohort, small_config(item_learning_rate=4.0, user_learning_rate=0.6))
    close(twice.changes, 2 * one.changes, 1e-6)
    close(twice.private - cohort.private, 2 * (one.private - cohort.private), 1e-5)
    still = compiled(replace(cohort), small_config(user_learning_rate=0.0))
    assert (still.private == cohort.private).all()
