"""The server step by hand: two steps of row Adam, the schedule, the blend."""

import math

import numpy as np
import pytest

from fastpfrec_flwr.server.steps import AverageStep, MomentumStep, RowAdamStep, ServerState, scheduled

TABLE = np.array([[1, 2], [3, 4]], np.float32)


def state(table=TABLE):
    return ServerState.start(np.array(table, np.float32))


def test_average_step_blends_by_hand():
    """E = [1 2; 3 4], W_s = E + [1 -1; 0 2], beta .25: (1 - .25) E + .25 W_s = [1.25 1.75; 3 4.5]."""
    change = np.array([[1, -1], [0, 2.0]])
    after = AverageStep(0.25, False).apply(state(), change, 1)
    np.testing.assert_array_equal(after.item_table, np.array([[1.25, 1.75], [3, 4.5]], np.float32))
    assert after.item_table.dtype == np.float32
    assert after.steps == 1
    whole = AverageStep(1.0, False).apply(state(), change, 1)
    np.testing.assert_array_equal(whole.item_table, TABLE + change)


def test_row_adam_by_hand():
    """Row 0 gets G = (3, 4), then (-3, 0); row 1 gets nothing, then (0, 2).

    Row 0, step 1: mean G^2 = 12.5, v = .125, v^ = .125 / .01 = 12.5; m = (.3, .4), m^ = (3, 4); E += s m^ / (sqrt 12.5 + 1e-4).
    Row 0, step 2: mean G^2 = 4.5, v = .99 .125 + .045 = .16875, v^ = v / .0199; m = (.27 - .3, .36) = (-.03, .36), m^ = m / .19.
    Row 1, step 2: mean G^2 = 2, v = .02, v^ = .02 / .0199; m = (0, .2), m^ = (0, .2 / .19).
    """
    step = RowAdamStep(0.5, 1.0, False, "constant", 10)
    first = step.apply(state(), np.array([[3, 4], [0, 0.0]]), 1)
    move = 0.5 / (math.sqrt(12.5) + 1e-4)
    np.testing.assert_allclose(first.item_table, [[1 + 3 * move, 2 + 4 * move], [3, 4]], rtol=1e-6)
    np.testing.assert_allclose(first.first_moment, [[0.3, 0.4], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(first.second_moment, [0.125, 0], rtol=1e-6)
    second = step.apply(first, np.array([[-3, 0], [0, 2.0]]), 2)
    row_0 = 0.5 / 0.19 / (math.sqrt(0.16875 / 0.0199) + 1e-4)
    row_1 = 0.5 / 0.19 / (math.sqrt(0.02 / 0.0199) + 1e-4)
    expected = [[1 + 3 * move - 0.03 * row_0, 2 + 4 * move + 0.36 * row_0], [3, 4 + 0.2 * row_1]]
    np.testing.assert_allclose(second.item_table, expected, rtol=1e-6)
    np.testing.assert_allclose(second.first_moment, [[-0.03, 0.36], [0, 0.2]], rtol=1e-5)
    np.testing.assert_allclose(second.second_moment, [0.16875, 0.02], rtol=1e-6)
    assert second.steps == 2


def test_row_adam_corrects_by_its_own_steps_not_by_the_round():
    """A round without anything healthy takes no step: the first step corrects as the first, in whatever round."""
    change = np.array([[3, 4], [1, 0.0]])
    step = RowAdamStep(0.5, 1.0, False, "constant", 10)
    np.testing.assert_array_equal(step.apply(state(), change, 1).item_table, step.apply(state(), change, 9).item_table)


def test_momentum_by_hand():
    """E = [1 2; 3 4], mu = .5, s = .1. G = [4 0; 0 8], then [0 2; 0 0].

    Step 1: m = G, E = [1.4 2; 3 4.8]. Step 2: m = [2 2; 0 4], E = [1.6 2.2; 3 5.2].
    """
    step = MomentumStep(0.1, 0.5, 1.0, False, "constant", 10)
    first = step.apply(state(), np.array([[4, 0], [0, 8.0]]), 1)
    np.testing.assert_allclose(first.item_table, [[1.4, 2], [3, 4.8]], rtol=1e-6)
    np.testing.assert_array_equal(first.first_moment, [[4, 0], [0, 8]])
    second = step.apply(first, np.array([[0, 2], [0, 0.0]]), 2)
    np.testing.assert_array_equal(second.first_moment, [[2, 2], [0, 4]])
    np.testing.assert_allclose(second.item_table, [[1.6, 2.2], [3, 5.2]], rtol=1e-6)
    assert second.steps == 2


def test_momentum_blends_schedules_and_keeps_unit_rows():
    """beta = .5 halves the move. Cosine, R = 101, round 51: .1 -> .055. Without momentum it is the average times s."""
    change = np.array([[4, 0], [0, 8.0]])
    half = MomentumStep(0.1, 0.9, 0.5, False, "constant", 10).apply(state(), change, 1)
    np.testing.assert_allclose(half.item_table, [[1.2, 2], [3, 4.4]], rtol=1e-6)
    late = MomentumStep(0.1, 0.9, 1.0, False, "cosine", 101).apply(state(), change, 51)
    np.testing.assert_allclose(late.item_table, [[1.22, 2], [3, 4.44]], rtol=1e-6)
    unit = MomentumStep(1.0, 0.0, 1.0, True, "constant", 10).apply(state(), np.array([[2, 2], [0, 0.0]]), 1)
    np.testing.assert_allclose(unit.item_table, [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)


def test_blend_scales_the_adam_step():
    change = np.array([[3, 4], [1, 0.0]])
    whole = RowAdamStep(0.5, 1.0, False, "constant", 10).apply(state(), change, 1).item_table - TABLE
    half = RowAdamStep(0.5, 0.5, False, "constant", 10).apply(state(), change, 1).item_table - TABLE
    np.testing.assert_allclose(half, whole / 2, rtol=1e-5)


def test_cosine_by_hand():
    """s = .05, R = 101: the whole step in round 1, (.1 + .9/2) s in the middle, a tenth in the last."""
    assert scheduled(0.05, "cosine", 1, 101) == pytest.approx(0.05, rel=1e-12)
    assert scheduled(0.05, "cosine", 51, 101) == pytest.approx(0.0275, rel=1e-12)
    assert scheduled(0.05, "cosine", 101, 101) == pytest.approx(0.005, rel=1e-12)
    assert scheduled(0.05, "cosine", 26, 101) == pytest.approx(0.05 * (0.1 + 0.45 * (1 + math.sqrt(0.5))), rel=1e-12)
    values = [scheduled(1.0, "cosine", t, 101) for t in range(1, 102)]
    assert (np.diff(values) < 0).all()


@pytest.mark.parametrize(("schedule", "rounds"), [("constant", 10), ("cosine", 1)])
def test_schedules_that_stand_still(schedule, rounds):
    assert {scheduled(0.3, schedule, t, rounds) for t in range(1, rounds + 1)} == {0.3}


def test_the_schedule_acts_in_the_step():
    change = np.array([[3, 4], [1, 0.0]])
    step = RowAdamStep(0.5, 1.0, False, "cosine", 11)
    first = step.apply(state(), change, 1).item_table - TABLE
    last = step.apply(state(), change, 11).item_table - TABLE
    np.testing.assert_allclose(last, first / 10, rtol=1e-4)


STEPS = [
    AverageStep(0.5, False),
    AverageStep(1.0, True),
    RowAdamStep(0.05, 1.0, False, "cosine", 10),
    RowAdamStep(0.05, 1.0, True, "constant", 10),
]


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_changed_in_place(step):
    generator = np.random.default_rng(0)
    before = ServerState(
        generator.normal(size=(6, 3)).astype(np.float32), generator.normal(size=(6, 3)).astype(np.float32),
        generator.random(6).astype(np.float32), 4,
    )  # fmt: skip
    change = generator.normal(size=(6, 3))
    parts = [before.item_table, before.first_moment, before.second_moment, change]
    copies = [part.copy() for part in parts]
    for part in parts:
        part.flags.writeable = False
    after = step.apply(before, change, 2)
    for part, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(part, copy)
    assert (before.steps, after.steps) == (4, 5)
    assert after.item_table.dtype == after.first_moment.dtype == after.second_moment.dtype == np.float32
    assert not np.shares_memory(after.item_table, before.item_table)


@pytest.mark.parametrize("step", STEPS[1::2])
def test_unit_rows(step):
    generator = np.random.default_rng(1)
    table = generator.normal(size=(50, 8)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    after = step.apply(state(table), generator.normal(size=(50, 8)), 1)
    np.testing.assert_allclose(np.linalg.norm(after.item_table.astype(np.float64), axis=1), 1, rtol=1e-6)


def test_a_zero_row_stays_zero_at_unit_length():
    after = AverageStep(1.0, True).apply(state([[0, 0], [0, 3]]), np.zeros((2, 2)), 1)
    np.testing.assert_array_equal(after.item_table, [[0, 0], [0, 1]])


def test_no_change_moves_nothing():
    for step in STEPS[::2]:
        np.testing.assert_array_equal(step.apply(state(), np.zeros((2, 2)), 1).item_table, TABLE)
