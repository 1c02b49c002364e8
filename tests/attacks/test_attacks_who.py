"""Who lies, and where they meet."""

import numpy as np
import pytest
from scenes import config_of

from fastpfrec_flwr.attacks.attackers import (
    compromised_nodes,
    gather_in,
    lasting_liars,
    liars_of_round,
    lying_users,
    sent_nonces,
)
from fastpfrec_flwr.trusted_node.roster import assign_nodes

NONCES = np.random.default_rng(0).integers(0, 2**63, 500).astype(np.uint64)


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.02, 20), (0.3, 300), (0.3333, 333), (1.0, 1000)])
def test_the_fraction_is_exact(fraction, count):
    liars = lying_users(config_of(attack="noise", attack_fraction=fraction), 1000, 1)
    assert len(liars) == len(set(liars.tolist())) == count
    assert (np.diff(liars) > 0).all()


def test_liars_come_from_the_seed():
    config = config_of(attack="noise")
    assert lying_users(config, 1000, 1).tolist() == lying_users(config, 1000, 1).tolist()
    assert lying_users(config_of(attack="shift"), 1000, 1).tolist() == lying_users(config, 1000, 1).tolist()
    other = lying_users(config_of(attack="noise", seed=2), 1000, 1)
    assert 50 < len(set(other.tolist()) & set(lying_users(config, 1000, 1).tolist())) < 130  # 90 by chance
    assert len(lying_users(config_of(), 1000, 1)) == 0


def test_liars_drawn_anew_are_others_in_each_round():
    config = config_of(attack="noise", attack_drawn="each-round")
    first, second = (lying_users(config, 1000, server_round) for server_round in (1, 2))
    assert len(first) == len(second) == 300
    assert 50 < len(set(first.tolist()) & set(second.tolist())) < 130  # 90 by chance
    assert lying_users(config, 1000, 2).tolist() == second.tolist()
    assert len(lasting_liars(config, 1000)) == 0
    once = config_of(attack="noise")
    assert (
        lying_users(once, 1000, 1).tolist() == lying_users(once, 1000, 2).tolist() == lasting_liars(once, 1000).tolist()
    )


def test_compromised_nodes():
    config = config_of(num_trusted_nodes=10, compromised_nodes=3, node_attack="noise")
    nodes = compromised_nodes(config)
    assert len(set(nodes.tolist())) == 3
    assert nodes.min() >= 0
    assert nodes.max() < 10
    assert compromised_nodes(config).tolist() == nodes.tolist()
    assert len(compromised_nodes(config_of(num_trusted_nodes=10))) == 0


def test_colluders_choose_nonces_that_lead_to_one_node():
    assert np.bincount(assign_nodes(NONCES, 10), minlength=10).min() > 25
    for node in (0, 9):
        gathered = gather_in(NONCES, 10, node)
        assert set(assign_nodes(gathered, 10).tolist()) == {node}
        assert len(set(gathered.tolist())) == len(NONCES)
        already = assign_nodes(NONCES, 10) == node
        assert (gathered[already] == NONCES[already]).all()
    config = config_of(attack="noise", attack_placement="one-node", num_trusted_nodes=10)
    assert len(set(assign_nodes(sent_nonces(config, NONCES), 10).tolist())) == 1
    assert sent_nonces(config_of(attack="noise"), NONCES) is NONCES


def test_the_measurement_knows_the_liars_of_a_round_by_their_nonces():
    config = config_of(attack="noise", attack_from_round=3, num_trusted_nodes=4, attack_placement="one-node")
    users = np.array([2, 5, 8])
    assert len(liars_of_round(config, users, 2)) == 0
    assert len(liars_of_round(config, users, 3)) == 6  # three users in two phases
    assert not set(liars_of_round(config, users, 3).tolist()) & set(liars_of_round(config, users, 4).tolist())
