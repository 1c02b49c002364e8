"""Keyed randomness: no two keys share a draw, and a draw depends on its key alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpfrec_flwr.randomness import GOLDEN, derive_generator, mix64, stream_key, user_stream_keys

# Keys that are alike as text once joined, in type or in length.
ALIKE = [
    (),
    ("",),
    ("", ""),
    (1,),
    ("1",),
    (1, 1),
    (11,),
    ("11",),
    ("1", "1"),
    (1, "1"),
    ("1", 1),
    ("a", "bc"),
    ("ab", "c"),
    ("abc",),
    ("a", "b", "c"),
    ("int:1:1",),
    ("1int:1:1",),
    (-1,),
    ("-1",),
    (0,),
    (True,),
    ("True",),
    (2**64 + 1,),
]


def test_keys_of_different_type_or_length_do_not_collide():
    assert len({stream_key(7, *keys) for keys in ALIKE}) == len(ALIKE)
    assert len({derive_generator(7, *keys).integers(2**63) for keys in ALIKE}) == len(ALIKE)


def test_a_key_does_not_run_into_the_seed():
    assert stream_key(1, 2, 3) != stream_key(12, 3) != stream_key(1, 23)
    assert len({stream_key(seed, "noise") for seed in range(2000)}) == 2000


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
@settings(max_examples=200, deadline=None)
def test_only_equal_keys_give_equal_streams(one, other):
    assert (stream_key(1, *one) == stream_key(1, *other)) == (one == other)


def test_same_keys_same_draw_in_whatever_order_they_are_asked_for():
    keys = [("negatives", user, server_round) for user in range(5) for server_round in range(3)]
    forward = {key: derive_generator(3, *key).random(4).tolist() for key in keys}
    np.random.seed(0)  # noqa: NPY002  (global state must not matter)
    backward = {key: derive_generator(3, *key).random(4).tolist() for key in reversed(keys)}
    assert forward == backward
    assert len({tuple(draw) for draw in forward.values()}) == len(keys)


def test_draws_are_pinned_over_versions_and_machines():
    """A changed hash would change every result that was ever reported under a seed."""
    assert stream_key(1, "negatives", "train", 3) == 6646655851779496346
    assert derive_generator(1, "init").integers(2**62) == 2891847941601909097


def test_mix64_gives_the_published_splitmix64_sequence():
    state, outputs = 1234567, []
    for _ in range(5):
        state += GOLDEN
        outputs.append(mix64(state))
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, stream_key(1, "secret")])
def test_user_stream_keys_equal_the_reference(key):
    users = np.array([0, 1, 2, 5, 1000, 2**31, 2**62], np.int64)
    got = user_stream_keys(key, users)
    assert got.dtype == np.uint64
    assert got.tolist() == [mix64(key ^ mix64(int(user))) for user in users]


def test_users_never_share_a_stream_and_do_not_depend_on_their_company():
    users = np.arange(100_000, dtype=np.int64)
    keys = user_stream_keys(stream_key(1, "noise", "train", 1), users)
    assert len(np.unique(keys)) == len(users)
    some = np.array([70_000, 3, 512])
    assert (user_stream_keys(stream_key(1, "noise", "train", 1), some) == keys[some]).all()
    other_round = user_stream_keys(stream_key(1, "noise", "train", 2), users)
    assert not np.intersect1d(keys, other_round).size
