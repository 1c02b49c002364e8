"""Secure sums: masks cancel to the last bit, drop-outs are recovered from, parts stay hidden, and misuse is refused."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.privacy.noise import GRID, round_to_grid
from fastpfrec_flwr.privacy.secure_sum import (
    Hello,
    Member,
    SecureSumError,
    from_steps,
    mask_stream,
    to_steps,
    unmask,
    usable,
)

CONTEXT = b"run 1, round 3, node 2"


class Sum:
    """One sum, with members that drop out before they share, before they mask, or before they reveal."""

    def __init__(self, values, threshold, before_share=(), before_mask=(), before_reveal=()):
        self.members = {number: Member(CONTEXT, number) for number in range(1, len(values) + 1)}
        self.group = {number: member.hello() for number, member in self.members.items()}
        self.threshold = threshold
        self.sealed = {n: self.members[n].share(self.group, threshold) for n in self.members if n not in before_share}
        self.sharing = sorted(self.sealed)
        self.masked = {
            n: self.members[n].mask(to_steps(values[n - 1]), self.sharing) for n in self.sharing if n not in before_mask
        }
        arrived = sorted(self.masked)
        self.revealed = {
            n: self.members[n].reveal(arrived, {s: self.sealed[s][n] for s in self.sharing if s != n})
            for n in arrived
            if n not in before_reveal
        }  # fmt: skip

    def total(self):
        return unmask(self.masked, self.group, self.sharing, self.revealed, self.threshold, CONTEXT)


def values_of(clients, length=50, seed=1):
    values = np.random.default_rng(seed).normal(0, 30, (clients, length)).astype(np.float32)
    for each in values:
        round_to_grid(each)
    return values


@settings(deadline=None, max_examples=15)
@given(st.integers(3, 7), st.data())
def test_the_sum_is_exact_whoever_drops_out(clients, data):
    threshold = clients // 2 + 1
    leaving = data.draw(st.lists(st.integers(1, clients), max_size=clients - threshold, unique=True))
    when = [data.draw(st.sampled_from(["share", "mask", "reveal"])) for _ in leaving]
    out = {step: [n for n, at in zip(leaving, when, strict=True) if at == step] for step in ("share", "mask", "reveal")}
    values = values_of(clients)
    done = Sum(values, threshold, out["share"], out["mask"], out["reveal"])
    counted = [n for n in range(1, clients + 1) if n not in out["share"] and n not in out["mask"]]
    expected = values[np.array(counted) - 1].astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(from_steps(done.total()), expected)


def test_steps_hold_what_an_upload_can_hold():
    values = np.array([0, GRID, -GRID, 4096, -4096, 1.5], np.float32)
    np.testing.assert_array_equal(from_steps(to_steps(values)), values)
    many = np.full(1000, to_steps(values)[3], np.uint64)
    assert from_steps(many.sum(dtype=np.uint64, keepdims=True))[0] == 4_096_000


def test_what_leaves_a_member_looks_like_chance_and_differs_each_time():
    values = np.zeros((3, 20_000), np.float32)
    one, other = Sum(values, 2), Sum(values, 2)
    for n in (1, 2, 3):
        assert (one.masked[n] == other.masked[n]).mean() < 1e-3
        bytes_of = np.frombuffer(one.masked[n].tobytes(), np.uint8)
        assert stats.chisquare(np.bincount(bytes_of, minlength=256)).pvalue > 1e-6
    # Two of three together are as blind as one: their sum still has the masks that they share with the third, and their own.
    for pair in itertools.combinations((1, 2, 3), 2):
        part = one.masked[pair[0]] + one.masked[pair[1]]
        assert stats.chisquare(np.bincount(np.frombuffer(part.tobytes(), np.uint8), minlength=256)).pvalue > 1e-6
    np.testing.assert_array_equal(one.total(), 0)


def test_a_late_upload_stays_closed():
    """Member 3's values arrive after it was given up: the pairwise masks are known now, its own mask is not."""
    values = values_of(4, 20_000)
    done = Sum(values, 3, before_mask=[3])
    late = done.members[3].mask(to_steps(values[2]), done.sharing)
    np.testing.assert_array_equal(from_steps(done.total()), values[[0, 1, 3]].astype(np.float64).sum(axis=0))
    key = {3: done.revealed[1][3]}
    assert all(len(answer[3]) == 32 for answer in done.revealed.values())
    assert key[3] != done.members[3].own_share[:32]
    open_at_last = late - mask_stream(done.members[3].own_seed, len(late))
    assert (late != open_at_last).mean() > 0.999


