"""Scores by hand, lists against the compiled ranking, and the form of every encoder."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import default_values, parse_run_config
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.encoders import build_encoder
from fastpfrec_flwr.model.linear import LinearForm, NoLinearFormError, linear_form, popularity_bias
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.recommend import LocalModel, ModelError, Recommender
from fastpfrec_flwr.recommend.fitting import L2, LEARNING_RATE, NUM_NEGATIVES, fitted_vector
from fastpfrec_flwr.recommend.keeping import keep_model
from fastpfrec_flwr.recommend.loading import load_run
from fastpfrec_flwr.recommend.model import best_rows

ROOT = Path(__file__).resolve().parents[2]
PLAIN = LinearForm(0.25, 0.75, 0.0, False, 0.0)
TABLE = np.array([[1, 0], [0, 2], [3, 4], [-1, 1], [9, 9]], np.float32)


def catalogue(num_items, reserved=0):
    return Catalogue(tuple(f"i{n}" for n in range(num_items)), reserved)


def test_scores_by_hand():
    model = LocalModel(TABLE, PLAIN, catalogue(4, reserved=1))
    # u = 0.75 / sqrt(2) * (E_0 + E_1) = 0.75 / sqrt(2) * (1, 2)
    share = 0.75 / np.sqrt(2)
    scores = model.scores(np.array([0, 1]))
    np.testing.assert_allclose(scores, [-np.inf, -np.inf, share * 11, share, -np.inf], rtol=1e-6)
    # with p_u = (4, -4): u += (1, -1)
    scores = model.scores(np.array([0, 1]), np.array([4, -4], np.float32))
    np.testing.assert_allclose(scores[[2, 3]], [share * 11 - 1, share - 2], rtol=1e-6)


def test_a_stranger_gets_what_is_unlike_the_mean_row():
    model = LocalModel(TABLE, PLAIN, catalogue(4, reserved=1))
    # mean of the four rows = (0.75, 1.75)
    np.testing.assert_allclose(model.scores(np.empty(0, np.int64)), [-0.75, -3.5, -9.25, -1, -np.inf], rtol=1e-6)
    assert [each.item for each in Recommender(model).recommend([], 9).items] == ["i0", "i3", "i1", "i2"]
    counted = LocalModel(TABLE, PLAIN._replace(popularity_weight=2.0), catalogue(5), np.array([1, np.e**9, 1, 1, 1]))
    # mean = (2.4, 3.2): -2.4, -6.4 + 18, -20, -0.8, -50.4
    assert [each.item for each in Recommender(counted).recommend(["who"], 2).items] == ["i1", "i3"]


def test_a_fitted_vector_takes_the_steps_of_the_loss():
    """Against torch's own gradients of the documented loss, with the same negatives."""
    generator = np.random.default_rng(3)
    table = generator.normal(0, 0.5, (40, 8)).astype(np.float32)
    rows, form = np.array([3, 7, 21, 30]), LinearForm(0.25, 0.75, 1.0, False, 0.0)
    model = LocalModel(table, form, catalogue(38, reserved=2))
    draws, free = derive_generator(0, "local fit", 4), np.setdiff1d(np.arange(38), rows)
    p = torch.zeros(8)
    negatives = torch.tensor(table)[free[draws.integers(0, len(free), NUM_NEGATIVES)]]
    rows_t, weights = torch.tensor(table), torch.tensor(model.weights)
    for _ in range(3):
        p.requires_grad_()
        weighted = weights[rows, None] * rows_t[rows]
        users = 0.25 * p + 0.75 / 3**0.5 * (weighted.sum(0) - weighted)
        margin = (users * rows_t[rows]).sum(1, keepdim=True) - users @ negatives.T
        loss = -torch.nn.functional.logsigmoid(margin).mean(1).sum() + L2 / 2 * (p**2).sum()
        (gradient,) = torch.autograd.grad(loss, p)
        p = (p - LEARNING_RATE * gradient).detach()
    got = fitted_vector(table, model.weights, form, rows, 38, steps=3)
    np.testing.assert_allclose(got, p.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.fitted(rows), model.fitted(rows))


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ([], PLAIN),
        ([0, 1, 2, 3], PLAIN),
        ([0], PLAIN._replace(user_weight=0.0)),
        ([0], PLAIN._replace(unit_users=True)),
    ],
)
def test_where_there_is_nothing_to_fit(rows, form):
    assert LocalModel(TABLE, form, catalogue(4, reserved=1)).fitted(np.array(rows, np.int64)) is None


