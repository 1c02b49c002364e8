"""What a device accepts of a secure sum: groups as large as its noise and its ledger count on, whoever relays."""

import numpy as np
import pytest

from fastpfrec_flwr.client.secure import SecureRound
from fastpfrec_flwr.messages import RefusedError
from fastpfrec_flwr.messages.secure import Group
from fastpfrec_flwr.privacy.masking import group_threshold, least_in_sum
from fastpfrec_flwr.privacy.secure_sum import Member


def begun(nonces):
    """A device whose clients have these nonces."""
    round_ = SecureRound()
    round_.members = {nonce: Member(b"sum", 0) for nonce in nonces}
    return round_


def group_of(mine, size, threshold):
    """This device's clients in a group of `size` with strangers."""
    hellos = mine.hellos() | {1000 + i: Member(b"sum", 0).hello() for i in range(size - len(mine.members))}
    nonces = sorted(hellos)
    return Group(np.array(nonces, np.uint64), [hellos[nonce] for nonce in nonces], threshold)


@pytest.mark.parametrize(
    ("clients", "nodes", "fraction", "least"),
    [(256, 10, 0.0, 25), (256, 10, 0.2, 20), (12, 2, 1 / 3, 4), (100, 1, 0.9, 51), (7, 2, 0.5, 2)],
)
def test_the_least_that_every_sum_holds(clients, nodes, fraction, least):
    """By hand: all but the fraction of the smaller groups, and more than half of them."""
    assert least_in_sum(clients, nodes, fraction) == least
    smallest = min(len(part) for part in np.array_split(np.arange(clients), nodes))
    assert least <= group_threshold(smallest, fraction)


def test_a_device_refuses_a_sum_for_fewer_than_it_counts_on():
    for size, threshold in ((6, 5), (5, 5), (20, 11)):
        mine = begun([1])
        with pytest.raises(
            RefusedError, match=rf"group of {size} with threshold {threshold} opens too easily.* 12 clients"
        ):
            mine.share([group_of(mine, size, threshold)], dropout_fraction=0.5, least=12)
        assert mine.nonces == {}
    mine = begun([1])
    sealed = mine.share([group_of(mine, 20, 12)], dropout_fraction=0.5, least=12)
    assert len(sealed.sender) == 19


def test_and_a_threshold_below_its_own_drop_outs():
    mine = begun([1])
    with pytest.raises(RefusedError, match="opens too easily"):
        mine.share([group_of(mine, 10, 7)], dropout_fraction=0.2)
    assert len(mine.share([group_of(mine, 10, 8)], dropout_fraction=0.2).sender) == 9


def test_two_never_add_up_alone():
    mine = begun([1])
    with pytest.raises(RefusedError, match="opens too easily"):
        mine.share([group_of(mine, 2, 2)], dropout_fraction=0.0)
