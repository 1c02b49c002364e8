"""Who of the trusted nodes is there: failures, reassignment, quarantine, and that no upload is counted twice or forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.roster import LOST, AllThere, Attendances, Failures, assign_nodes

T = 10


def nonces(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def fixed(count=3, start=1, rounds=0, moment="before", seed=5):
    return Failures(T, seed, fixed=count, start=start, rounds=rounds, moment=moment)


def assigned(roster, server_round, uploads):
    (nodes,) = roster.assign([uploads], T, server_round)
    return nodes


# ---- when nodes fail -------------------------------------------------------------------------------------------------


def test_fixed_failures_last_from_their_round_for_as_long_as_said():
    for_good, for_three = fixed(2, start=4), fixed(2, start=4, rounds=3)
    gone = for_good.down(4)
    assert len(gone) == 2
    assert [for_good.down(r) for r in (0, 1, 3)] == [frozenset()] * 3
    assert for_good.down(400) == gone
    assert [bool(for_three.down(r)) for r in range(1, 10)] == [False] * 3 + [True] * 3 + [False] * 3
    assert fixed(2, seed=6).down(1) != fixed(2, seed=7).down(1), "the seed says which"
    assert len(fixed(T).down(1)) == T


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_random_failures_come_as_often_as_said_and_on_their_own(probability):
    rounds = 1000
    failures = Failures(T, 3, probability=probability, rounds=1)
    down = np.zeros((rounds, T), bool)
    for r in range(1, rounds + 1):
        down[r - 1, list(failures.down(r))] = True
    assert stats.binomtest(int(down.sum()), down.size, probability).pvalue > 1e-3
    # Nodes are independent of each other: how many are down in a round is binomial.
    found = np.bincount(down.sum(1), minlength=T + 1)
    wanted = rounds * stats.binom.pmf(np.arange(T + 1), T, probability)
    few, many = int(np.argmax(wanted > 5)), T - int(np.argmax(wanted[::-1] > 5))  # bins with enough in them
    joined = [[each[: few + 1].sum(), *each[few + 1 : many], each[many:].sum()] for each in (found, wanted)]
    assert stats.chisquare(*joined).pvalue > 1e-3
    # And rounds of each other.
    again = int((down[1:] & down[:-1]).sum())
    assert stats.binomtest(again, (rounds - 1) * T, probability**2).pvalue > 1e-3


def test_a_node_that_failed_stays_away_and_comes_back():
    """With rounds = 4 a node is away in exactly the rounds up to 3 after one in which it breaks down."""
    breaks, stays = (Failures(T, 3, probability=0.04, rounds=rounds) for rounds in (1, 4))
    broken = [breaks.down(r) for r in range(101)]
    for r in range(1, 101):
        assert stays.down(r) == frozenset().union(*broken[max(r - 3, 0) : r + 1])
        assert stays.away(r) == frozenset().union(*broken[max(r - 3, 0) : r])
        assert breaks.away(r) == frozenset(), "back in the next round, where it may fail again"
    for_good = Failures(T, 3, probability=0.04)
    for r in range(1, 100):
        assert for_good.down(r) <= for_good.down(r + 1)
    assert for_good.down(1000) == frozenset(range(T))


def test_a_node_that_is_back_may_fail_again_at_once():
    uploads, roster = nonces(2000), Attendances(Failures(T, 3, probability=0.5, rounds=1, moment="after"), "retry")
    for server_round in range(1, 20):
        nodes = assigned(roster, server_round, uploads)
        there = roster.attendance
        assert there.away == ()
        drawn = np.isin(assign_nodes(uploads, T), there.failing)
        np.testing.assert_array_equal(nodes == LOST, drawn)
        assert (there.reassigned, there.lost) == (0, int(drawn.sum()))


def test_failures_are_a_function_of_the_round():
    failures = Failures(T, 3, fixed=2, start=9, probability=0.1, rounds=5)
    forwards = [failures.down(r) for r in range(1, 60)]
    backwards = [failures.down(r) for r in reversed(range(1, 60))]
    assert forwards == backwards[::-1]


# ---- where uploads go ------------------------------------------------------------------------------------------------


def test_where_all_are_there_the_nonce_alone_decides():
    uploads = nonces(500)
    np.testing.assert_array_equal(assigned(AllThere(), 3, uploads), assign_nodes(uploads, T))
    np.testing.assert_array_equal(assigned(Attendances(Failures(T, 1)), 3, uploads), assign_nodes(uploads, T))
    assert AllThere().sentences() == Attendances(Failures(T, 1)).sentences() == []


def test_a_node_that_fails_before_collecting_costs_nothing_with_a_retry():
    uploads, roster = nonces(30_000), Attendances(fixed(), "retry")
    first = assign_nodes(uploads, T)
    gone = sorted(fixed().down(1))
    for server_round in (1, 2):
        nodes = assigned(roster, server_round, uploads)
        moved = np.isin(first, gone)
        np.testing.assert_array_equal(nodes[~moved], first[~moved])
        living = sorted(set(range(T)) - set(gone))
        counts = np.bincount(nodes[moved], minlength=T)
        assert counts[gone].sum() == 0
        # Spread evenly, whichever node they were drawn to first.
        assert stats.chisquare(counts[living]).pvalue > 1e-3
        for node in gone:
            assert stats.chisquare(np.bincount(nodes[first == node], minlength=T)[living]).pvalue > 1e-3
        there = roster.attendance
        assert (there.lost, there.reassigned) == (0, int(moved.sum()))
        assert (there.failing, there.away) == ((tuple(gone), ()) if server_round == 1 else ((), tuple(gone)))


def test_without_a_retry_the_round_of_the_failure_is_lost_and_the_next_is_not():
    uploads, roster = nonces(2000), Attendances(fixed(start=2), "next-round")
    first = assign_nodes(uploads, T)
    drawn = np.isin(first, list(fixed().down(2)))
    np.testing.assert_array_equal(assigned(roster, 1, uploads), first)
    nodes = assigned(roster, 2, uploads)
    np.testing.assert_array_equal(nodes == LOST, drawn)
    assert roster.attendance.lost == drawn.sum()
    assert roster.sentences()[-1] == f"{drawn.sum()} uploads lost"
    assert not (assigned(roster, 3, uploads) == LOST).any()
    assert roster.attendance.reassigned == drawn.sum()
    assert roster.sentences() == [], "nothing new in the third round"


def test_without_reassignment_clients_keep_losing_their_uploads():
    uploads, roster = nonces(2000), Attendances(fixed(rounds=3), "none")
    drawn = np.isin(assign_nodes(uploads, T), list(fixed().down(1)))
    for server_round in (1, 2, 3):
        np.testing.assert_array_equal(assigned(roster, server_round, uploads) == LOST, drawn)
    assert not (assigned(roster, 4, uploads) == LOST).any()
    assert roster.attendance.back == tuple(sorted(fixed().down(1)))
    assert "back" in roster.sentences()[0]


@pytest.mark.parametrize("reassignment", ["retry", "next-round"])
def test_a_node_that_fails_while_collecting_takes_half_of_its_uploads_along(reassignment):
    uploads, roster = nonces(6000), Attendances(fixed(moment="during"), reassignment)
    drawn = np.isin(assign_nodes(uploads, T), list(fixed().down(1)))
    lost = assigned(roster, 1, uploads) == LOST
    assert not (lost & ~drawn).any()
    if reassignment == "next-round":
        np.testing.assert_array_equal(lost, drawn)
    else:
        assert stats.binomtest(int(lost.sum()), int(drawn.sum()), 0.5).pvalue > 1e-3
        assert roster.attendance.reassigned == int(drawn.sum() - lost.sum())


def test_after_collecting_nobody_knows_and_all_its_uploads_are_lost():
    uploads, roster = nonces(2000), Attendances(fixed(moment="after"), "retry")
    drawn = np.isin(assign_nodes(uploads, T), list(fixed().down(1)))
    np.testing.assert_array_equal(assigned(roster, 1, uploads) == LOST, drawn)
    assert roster.sentences()[0].endswith("failed after collecting")
    assert not (assigned(roster, 2, uploads) == LOST).any()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("reassignment", ["retry", "next-round", "none"])
def test_where_all_are_gone_everything_is_lost_until_one_returns(moment, reassignment):
    uploads, roster = nonces(300), Attendances(fixed(T, start=2, rounds=2, moment=moment), reassignment)
    assert not (assigned(roster, 1, uploads) == LOST).any()
    for server_round in (2, 3):
        assert (assigned(roster, server_round, uploads) == LOST).all()
        assert roster.attendance.nobody
        assert "no trusted node is there" in roster.sentences()
        assert (roster.attendance.lost, roster.attendance.reassigned) == (300, 0)
    np.testing.assert_array_equal(assigned(roster, 4, uploads), assign_nodes(uploads, T))
    assert not roster.attendance.nobody


# ---- quarantine ------------------------------------------------------------------------------------------------------


def test_an_isolated_node_is_left_out_for_its_rounds_and_comes_back():
    uploads, roster = nonces(1000), Attendances(Failures(T, 1), "retry", quarantine_rounds=2)
    assigned(roster, 5, uploads)
    roster.isolated([4, 7], 5)
    assert roster.sentences() == ["trusted nodes 4, 7 isolated, in quarantine up to round 7"]
    for server_round in (6, 7):
        nodes = assigned(roster, server_round, uploads)
        assert not np.isin(nodes, [4, 7, LOST]).any()
        assert roster.attendance.quarantined == (4, 7)
        assert roster.attendance.reassigned == np.isin(assign_nodes(uploads, T), [4, 7]).sum()
        roster.isolated([], server_round)
    np.testing.assert_array_equal(assigned(roster, 8, uploads), assign_nodes(uploads, T))
    assert roster.attendance.released == (4, 7)
    assert roster.sentences() == ["trusted nodes 4, 7 back from quarantine"]
    roster.isolated([], 8)
    assigned(roster, 9, uploads)
    assert roster.attendance.released == ()
    assert roster.quarantine == {}


def test_quarantine_goes_on_after_a_restore():
    uploads = nonces(1000)
    whole, before = (Attendances(Failures(T, 1), "retry", 3) for _ in range(2))
    for roster in (whole, before):
        roster.isolated([1], 2)
        assigned(roster, 3, uploads)
        roster.isolated([2], 3)
    resumed = Attendances(Failures(T, 1), "retry", 3)
    resumed.restore(before.quarantine)
    for server_round in range(4, 9):
        np.testing.assert_array_equal(assigned(resumed, server_round, uploads), assigned(whole, server_round, uploads))
        assert resumed.attendance == whole.attendance
        for roster in (whole, resumed):
            roster.isolated([], server_round)


@pytest.mark.parametrize(("num_nodes", "most"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (6, 3), (10, 5)])
def test_quarantine_leaves_half_of_the_nodes_and_three_at_least(num_nodes, most):
    """However many stand out; and all uploads arrive."""
    uploads, roster = nonces(1000), Attendances(Failures(num_nodes, 1), "retry", 20)
    for server_round in range(1, 9):
        (nodes,) = roster.assign([uploads], num_nodes, server_round)
        assert (nodes != LOST).all()
        assert len(roster.attendance.quarantined) == (most if server_round > 1 else 0)
        assert set(np.unique(nodes)) == set(range(num_nodes)) - set(roster.attendance.quarantined)
        roster.isolated(sorted(set(nodes.tolist())), server_round)


def test_where_too_many_stand_out_those_come_back_early_whose_time_ends_first():
    uploads, roster = nonces(1000), Attendances(Failures(T, 1), "retry", 20)
    assigned(roster, 1, uploads)
    roster.isolated([0, 1, 2], 1)
    assigned(roster, 2, uploads)
    roster.isolated([7, 8, 9], 2)
    assigned(roster, 3, uploads)
    assert set(roster.attendance.quarantined) > {7, 8, 9}
    assert len(roster.attendance.quarantined) == T // 2
    assert len(roster.attendance.released) == 1
    assert set(roster.attendance.released) < {0, 1, 2}


def test_without_quarantine_an_isolated_node_is_there_again():
    roster = Attendances(Failures(T, 1), "retry", 0)
    roster.isolated([1, 2], 1)
    assert roster.quarantine == {}


# ---- all together ----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_upload_is_at_one_living_node_or_lost_and_order_decides_nothing(data):
    moment = data.draw(st.sampled_from(["before", "during", "after"]))
    reassignment = data.draw(st.sampled_from(["retry", "next-round", "none"]))
    failures = Failures(
        T, data.draw(st.integers(0, 99)), data.draw(st.integers(0, T)), data.draw(st.integers(1, 6)),
        data.draw(st.sampled_from([0.0, 0.2, 0.9])), data.draw(st.integers(0, 4)), moment,
    )  # fmt: skip
    quarantine = data.draw(st.dictionaries(st.integers(0, T - 1), st.integers(1, 8)))
    server_round = data.draw(st.integers(1, 8))
    uploads = nonces(data.draw(st.integers(0, 200)))
    roster, other = Attendances(failures, reassignment, 2), Attendances(failures, reassignment, 2)
    roster.restore(quarantine)
    other.restore(quarantine)
    nodes = assigned(roster, server_round, uploads)
    there = roster.attendance
    closed = failures.down(server_round) | {node for node, last in quarantine.items() if last >= server_round}
    assert not np.isin(nodes, list(closed)).any()
    assert there.lost == (nodes == LOST).sum()
    assert there.reassigned == ((nodes != LOST) & (nodes != assign_nodes(uploads, T))).sum()
    assert there.nobody == (len(closed) == T)
    if reassignment == "retry" and moment == "before" and len(closed) < T:
        assert there.lost == 0
    # In another order and in several messages every upload ends where it did.
    order = np.random.default_rng(1).permutation(len(uploads))
    parts = np.array_split(order, 3)
    found = other.assign([uploads[part] for part in parts], T, server_round)
    np.testing.assert_array_equal(np.concatenate(found), nodes[order])
    assert other.attendance == there


def test_colluders_who_choose_their_nonces_are_spread_by_a_key_that_they_do_not_know():
    """Nonces that all lead to node 0 without the key; with one they are spread like anybody's, for every key."""
    pool = nonces(40_000, 1)
    chosen = pool[assign_nodes(pool, T) == 0][:2000]
    close = np.uint64(12345) ^ (
        np.uint64(1) << np.arange(64, dtype=np.uint64)
    )  # one bit apart from each other's middle
    for server_round in range(1, 6):
        key = stream_key(9, "assignment", "train", server_round)
        spread = assign_nodes(user_stream_keys(key, chosen.view(np.int64)), T)
        assert stats.chisquare(np.bincount(spread, minlength=T)).pvalue > 1e-3
    close_nodes = np.concatenate(
        [assign_nodes(user_stream_keys(stream_key(k, "key"), close.view(np.int64)), T) for k in range(50)]
    )
    assert stats.chisquare(np.bincount(close_nodes, minlength=T)).pvalue > 1e-3
    assert len(set(user_stream_keys(7, chosen.view(np.int64)).tolist())) == len(chosen), (
        "different nonces stay different"
    )
