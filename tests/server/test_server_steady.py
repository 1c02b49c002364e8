"""Rows that are pulled one way: found by their steadiness, kept short, and nothing else touched."""

import re

import numpy as np
import pytest

from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.server.build import build_server_step
from fastpfrec_flwr.server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fastpfrec_flwr.server.steady import LEAST, WARM_UP, SteadyRows, followed, shorten
from fastpfrec_flwr.server.steps import AverageStep, RowAdamStep, ServerState
from tests.whole_runs import settings_of

ROWS, K = 500, 16
STEP = RowAdamStep(0.05, 1.0, False, "constant", 60)


def changes(rounds, pushed=(), seed=0, push=1.0):
    """Honest rows are moved to and fro; `pushed` rows the same way in every round, besides."""
    generator = np.random.default_rng(seed)
    direction = generator.normal(size=K)
    for _ in range(rounds):
        change = generator.normal(size=(ROWS, K)).astype(np.float32)
        change[list(pushed)] += push * direction
        yield change


def start(seed=1):
    return ServerState.start(np.random.default_rng(seed).normal(0, 0.5, (ROWS, K)).astype(np.float32))


def run(step, moves):
    state = start()
    for server_round, change in enumerate(moves, 1):
        state = step.apply(state, change, server_round)
    return state


def test_steadiness_by_hand():
    """Row 0 goes (3, 4) twice: 1. Row 1 goes (2, 0) and back: m = .98 .04 - .04 = -.0008, m^2 / (1 - .98^2) / mean square."""
    first, steady = followed(None, np.array([[3, 4], [2, 0], [0, 0.0]]))
    np.testing.assert_allclose(steady, [1, 1, 0], rtol=1e-6)
    second, steady = followed(first, np.array([[3, 4], [-2, 0], [0, 0.0]]))
    np.testing.assert_allclose(second.mean, [[0.1188, 0.1584], [-0.0008, 0], [0, 0]], rtol=1e-5)
    np.testing.assert_allclose(second.square, [0.99, 0.1584, 0], rtol=1e-5)
    assert steady[0] == pytest.approx(1)
    assert steady[1] == pytest.approx(0.0008**2 / 0.0396 / 0.1584, rel=1e-3)
    assert second.steps == 2
    assert first.mean[0, 0] == pytest.approx(0.06)  # nothing in place


def test_a_pushed_row_is_found_and_kept_short():
    free, held = run(STEP, changes(40, [7])), run(SteadyRows(STEP, 3.0), changes(40, [7]))
    assert held.pull.found == (7,)
    lengths = np.linalg.norm(held.item_table, axis=1)
    assert lengths[7] == pytest.approx(np.quantile(np.linalg.norm(held.item_table, axis=1), 0.1), rel=0.05)
    assert np.linalg.norm(free.item_table[7]) > 3 * lengths[7]
    others = np.arange(ROWS) != 7
    np.testing.assert_array_equal(held.item_table[others], free.item_table[others])


def test_where_nobody_pushes_no_bit_changes():
    free, held = run(STEP, changes(60)), run(SteadyRows(STEP, 3.0), changes(60))
    assert held.pull.found == ()
    assert held.item_table.tobytes() == free.item_table.tobytes()


def test_rows_that_all_go_one_way_are_no_suspects():
    """As at a training's beginning: the comparison is with the others."""
    held = run(SteadyRows(STEP, 3.0), changes(40, range(ROWS), push=3.0))
    assert held.pull.found == ()


def test_nobody_is_found_while_the_averages_are_young():
    for rounds, found in ((WARM_UP - 1, ()), (WARM_UP, (7,))):
        assert run(SteadyRows(STEP, 1.5), changes(rounds, [7], push=3.0)).pull.found == found


def test_a_row_that_is_not_pushed_any_more_is_let_go():
    moves = [*changes(40, [7], push=2.0), *changes(150, seed=5)]
    assert run(SteadyRows(STEP, 3.0), moves[:40]).pull.found == (7,)
    assert run(SteadyRows(STEP, 3.0), moves).pull.found == ()


def test_rows_that_hardly_anybody_moves_are_no_suspects():
    """Sparse uploads without noise: 99 % of the rows rest, and one that moved once is no steady one."""
    moves = [np.zeros((ROWS, K), np.float32) for _ in range(40)]
    moves[32][3] = 5.0
    assert LEAST > 1 - 0.95
    assert run(SteadyRows(AverageStep(1.0, False), 3.0), moves).pull.found == ()


def test_small_tables_are_left_alone():
    state = ServerState.start(np.ones((20, 4), np.float32))
    for server_round in range(1, 40):
        state = SteadyRows(STEP, 3.0).apply(state, np.full((20, 4), float(server_round == 0)), server_round)
    assert state.pull.found == ()


def test_shorten_by_hand():
    table = np.array([[3, 4], [0, 1], [0, 2], [0, 0.5]], np.float32)
    shorten(table, np.array([0, 3]))
    bound = np.quantile([5, 1, 2, 0.5], 0.1)
    np.testing.assert_allclose(table, [[0.6 * bound, 0.8 * bound], [0, 1], [0, 2], [0, 0.5]], rtol=1e-6)


def test_threads_change_nothing():
    change = next(changes(1))
    for one, two in zip(followed(None, change, 1), followed(None, change, 3), strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, two)
        else:
            np.testing.assert_array_equal(one.mean, two.mean)


@pytest.mark.parametrize(
    "changes",
    [
        {"row_steadiness_threshold": 0.0},
        {"unit_rows": True, "loss": "ccl", "norm_exponent": 0.0},
        {"model": "fedmf"},
        {"train_items": "new", "initial_model": "/a/run"},
    ],
)
def test_where_there_is_nothing_to_shorten_rows_are_not_followed(changes):
    config = parse_run_config(settings_of(changes))
    assert not isinstance(build_server_step(config, 1), SteadyRows)
    assert isinstance(build_server_step(parse_run_config(settings_of({})), 1), SteadyRows)


def test_a_checkpoint_has_it(tmp_path):
    config = parse_run_config(settings_of({}))
    state = run(SteadyRows(STEP, 3.0), changes(35, [7], push=3.0))
    save_checkpoint(tmp_path / "c.npz", Checkpoint(state, None, {}, "s", "d", config.to_flat_dict()))
    back = load_checkpoint(tmp_path / "c.npz", config).state.pull
    assert (back.steps, back.found) == (35, (7,))
    np.testing.assert_array_equal(back.mean, state.pull.mean)
    np.testing.assert_array_equal(back.square, state.pull.square)


def test_one_promoted_item_stays_where_it_was(finished):
    """The whole way: liars push one item of 400; without the check it ends long, with it short, and the log names it.

    A threshold below the default's: on so small a catalogue honest rows are still on their way after 50 rounds.
    """
    lies = {"attack": "promotion", "attack_fraction": 0.04, "num_rounds": 50, "evaluate_every": 50}
    free, held = finished(**lies, row_steadiness_threshold=0.0), finished(**lies, row_steadiness_threshold=1.5)
    item = held.summary["attack"]["promoted"]["item"]
    assert re.search(rf"item rows pulled one way, kept short from now on: .*\b{item}\b", held.log)
    assert held.summary["rows_shortened"] >= 10
    assert free.summary["rows_shortened"] == 0
    assert np.linalg.norm(held.table[item]) < 0.6 * np.linalg.norm(free.table[item])
    assert held.summary["attack"]["exposure"] <= free.summary["attack"]["exposure"]