def test_fewer_than_the_threshold_open_nothing():
    done = Sum(values_of(5), 3, before_reveal=[1, 2, 3])
    with pytest.raises(SecureSumError, match="at least 3"):
        done.total()
    with pytest.raises(SecureSumError, match="at least 3"):
        Sum(values_of(5), 3, before_mask=[1, 2, 3])


def test_a_member_answers_once_and_masks_once():
    done = Sum(values_of(3), 2)
    with pytest.raises(SecureSumError, match="already"):
        done.members[1].reveal([1, 2], {n: done.sealed[n][1] for n in (2, 3)})
    with pytest.raises(SecureSumError, match="already"):
        done.members[1].mask(to_steps(values_of(3)[0]), done.sharing)


def test_what_does_not_fit_is_refused():
    members = {n: Member(CONTEXT, n) for n in (1, 2, 3, 4)}
    group = {n: member.hello() for n, member in members.items()}
    with pytest.raises(SecureSumError, match="own keys"):
        members[1].share({**group, 1: members[2].hello()}, 3)
    with pytest.raises(SecureSumError, match="repeat"):
        members[1].share({**group, 4: group[3]}, 3)
    for threshold in (2, 5):
        with pytest.raises(SecureSumError, match="more than half"):
            members[1].share(group, threshold)
    with pytest.raises(SecureSumError, match="public key"):
        members[1].share({**group, 2: Hello(bytes(32), group[2].masks)}, 3)


def test_changed_and_swapped_shares_are_noticed():
    members = {n: Member(CONTEXT, n) for n in (1, 2, 3)}
    group = {n: member.hello() for n, member in members.items()}
    sealed = {n: member.share(group, 2) for n, member in members.items()}
    for n, member in members.items():
        member.mask(to_steps(values_of(3)[n - 1]), [1, 2, 3])
    changed = bytes([sealed[2][1][0] ^ 1]) + sealed[2][1][1:]
    with pytest.raises(SecureSumError, match="no more and no fewer"):
        members[1].reveal([1, 2, 3], {2: sealed[2][1]})
    for wrong in (changed, sealed[2][3], sealed[3][2]):
        assert set(copy.deepcopy(members[1]).reveal([1, 2, 3], {2: wrong, 3: sealed[3][1]})) == {1, 3}
    assert set(members[1].reveal([1, 2, 3], {2: sealed[2][1], 3: sealed[3][1]})) == {1, 2, 3}


def test_which_public_keys_are_of_use():
    good, other = Member(CONTEXT, 1).hello(), Member(CONTEXT, 2).hello()
    assert usable(good)
    for bad in (bytes(32), bytes([1]) + bytes(31), good.masks):
        assert not usable(Hello(bad, good.masks))
    assert not usable(Hello(good.encryption, bytes(32)))
    assert usable(Hello(good.encryption, other.masks))


def test_two_stories_do_not_open_a_mask():
    """Told that member 4 arrived, some give shares of its b, told that it did not the others give its key: neither reaches 3."""
    values = values_of(4)
    members = {n: Member(CONTEXT, n) for n in (1, 2, 3, 4)}
    group = {n: member.hello() for n, member in members.items()}
    sealed = {n: member.share(group, 3) for n, member in members.items()}
    for n, member in members.items():
        member.mask(to_steps(values[n - 1]), [1, 2, 3, 4])
    mine = {n: {s: sealed[s][n] for s in (1, 2, 3, 4) if s != n} for n in members}
    told = {1: [1, 2, 3, 4], 2: [1, 2, 3, 4], 3: [1, 2, 3], 4: [1, 2, 3]}
    answers = {n: members[n].reveal(arrived, mine[n]) for n, arrived in told.items()}
    shares = [members[n].own_share for n in ()]
    of_mask = sum(answers[n][4] == _share_of(members, sealed, 4, n)[:32] for n in (1, 2, 3, 4))
    of_key = sum(answers[n][4] == _share_of(members, sealed, 4, n)[32:] for n in (1, 2, 3, 4))
    assert (of_mask, of_key, shares) == (2, 2, [])


def _share_of(members, sealed, owner, holder):
    if owner == holder:
        return members[owner].own_share
    return members[holder]._box(owner, holder).decrypt(bytes(12), sealed[owner][holder], None)


def test_wrong_shares_of_a_key_are_noticed():
    done = Sum(values_of(4), 3, before_mask=[2])
    done.revealed[1] = {**done.revealed[1], 2: bytes(32)}
    with pytest.raises(SecureSumError, match="do not give its key"):
        done.total()
