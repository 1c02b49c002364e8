"""What an accelerator would run, on the CPU and on a device without values; and what happens where its memory ends."""

import logging

import numpy as np
import pytest
import torch
from cohorts import end_to_end
from step_forms import CCL, close, cohort_for, operators, small_config

from fastpfrec_flwr.client.accelerator import DeviceMemoryError, in_parts_that_fit
from fastpfrec_flwr.client.autograd_step import autograd_step
from fastpfrec_flwr.client.deviation import no_deviation
from fastpfrec_flwr.client.operators_step import BLOCK_BYTES, operators_step
from fastpfrec_flwr.client.plan import plan_cohort
from fastpfrec_flwr.client.training import train_cohort
from fastpfrec_flwr.model.graph import build_local_graphs

LIGHTGCN = {"encoder": "lightgcn", "leave_one_out": False, "norm_exponent": 0.0, "item_refresh_interval": 1}
SIZES = (5, 1, 12, 12, 3, 20, 7, 1)
VARIANTS = {
    "default": {},
    "ccl": CCL,
    "fewer negatives": {"num_negatives": 500},
    "whole sums": {"leave_one_out": False},
}


def on_accelerator(cohort, config, device="somewhere", **changes):
    return train_cohort(
        cohort.table, cohort.weights, cohort.graphs, cohort.private, cohort.keys, config, device=device, **changes
    )


@pytest.fixture
def accelerator(monkeypatch):
    """A device called `somewhere`, which is the CPU; its calls get the memory that a test gives it."""
    calls = []
    most = {"users": 10**9}

    def limited(step):
        def run(*arguments, **options):
            graphs = arguments[3]
            calls.append((step.__name__, graphs.num_users))
            if graphs.num_users > most["users"]:
                raise torch.OutOfMemoryError("no memory left")
            return step(*arguments[:-1], "cpu", **options)

        return run

    for step in (operators_step, autograd_step):
        monkeypatch.setattr(f"fastpfrec_flwr.client.{step.__name__}.{step.__name__}", limited(step))
    return most, calls


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("refresh", [False, True], ids=["plain", "refresh"])
def test_nothing_in_a_step_waits_for_the_device(name, refresh):
    """On `meta` reading a value, or meeting a tensor that lies elsewhere, raises."""
    config = small_config(**VARIANTS[name])
    cohort = cohort_for(config, sizes=SIZES)
    plan = plan_cohort(cohort.graphs, cohort.keys, True, config.num_negatives)
    changes, vectors, losses = operators_step(
        cohort.table, cohort.weights, cohort.private, cohort.graphs, plan, config, refresh, True, "meta", 10_000
    )
    assert {each.device.type for each in (changes, vectors, losses)} == {"meta"}
    assert changes.shape == (len(plan.rows), cohort.table.shape[1])
    assert vectors.shape == cohort.private.shape
    assert losses.shape == (len(SIZES),)


def test_meta_does_tell_who_waits_and_who_mixes():
    """What the test above rests on."""
    there = torch.ones(3, device="meta")
    with pytest.raises(RuntimeError):
        there.tolist()
    with pytest.raises(RuntimeError):
        there[there > 0]
    with pytest.raises(RuntimeError):
        there + torch.ones(3)


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_equal_the_whole(name):
    """Where blocks of users end must not matter."""
    config = small_config(**VARIANTS[name])
    cohort = cohort_for(config, sizes=SIZES)
    whole = operators(cohort, config, block_bytes=BLOCK_BYTES)
    for block_bytes in (1, 20_000, 50_000):
        blocks = operators(cohort, config, block_bytes=block_bytes)
        close(blocks.changes, whole.changes, 1e-6)
        close(blocks.private, whole.private, 1e-6)
        close(blocks.losses, whole.losses, 1e-6)


def test_the_same_bits_each_time():
    config = small_config(**CCL)
    cohort = cohort_for(config, sizes=SIZES)
    first, second = (operators(cohort, config, True) for _ in range(2))
    assert first.changes.tobytes() == second.changes.tobytes()
    assert first.private.tobytes() == second.private.tobytes()


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, "operators_step"),
        (CCL, "operators_step"),
        ({"local_optimizer": "adam", "item_learning_rate": 0.01}, "autograd_step"),
        ({"negatives": "per-positive"}, "autograd_step"),
        (LIGHTGCN, "autograd_step"),
    ],
    ids=["default", "ccl", "adam", "per-positive", "lightgcn"],
)
def test_a_cohort_that_does_not_fit_is_trained_in_parts(accelerator, caplog, changes, form):
    most, calls = accelerator
    config = small_config(**changes)
    cohort = cohort_for(config, sizes=SIZES)
    on_cpu = on_accelerator(cohort, config, device="cpu")
    calls.clear()
    whole = on_accelerator(cohort, config)
    assert calls == [(form, 8)]
    most["users"] = 3
    with caplog.at_level(logging.WARNING):
        parts = on_accelerator(cohort, config)
    assert [users for _, users in calls[1:]] == [8, 4, 2, 2, 4, 2, 2]
    assert "no memory left for 8 clients at once: they were trained in 4 parts" in caplog.text
    for result in (on_cpu, whole):
        assert (parts.rows == result.rows).all()
        assert (parts.pointer == result.pointer).all()
        assert (parts.own_counts == result.own_counts).all()
        if config.local_optimizer == "sgd":  # adam's first step is a sign, which the last bit decides near zero
            close(parts.changes, result.changes)
        close(parts.private, result.private)


def test_deviations_go_with_their_users(accelerator):
    most, _ = accelerator
    config = small_config(blend_weight=0.5)
    cohort = cohort_for(config, sizes=SIZES)
    kept = [no_deviation(8)] * len(SIZES)
    whole = on_accelerator(cohort, config, deviations=kept)
    most["users"] = 1
    parts = on_accelerator(cohort, config, deviations=kept)
    close(parts.changes, whole.changes, 1e-6)
    assert (parts.pointer == whole.pointer).all()


def test_one_user_that_does_not_fit_says_what_to_do(accelerator):
    accelerator[0]["users"] = 0
    config = small_config()
    with pytest.raises(DeviceMemoryError, match=r'say device = "cpu"'):
        on_accelerator(cohort_for(config, sizes=SIZES), config)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def broken(first, last):
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        in_parts_that_fit(broken, 8)


def test_a_cohort_of_nobody(accelerator):
    config = small_config(embedding_dim=4)
    graphs = build_local_graphs(*end_to_end([]), np.empty(0, np.uint64), 10, "relative", 0.1)
    nobody = np.empty((0, 4), np.float32)
    updates = train_cohort(
        np.ones((10, 4), np.float32), np.ones(10, np.float32), graphs, nobody, np.empty(0, np.uint64), config,
        device="somewhere",
    )  # fmt: skip
    assert updates.changes.shape == updates.private.shape == (0, 4)
    assert updates.pointer.tolist() == [0]