def test_cosine_users_and_popularity_by_hand():
    form = LinearForm(0.0, 1.0, 0.0, True, 0.5)
    model = LocalModel(TABLE, form, catalogue(5), counts=np.array([1, 1, np.e, 0, 1], np.float32))
    # u = (1, 0) / 1; bias 0.5 log(max(.5, count))
    bias = np.array([0, 0, 0.5, 0.5 * np.log(0.5), 0])
    np.testing.assert_allclose(model.scores(np.array([0])), [-np.inf, *(np.array([0, 3, -1, 9]) + bias[1:])], rtol=1e-6)


def test_a_least_squares_by_hand():
    """Two rows of one length at right angles, one of none."""
    table = np.array([[2, 0], [0, 2], [0, 0]], np.float32)
    form = LinearForm(0.0, 0.0, 0.0, False, 0.0, background=0.5, ridge=1.0)
    model = LocalModel(table, form, catalogue(3))
    rows = table / np.sqrt(np.square(table).sum() / 3)
    normal = 0.5 * rows.T @ rows + np.eye(2) + np.outer(rows[1], rows[1])
    np.testing.assert_allclose(model.user_vector(np.array([1])), np.linalg.solve(normal, rows[1]), rtol=1e-6)
    # r = |rows[1]|^2 = 3/2: u = (0, sqrt(3/2) / (3/4 + 1 + 3/2))
    np.testing.assert_allclose(model.user_vector(np.array([1])), [0, np.sqrt(1.5) / 3.25], rtol=1e-6)
    assert model.fitted(np.array([1])) is None
    # A stranger gets what has most users: column 0.
    np.testing.assert_array_equal(model.scores(np.empty(0, np.int64)), table[:, 0])


def test_recommendations_leave_out_what_was_seen_and_count_the_unknown():
    model = LocalModel(TABLE, PLAIN, Catalogue(("a", "b", "c", "d", "e"), titles={"e": "Eee"}))
    found = Recommender(model).recommend(["a", "who", "a", "what"], k=10, without=["c", "nobody"], fit=False)
    assert (found.known, found.unknown) == (1, 2)
    assert [each.item for each in found.items] == ["e", "b", "d"]
    assert [each.rank for each in found.items] == [1, 2, 3]
    assert found.items[0].title == "Eee"
    assert found.items[0].to_dict() == {"rank": 1, "item": "e", "title": "Eee", "score": pytest.approx(0.75 * 9)}
    with pytest.raises(ModelError, match="must be >= 1, got 0"):
        Recommender(model).recommend(["a"], 0)


@given(scores=st.lists(st.sampled_from([0.0, 1.0, 1.5, -2.0, -np.inf]), min_size=1, max_size=30), k=st.integers(1, 40))
def test_best_rows_are_the_sorted_ones(scores, k):
    expected = [i for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)) if np.isfinite(scores[i])][:k]
    assert best_rows(np.array(scores, np.float32), k).tolist() == expected


ENCODERS = [
    {},
    {"norm-exponent": 0.5, "user-weight": 0.0, "neighbour-weight": 1.0},
    {"encoder": "lightgcn", "leave-one-out": False, "norm-exponent": 0.0, "item-refresh-interval": 1, "num-layers": 3},
    {"loss": "ccl", "unit-rows": True, "popularity-weight": 0.03, "norm-exponent": 0.0},
    {
        "encoder": "spectral",
        "server-step": "posterior",
        "perturbation": "none",
        "background-weight": 0.2,
        "user-l2": 0.5,
    },
]


