"""Attacks that a liar makes alone, on uploads small enough to work out by hand."""

import numpy as np
import pytest
from scenes import ITEMS, K, filled, own_of, scene_of

from fastpfrec_flwr.attacks.replies import Sent, forge_reply
from fastpfrec_flwr.attacks.single import Noise, Replacement, Retrained, Scaling, Shift, sign_flip
from fastpfrec_flwr.draws import fill_laplace

OWN = own_of({0: [1.0, 2.0], 3: [-1.0, 0.5]}, {2: [4.0, 0.0]})


def test_scaling_and_sign_flip():
    assert filled(Scaling().forge(OWN, scene_of()), 0) == {0: [10.0, 20.0], 3: [-10.0, 5.0]}
    assert filled(Scaling().forge(OWN, scene_of(attack_strength=-5.0)), 1) == {2: [-20.0, -0.0]}
    assert filled(sign_flip().forge(OWN, scene_of()), 0) == {0: [-1.0, -2.0], 3: [1.0, -0.5]}
    assert filled(sign_flip().forge(OWN, scene_of(attack_strength=2.0)), 1) == {2: [-8.0, -0.0]}


def test_shift_of_uploads_that_show_their_rows():
    assert filled(Shift().forge(OWN, scene_of(attack_strength=0.5)), 0) == {0: [1.5, 2.5], 3: [-0.5, 1.0]}


def test_dense_shift_lies_on_every_row_and_keeps_the_noise():
    forged = filled(Shift().forge(OWN, scene_of(cover_scale=0.1)), 1)
    assert sorted(forged) == list(range(ITEMS))
    assert forged[2] == [5.0, 1.0]
    cover = np.empty(ITEMS * K, np.float32)
    fill_laplace(np.uint64(2), 0.1, cover)
    others = [row for row in range(ITEMS) if row != 2]
    np.testing.assert_allclose([forged[row] for row in others], cover.reshape(ITEMS, K)[others] + 1, rtol=1e-6)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 5.0])
def test_noise_has_the_asked_for_size_and_is_each_liars_own(sigma):
    table = np.zeros((4000, K))
    own = own_of({0: [1.0, 2.0]}, {0: [1.0, 2.0]})
    scene = scene_of(table, cover_scale=1e-6, attack_strength=sigma, noise_scale=1e-6)
    forgery = Noise().forge(own, scene)
    first, second = (np.array(list(filled(forgery, i).values())) for i in (0, 1))
    first[0] -= [1.0, 2.0]
    assert first.std() == pytest.approx(sigma, rel=0.03)  # 8000 draws: 4 sd are 3.2 %
    assert abs(first.mean()) < 4 * sigma / np.sqrt(8000)
    assert abs(np.corrcoef(first[1:].ravel(), second[1:].ravel())[0, 1]) < 4 / np.sqrt(8000)


def test_replacement_makes_the_average_the_liars_table():
    """3 of 10 clients lie, seven send nothing: the mean of all ten changes is R - E."""
    table = np.arange(ITEMS * K, dtype=np.float32).reshape(ITEMS, K)
    scene = scene_of(table, cover_scale=0.1, attack_fraction=0.3)
    forgery = Replacement().forge(own_of({0: [1.0, 1.0]}, {1: [1.0, 1.0]}, {2: [1.0, 1.0]}), scene)
    total = sum(np.array(list(filled(forgery, i).values())) for i in range(3))
    new = table + total / 10
    assert new.std() < 5 * scene.config.init_scale  # a table drawn like the first one
    assert np.abs(new).max() < 5 * scene.config.init_scale
    half = Replacement().forge(OWN, scene_of(table, cover_scale=0.1, attack_strength=1.0))
    np.testing.assert_allclose(table + np.array(list(filled(half, 0).values())), new, atol=1e-5)


def test_retrained_uploads_pass_as_they_are():
    assert filled(Retrained().forge(OWN, scene_of()), 1) == {2: [4.0, 0.0]}


def test_only_the_liars_part_of_a_reply_changes():
    sent = Sent(
        np.array([7, 8, 9], np.uint64),
        np.array([0, 1, 3, 4], np.int64),
        np.array([0, 1, 5, 2], np.int32),
        np.array([[1, 1], [2, 2], [3, 3], [4, 4]], np.float32),
    )
    liars = np.array([1])
    own = sent.own(liars, np.array([3], np.uint64))
    assert own.rows.tolist() == [1, 5]
    for scene in (scene_of(attack_strength=2.0), scene_of(cover_scale=0.1, attack_strength=2.0)):
        forged = forge_reply(sent, liars, own, scene, Shift(), np.array([77], np.uint64))
        length = 2 if scene.cover_scale == 0 else ITEMS
        assert forged.nonces.tolist() == [7, 77, 9]
        assert np.diff(forged.pointer).tolist() == [1, length, 1]
        assert forged.rows[[0, -1]].tolist() == [0, 2]
        assert forged.values[[0, -1]].tolist() == [[1, 1], [4, 4]]
        place = 1 + forged.rows[1:-1].tolist().index(5)
        assert forged.values[place].tolist() == [5.0, 5.0]


def test_forged_values_stay_readable():
    """Beyond what decoding takes a lie would be refused, not averaged: it stops at the bound, on the grid."""
    sent = Sent(
        np.array([7], np.uint64), np.array([0, 1]), np.array([0], np.int32), np.array([[100.0, 1 / 3]], np.float32)
    )
    own = sent.own(np.array([0]), np.array([3], np.uint64))
    forged = forge_reply(sent, np.array([0]), own, scene_of(attack_strength=1e6), Scaling(), sent.nonces)
    assert forged.values.tolist() == [[4096.0, 4096.0]]
    forged = forge_reply(sent, np.array([0]), own, scene_of(attack_strength=1.0), Scaling(), sent.nonces)
    assert forged.values[0, 1] == np.float32(round(2**20 / 3) / 2**20)
