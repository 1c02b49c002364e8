"""What a trusted node sees of a misbehaving client, and how often it suspects an honest one."""

import numpy as np
import pytest
from noised_uploads import ITEMS, SCALE, K, noiseless, norm_keys, uploads_of

from fastpfrec_flwr.trusted_node.detection import AbsoluteCheck, ClientsCheck, NoCheck, PaperCheck, robust_z_scores
from fastpfrec_flwr.trusted_node.distances import Distances, upload_distances

# ---- robust z by hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distances", "scores"),
    [
        # median 3, deviations 2 1 0 1 7, MAD 1
        ([1, 2, 3, 4, 10], [-2 * 0.6745, -0.6745, 0, 0.6745, 7 * 0.6745]),
        # median 2.5, deviations 1.5 .5 .5 1.5, MAD 1
        ([1, 2, 3, 4], [-1.5 * 0.6745, -0.5 * 0.6745, 0.5 * 0.6745, 1.5 * 0.6745]),
        ([5], [0]),
        ([0, 0, 0], [0, 0, 0]),
        # more than half agree: MAD 0
        ([2, 2, 2, 3, 1], [0, 0, 0, np.inf, -np.inf]),
    ],
)
def test_scores_by_hand(distances, scores):
    np.testing.assert_allclose(robust_z_scores(np.array(distances, float)), scores, rtol=1e-12)


def test_resolution_is_a_floor_of_the_spread():
    """MAD 0 with resolution 2: z = .6745 (d - median) / (.6745 2)."""
    np.testing.assert_allclose(robust_z_scores(np.array([0, 0, 0, 7.0]), 2.0), [0, 0, 0, 3.5])
    # MAD 1 exceeds .6745 times 1: no effect.
    np.testing.assert_allclose(robust_z_scores(np.array([1, 2, 3, 4, 10.0]), 1.0)[-1], 7 * 0.6745)


@pytest.mark.parametrize("bad", [[], [1, np.nan], [np.inf, 1, 2]])
def test_distances_must_be_finite_and_some(bad):
    with pytest.raises(ValueError, match="finite"):
        robust_z_scores(np.array(bad, float))


def test_scores_do_not_depend_on_unit_or_order():
    distances = np.random.default_rng(0).lognormal(size=31)
    order = np.random.default_rng(1).permutation(31)
    scores = robust_z_scores(distances)
    np.testing.assert_allclose(robust_z_scores(1e6 * distances), scores, rtol=1e-9)
    np.testing.assert_array_equal(robust_z_scores(distances[order]), scores[order])


