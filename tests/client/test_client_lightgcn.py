"""The LightGCN step: closed form against autograd and against plain loss differences; users do not mix."""

import numpy as np
import pytest
from cohorts import random_cohort, run_config

from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import train_cohort

LIGHT = {"encoder": "lightgcn", "leave_one_out": False, "norm_exponent": 0.0, "item_refresh_interval": 1}
VARIANTS = {
    "two layers": {},
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3},
    "no L2": {"l2": 0.0, "user_l2": 0.0},
    "fewer negatives than wanted": {"num_negatives": 500},
    "unit rows": {"unit_rows": True},
}


def small_config(**changes):
    base = {"num_negatives": 10, "item_learning_rate": 2.0, "l2": 0.05, "user_l2": 0.03}
    return run_config(**{**base, **LIGHT, **changes})


def step(cohort, config, threads=1):
    return train_cohort(
        cohort.table, np.ones(len(cohort.table), np.float32), cohort.graphs, cohort.private, cohort.keys, config,
        refresh=True, report_loss=True, threads=threads,
    )  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_closed_form_equals_autograd(changes):
    config = small_config(**changes)
    cohort = random_cohort(unit=config.unit_rows)
    fast = step(cohort, config)
    plan = plan_cohort(cohort.graphs, cohort.keys, True, config.num_negatives)
    ones = np.ones(len(cohort.table), np.float32)
    slow = autograd_step(cohort.table[plan.rows], ones, cohort.private, cohort.graphs, plan, config, True, "cpu")
    for got, expected in ((fast.changes, slow.changes), (fast.private, slow.private), (fast.losses, slow.losses)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * max(1.0, np.abs(expected).max()))


def test_a_cohort_is_its_users_one_by_one_to_the_bit():
    config = small_config()
    cohort = random_cohort()
    together = step(cohort, config, threads=2)
    for user in range(cohort.graphs.num_users):
        alone = step(cohort.alone(user), config)
        mine = slice(together.pointer[user], together.pointer[user + 1])
        np.testing.assert_array_equal(alone.rows, together.rows[mine])
        assert alone.changes.tobytes() == together.changes[mine].tobytes()
        assert alone.private.tobytes() == together.private[user : user + 1].tobytes()


def test_a_small_step_lowers_the_loss():
    config = small_config(item_learning_rate=0.02, user_learning_rate=0.02, l2=0.0, user_l2=0.0)
    cohort = random_cohort()
    before = step(cohort, config)
    for user in range(cohort.graphs.num_users):
        one = cohort.alone(user)
        update = step(one, config)
        one.table = one.table.copy()
        one.table[update.rows] += update.changes
        one.private = update.private
        assert step(one, config).losses[0] < before.losses[user]


@pytest.mark.parametrize("changes", [{"negatives": "per-positive", "num_negatives": 3}, {"local_optimizer": "adam"}])
def test_the_variants_without_a_closed_form_train(changes):
    config = small_config(**changes)
    update = step(random_cohort(), config)
    assert np.isfinite(update.changes).all()
    assert np.abs(update.changes).max() > 0