@pytest.mark.parametrize("name", ["lightgcn", "fedgnn"])
def test_baselines_on_lightgcns_star_have_its_form_whatever_the_encoder_says(name):
    values = {**default_values(), "num-layers": 2}
    assert linear_form({**values, "model": name}) == linear_form({**values, "encoder": "lightgcn"})
    assert linear_form({**values, "model": name}) != linear_form(values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": name}, f"model must be one of fastpfrec, lightgcn, fedgnn .*, got '{re.escape(name)}'")
        for name in ("fedmf", "fedncf", "perfedrec", "perfedrec++", "local-only", "mine:Model")
    ],
)
def test_a_model_that_needs_more_than_table_and_history_is_refused_and_not_kept(changes, words, tmp_path, caplog):
    config = {**default_values(), **changes}
    with pytest.raises(NoLinearFormError, match=words):
        linear_form(config)
    assert keep_model(tmp_path, TABLE, None, catalogue(5), config, "s") is None
    assert re.search(words, caplog.text)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"config": config}))
    np.savez(run / "item_table.npz", item_table=TABLE, item_ids=np.array(list("abcde")))
    with pytest.raises(ModelError, match=words):
        load_run(run)


@pytest.mark.parametrize("changes", ENCODERS)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_lists_are_those_of_the_evaluation(changes, seed):
    """The NumPy form against the encoder's kernel and the exact ranking, private vectors included."""
    config = parse_run_config({**default_values(), **changes})
    generator = np.random.default_rng(seed)
    table = generator.normal(0, 0.3, (60, 8)).astype(np.float32)
    private = generator.normal(0, 0.3, (7, 8)).astype(np.float32)
    counts = generator.integers(0, 50, 60).astype(np.float32)
    rows = [np.sort(generator.choice(60, size, replace=False)) for size in range(1, 8)]
    ends = np.cumsum([len(row) for row in rows])
    history = Rows(np.concatenate(rows).astype(np.int32), ends - np.array([len(r) for r in rows]), ends)
    vectors = build_encoder(config).user_vectors(table, history, private)
    if config.loss == "ccl":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    bias = popularity_bias(counts, config.popularity_weight) if config.counted else None
    expected = rank_top_k(vectors, table, [history], item_bias=bias, threads=1)
    model = LocalModel(table, linear_form(config.to_flat_dict()), catalogue(60), counts)
    for user, row in enumerate(rows):
        np.testing.assert_allclose(model.user_vector(row, private[user]), vectors[user], rtol=2e-5, atol=2e-6)
        assert best_rows(model.scores(row, private[user]), 20).tolist() == expected[user].tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"table": TABLE[:3]}, r"shape \(3, 2\) does not fit catalogue version 1"),
        ({"table": np.full((5, 2), np.nan, np.float32)}, "no finite numbers"),
        ({"form": PLAIN._replace(popularity_weight=0.1)}, "no item counts"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ModelError, match=words):
        LocalModel(**{"table": TABLE, "form": PLAIN, "catalogue": catalogue(5), **changes})


def test_a_private_vector_of_another_run_is_refused():
    model = LocalModel(TABLE, PLAIN, catalogue(5))
    with pytest.raises(ModelError, match="3 dimensions, the model 2"):
        model.scores(np.array([0]), np.zeros(3, np.float32))


def test_the_api_imports_neither_torch_nor_numba():
    code = (
        "import sys; import fastpfrec_flwr.recommend, fastpfrec_flwr.recommend.history, fastpfrec_flwr.recommend.device\n"
        "print(sorted({'torch', 'numba', 'flwr', 'pandas', 'scipy', 'pydantic', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"