# ---- how often the rule suspects the honest --------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "rate"), [(5, 0.054), (10, 0.016), (20, 0.0067), (50, 0.0019)])
def test_false_positives_on_gaussian_distances(clients, rate):
    draws = 10 + np.random.default_rng(clients).normal(size=(100_000 // clients, clients))
    flagged = np.mean([np.abs(robust_z_scores(row)) > 3.5 for row in draws])
    # 4 standard errors, flags of a node being correlated a little, and the rounding of the stated figure.
    assert abs(flagged - rate) < 6 * np.sqrt(rate / 100_000) + 0.02 * rate


def test_false_positives_on_lognormal_distances():
    """Users differ in activity: the plain distance suspects 6 % of the honest, its logarithm .65 %."""
    draws = np.exp(0.8 * np.random.default_rng(3).normal(size=(8000, 25)))
    plain = np.mean([np.abs(robust_z_scores(row)) > 3.5 for row in draws])
    logs = np.mean([np.abs(robust_z_scores(np.log(row))) > 3.5 for row in draws])
    assert 0.05 < plain < 0.075
    assert 0.003 < logs < 0.009
    checked = np.mean([ClientsCheck(3.5, 0.5).examine(noiseless(*row)).outliers for row in draws])
    assert checked < 0.006  # one-sided


# ---- the checks ------------------------------------------------------------------------------------------------------

HONEST = [9, 10, 11, 10.5, 9.5, 10.2, 9.8]
CHECKS = {
    "none": NoCheck(),
    "paper": PaperCheck(3.5, 0.25),
    "clients": ClientsCheck(3.5, 0.4),
    "clients with clip": ClientsCheck(3.5, 0.4, 12.0),
    "absolute": AbsoluteCheck(12.0),
}
EVERYBODY = "everybody"
# scenario -> distances, and per check who is out (EVERYBODY: the node is isolated)
SCENARIOS = {
    "all honest": (HONEST, {name: [] for name in CHECKS}),
    "one client": ([10], {name: [] for name in CHECKS}),
    "one client alone, far beyond the clip": (
        [900],
        {"none": [], "paper": [], "clients": [], "clients with clip": EVERYBODY, "absolute": EVERYBODY},
    ),
    "two clients that differ": ([1, 10], {name: [] for name in CHECKS}),
    "all identical": ([10] * 6, {name: [] for name in CHECKS}),
    "everything zero": ([0] * 6, {name: [] for name in CHECKS}),
    "one attacker in eight": (
        [*HONEST, 100],
        {"none": [], "paper": [], "clients": [7], "clients with clip": [7], "absolute": [7]},
    ),
    "30 % noise attackers": (
        [*HONEST, 100, 120, 90],
        {"none": [], "paper": EVERYBODY, "clients": [7, 8, 9], "clients with clip": [7, 8, 9], "absolute": [7, 8, 9]},
    ),
    "attackers above nu": (
        [10, 10.5, 9.5, 10.2, 9.8, 9.9, 100, 200, 300, 400, 500],
        {
            "none": [], "paper": EVERYBODY, "clients": EVERYBODY, "clients with clip": [6, 7, 8, 9, 10],
            "absolute": [6, 7, 8, 9, 10],
        },
    ),
    "an attacker majority hides from the median, not from the clip": (
        [10, 9, 100, 101, 102, 103, 99],
        {"none": [], "paper": EVERYBODY, "clients": [], "clients with clip": [2, 3, 4, 5, 6], "absolute": [2, 3, 4, 5, 6]},
    ),
    "impossible ones do not hide those that stand out among the rest": (
        [*HONEST, 100, 900, 900, 900, 900],
        {
            "none": [], "paper": EVERYBODY, "clients": EVERYBODY, "clients with clip": [7, 8, 9, 10, 11],
            "absolute": [7, 8, 9, 10, 11],
        },
    ),
    "small changes harm nobody": (
        [*HONEST, 0.01],
        {"none": [], "paper": [], "clients": [], "clients with clip": [], "absolute": []},
    ),
    "just beyond the clip": ([*HONEST, 12.1], {"none": [], "paper": [], "clients": [], "clients with clip": [7], "absolute": [7]}),
    "at the clip": ([*HONEST, 12.0], {"none": [], "paper": [], "clients": [], "clients with clip": [], "absolute": []}),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios(scenario, check):
    distances, expected = SCENARIOS[scenario]
    verdict = CHECKS[check].examine(noiseless(*distances))
    assert verdict.outliers.dtype == np.bool_
    assert verdict.outliers.shape == (len(distances),)
    if expected[check] == EVERYBODY:
        assert verdict.node_isolated
        assert verdict.outliers.all()
    else:
        assert not verdict.node_isolated
        assert np.flatnonzero(verdict.outliers).tolist() == expected[check]


@pytest.mark.parametrize("check", CHECKS)
def test_order_decides_nothing(check):
    for distances, _ in SCENARIOS.values():
        order = np.random.default_rng(2).permutation(len(distances))
        straight = CHECKS[check].examine(noiseless(*distances))
        mixed = CHECKS[check].examine(noiseless(*np.array(distances)[order]))
        np.testing.assert_array_equal(mixed.outliers, straight.outliers[order])
        assert mixed.node_isolated == straight.node_isolated


def test_exactly_nu_isolates_no_node():
    """The paper's rule with a quarter out; ours with four of ten."""
    apart = noiseless(10, 10.5, 9.5, 10.2, 9.8, 9.9, 100, 200, 300, 400)
    assert ClientsCheck(3.5, 0.4).examine(apart).outliers.tolist() == [False] * 6 + [True] * 4
    assert ClientsCheck(3.5, 0.4).examine(apart).node_isolated is False
    assert ClientsCheck(3.5, 0.39).examine(apart).node_isolated is True
    assert PaperCheck(3.5, 0.25).examine(noiseless(10, 10.1, 9.9, 50)).node_isolated is False


def dense_round(norms, key):
    """Distances of simulated dense uploads with changes of these norms on 30 rows."""
    touched = 30
    changes = np.random.default_rng(key).normal(size=(len(norms), touched, K))
    changes *= (np.asarray(norms) / np.linalg.norm(changes, axis=(1, 2)))[:, None, None]
    values, pointer = uploads_of(changes, key)
    return upload_distances(values, pointer, SCALE, SCALE, ITEMS, norm_keys(len(norms), key))


def test_thirty_percent_noise_attackers_under_dense_noise():
    """Honest lognormal changes clipped to 20, attackers that add normal noise of sd 1 to 30 rows (norm about 31) or more."""
    check = ClientsCheck(3.5, 0.5, 20.0)
    caught = wrongly = 0
    for round_ in range(40):
        generator = np.random.default_rng(round_)
        honest = np.minimum(8 * np.exp(0.5 * generator.normal(size=18)), 20)
        attackers = generator.uniform(31, 150, size=7)
        verdict = check.examine(dense_round([*honest, *attackers], round_))
        caught += verdict.outliers[18:].sum()
        wrongly += verdict.outliers[:18].sum()
    assert caught == 40 * 7
    assert wrongly <= 0.01 * 40 * 18


@pytest.mark.parametrize("norm", [0.0, 0.1, 1.0, 2.4, 5.0, 20.0])
@pytest.mark.parametrize("check", [ClientsCheck(3.5, 0.5), PaperCheck(3.5, 0.5)])
def test_noise_around_equal_changes_is_no_attack(norm, check):
    """Resolution here is 2.4. Below it corrected distances are mostly zero; nobody is suspected for the rest of them."""
    flags = [check.examine(dense_round(np.full(25, norm), 100 + i)).outliers.mean() for i in range(30)]
    assert np.mean(flags) < 0.01


def test_who_stands_out_of_the_noise_is_seen_although_honest_changes_do_not():
    for i in range(20):
        verdict = ClientsCheck(3.5, 0.5).examine(dense_round([*np.full(21, 0.5), *np.full(4, 200.0)], i))
        assert np.flatnonzero(verdict.outliers).tolist() == list(range(21, 25))


# ---- what no honest client sends -------------------------------------------------------------------------------------


def dense_of(changes, scale, seed=0):
    """Distances of whole noised tables: changes ((clients, rows, k))."""
    clients, rows, k = changes.shape
    noised = (changes + np.random.default_rng(seed).laplace(0, scale, changes.shape)).astype(np.float32)
    pointer = np.arange(clients + 1) * rows
    keys = np.arange(clients, dtype=np.uint64)
    return upload_distances(noised.reshape(-1, k), pointer, scale, 0.0, rows, keys, row_clip=2.0)


def test_an_upload_without_its_noise_is_seen_in_a_node_full_of_them():
    """Bare forgeries of two thirds of the noise's size, nine of ten clients: no median would see that."""
    scale, shape = 0.1, (10, 400, 16)
    changes = np.zeros(shape)
    changes[:, 0, 0] = 1.5
    distances = dense_of(changes, scale)
    bare = np.full(shape[1:], 0.07, np.float32)
    quiet = upload_distances(np.tile(bare, (9, 1)), np.arange(10) * 400, scale, 0.0, 400, np.arange(9, dtype=np.uint64))
    mixed = Distances(np.concatenate([distances.squared[:1], quiet.squared]), distances.noise_mean, distances.noise_sd)
    for check in (ClientsCheck(5.0, 1.0, 10.0), AbsoluteCheck(10.0)):
        assert check.examine(mixed).outliers.tolist() == [False] + [True] * 9
        assert not check.examine(distances).outliers.any()


def test_a_row_beyond_the_clip_of_rows():
    """Rows at the clip pass with their noise, 200 clients of 400 rows; one row twice as large does not."""
    changes = np.zeros((200, 400, 16))
    changes[:, ::4, 3] = 2.0
    distances = dense_of(changes, 0.1)
    assert not distances.row_beyond.any()
    changes[7, 5, 2] = 4.0
    for check in (ClientsCheck(5.0, 1.0, 1000.0), AbsoluteCheck(1000.0)):
        assert np.flatnonzero(check.examine(dense_of(changes, 0.1)).outliers).tolist() == [7]
    assert Distances.joined([distances, distances]).row_beyond.tolist() == [False] * 400
    assert distances.of(np.array([3])).row_beyond.tolist() == [False]
    assert dense_of(changes, 0.1).of(np.array([3, 7])).row_beyond.tolist() == [False, True]


def test_liars_of_one_size_do_not_have_the_honest_isolated():
    """Half of a node sends exactly 40: the MAD collapses, and honest clients within the clip would be 'outliers'."""
    honest = np.array([23, 30, 45, 60, 90, 110, 150, 200, 200, 200.0])
    distances = noiseless(*honest, *[40.0] * 10)
    assert not ClientsCheck(5.0, 1.0, 200.0).examine(distances).outliers.any()
    assert ClientsCheck(5.0, 1.0).examine(distances).outliers.any()  # nothing else bounds them without a clip
