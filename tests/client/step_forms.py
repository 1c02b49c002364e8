"""The local step of a small cohort in its three forms: compiled, in torch's operators, and by autograd."""

import numpy as np
from cohorts import Cohort, random_cohort, run_config

from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.operators_step import BLOCK_BYTES, operators_step
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import train_cohort
from fastpfrec_flwr.model.fastgnn import norm_weights

CCL = {"loss": "ccl", "unit_rows": True, "negative_weight": 3.0, "margin": 0.1}


def small_config(**changes):
    return run_config(**{"num_negatives": 10, "item_learning_rate": 2.0, "l2": 0.05, "user_l2": 0.03, **changes})


def cohort_for(config, **changes) -> Cohort:
    cohort = random_cohort(unit=config.unit_rows, **changes)
    if config.norm_exponent in (0.0, 1.0):
        cohort.weights = norm_weights(cohort.table, config.norm_exponent)
    return cohort


def compiled(cohort: Cohort, config, refresh=False, threads=1):
    return train_cohort(
        cohort.table, cohort.weights, cohort.graphs, cohort.private, cohort.keys, config,
        refresh=refresh, report_loss=True, threads=threads,
    )  # fmt: skip


def autograd(cohort: Cohort, config, refresh=False):
    plan = plan_cohort(cohort.graphs, cohort.keys, config.negatives == "shared", config.num_negatives)
    result = autograd_step(
        cohort.table[plan.rows], cohort.weights, cohort.private, cohort.graphs, plan, config, refresh, "cpu"
    )
    return plan, result


def operators(cohort: Cohort, config, refresh=False, block_bytes=BLOCK_BYTES):
    plan = plan_cohort(cohort.graphs, cohort.keys, True, config.num_negatives)
    return operators_step(
        cohort.table, cohort.weights, cohort.private, cohort.graphs, plan, config, refresh, True, "cpu", block_bytes
    ).on_host()


def close(got, expected, tolerance=2e-5):
    """Equal to `tolerance` of the largest value: what float32 sums of this length leave."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))
