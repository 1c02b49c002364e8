"""Compiled draws against plain references and against the distributions that they claim.

Statistical tests have fixed keys, so they are deterministic; bounds are at least four standard deviations of the statistic
under the claimed distribution, or a p-value above 1e-3.
"""

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr import draws
from fastpfrec_flwr.privacy.noise import add_seeded_laplace
from fastpfrec_flwr.randomness import GOLDEN, mix64, stream_key, user_stream_keys

KEY = np.uint64(stream_key(1, "test"))
MANY = 1 << 22


def laplace(key, scale, count):
    out = np.empty(count, np.float32)
    draws.fill_laplace(np.uint64(key), scale, out)
    return out


def normal(key, count):
    out = np.empty(count, np.float32)
    draws.fill_normal(np.uint64(key), out)
    return out


@pytest.fixture(scope="module")
def many_laplace():
    return laplace(KEY, 0.1, MANY).astype(np.float64) / 0.1


@pytest.fixture(scope="module")
def many_normal():
    return normal(KEY, MANY).astype(np.float64)


# ---- bits ------------------------------------------------------------------------------------------------------------


def plain_xoshiro128pp(state, count):
    """Blackman and Vigna's xoshiro128++, transcribed from their C."""
    low = 0xFFFFFFFF
    s = [int(x) for x in state]
    out = []
    for _ in range(count):
        total = (s[0] + s[3]) & low
        out.append((((total << 7) | (total >> 25)) + s[0]) & low)
        t = (s[1] << 9) & low
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = ((s[3] << 11) | (s[3] >> 21)) & low
    return out


def test_plain_reference_gives_the_published_sequence():
    expected = [
        641,
        1573767,
        3222811527,
        3517856514,
        836907274,
        4247214768,
        3867114732,
        1355841295,
        495546011,
        621204420,
    ]
    assert plain_xoshiro128pp([1, 2, 3, 4], 10) == expected


def test_stream_values_equal_the_plain_reference():
    for key in (0, 1, 2**64 - 1, int(KEY)):
        got = [int(draws.stream_value(np.uint64(key), np.uint64(i))) for i in range(20)]
        assert got == [mix64(key + (i + 1) * GOLDEN) for i in range(20)]


def test_lanes_are_seeded_from_the_stream_and_never_all_zero():
    state = draws.seed_lanes(KEY)
    values = [mix64(int(KEY) + (i + 1) * GOLDEN) for i in range(32)]
    for lane in range(16):
        first, second = values[lane], values[16 + lane]
        expected = [first & 0xFFFFFFFF, first >> 32, second & 0xFFFFFFFF, second >> 32]
        assert state[:, lane].tolist() == expected
    assert state.any(axis=0).all()


def test_bulk_bits_equal_a_plain_xoshiro_in_every_lane():
    state = draws.seed_lanes(KEY)
    seeds = state.copy()
    bits = np.empty(16 * 40, np.uint32)
    draws.next_bits(state, bits[: 16 * 25])
    draws.next_bits(state, bits[16 * 25 :])
    for lane in range(16):
        assert bits[lane::16].tolist() == plain_xoshiro128pp(seeds[:, lane], 40)


def test_every_bit_is_fair():
    state = draws.seed_lanes(KEY)
    bits = np.empty(1 << 18, np.uint32)
    draws.next_bits(state, bits)
    ones = ((bits[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


# ---- Laplace ---------------------------------------------------------------------------------------------------------


def test_laplace_agrees_with_scipy(many_laplace):
    assert stats.kstest(many_laplace[: 1 << 20], stats.laplace.cdf).pvalue > 1e-3


def test_laplace_moments(many_laplace):
    n = len(many_laplace)
    assert abs(many_laplace.mean()) < 4 * np.sqrt(2 / n)
    # Var x^2 = 24 - 4 = 20 in units of lambda^4.
    assert abs(many_laplace.var() - 2) < 4 * np.sqrt(20 / n)
    assert abs(stats.skew(many_laplace)) < 0.05
    # The sample kurtosis has a standard deviation of about sqrt(8! / 2^4 / n) = 0.025.
    assert abs(stats.kurtosis(many_laplace) - 3) < 0.1


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beyond", [1, 5, 10, 12])
def test_laplace_tails(many_laplace, sign, beyond):
    expected = len(many_laplace) * np.exp(-beyond) / 2
    count = (sign * many_laplace > beyond).sum()
    assert abs(count - expected) < 4 * np.sqrt(expected) + 1


def test_laplace_of_extreme_bits():
    """The smallest and largest uniforms: no infinity, no NaN, and a tail that ends where the docstring says."""
    bits = np.array([0, 1, 2**31 - 1, -(2**31), -1, 2**30], np.int64).astype(np.int32)
    out = np.empty(6, np.float32)
    draws.laplace_block(bits, np.float32(1), out)
    expected = [32 * np.log(2), 31 * np.log(2) - np.log(1.5), 0, -32 * np.log(2), 0, np.log(2)]
    np.testing.assert_allclose(out, expected, atol=5e-6)


def test_laplace_against_exact_logarithms():
    state = draws.seed_lanes(KEY)
    bits = np.empty(1024, np.uint32)
    draws.next_bits(state, bits)
    u = ((bits & 0x7FFFFFFF).astype(np.float64) + 0.5) * 2.0**-31
    expected = -np.log(u) * np.where(bits >> 31, -1, 1) * 3.0
    np.testing.assert_allclose(laplace(KEY, 3.0, 1024), expected, atol=3e-5)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 7.0])
def test_laplace_scales(scale):
    np.testing.assert_allclose(laplace(KEY, scale, 5000), scale * laplace(KEY, 1.0, 5000), rtol=1e-6)


# ---- normal ----------------------------------------------------------------------------------------------------------


def test_normal_agrees_with_scipy(many_normal):
    assert stats.kstest(many_normal[: 1 << 20], stats.norm.cdf).pvalue > 1e-3


def test_normal_moments(many_normal):
    n = len(many_normal)
    assert abs(many_normal.mean()) < 4 / np.sqrt(n)
    assert abs(many_normal.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(stats.skew(many_normal)) < 4 * np.sqrt(6 / n)
    assert abs(stats.kurtosis(many_normal)) < 4 * np.sqrt(24 / n)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beyond", [1, 3, 4, 4.5])
def test_normal_tails(many_normal, sign, beyond):
    expected = len(many_normal) * stats.norm.sf(beyond)
    count = (sign * many_normal > beyond).sum()
    assert abs(count - expected) < 4 * np.sqrt(expected) + 1


def test_normal_against_exact_quantiles():
    state = draws.seed_lanes(KEY)
    bits = np.empty(1024, np.uint32)
    draws.next_bits(state, bits)
    bits[:3] = [0, 2**31 - 1, 2**31]
    out = np.empty(1024, np.float32)
    draws.normal_block(bits.view(np.int32), out)
    v = ((bits & 0x7FFFFFFF).astype(np.float64) + 0.5) * 2.0**-31
    expected = -stats.norm.ppf(v / 2) * np.where(bits >> 31, -1, 1)
    # The polynomial was fitted up to about 5.5; the last 2^-24 of the mass may be off by 4e-4 of its value.
    far = np.abs(expected) > 5.5
    np.testing.assert_allclose(out[~far], expected[~far], rtol=2e-6, atol=1e-6)
    assert far.sum() >= 2
    np.testing.assert_allclose(out[far], expected[far], rtol=1e-3)


# ---- a draw depends on its key alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 15, 16, 1023, 1024, 1025, 3000])
def test_the_same_draw_whatever_the_length(count):
    assert (laplace(KEY, 0.1, count) == laplace(KEY, 0.1, 4096)[:count]).all()
    assert (normal(KEY, count) == normal(KEY, 4096)[:count]).all()


def test_noise_is_added_as_it_is_filled():
    """`add_seeded_laplace` and `fill_laplace` are the same stream, block by block and in a view."""
    values = np.zeros(5000, np.float32)
    add_seeded_laplace(KEY, 0.25, values[100:3100])
    assert (values[100:3100] == laplace(KEY, 0.25, 3000)).all()
    assert not values[:100].any()
    assert not values[3100:].any()


@pytest.mark.parametrize("draw", [lambda key: laplace(key, 1.0, 1 << 14), lambda key: normal(key, 1 << 14)])
@pytest.mark.parametrize("keys", [user_stream_keys(int(KEY), np.arange(40)), KEY + np.arange(40, dtype=np.uint64)])
def test_neighbouring_keys_are_independent(draw, keys):
    """Correlation of values, of magnitudes, and shifted by one, between every two of 40 streams."""
    values = np.stack([draw(key) for key in keys]).astype(np.float64)
    for sample in (values, np.abs(values)):
        sample = (sample - sample.mean(axis=1, keepdims=True)) / sample.std(axis=1, keepdims=True)
        n = sample.shape[1]
        off_diagonal = (sample @ sample.T / n)[~np.eye(len(keys), dtype=bool)]
        assert np.abs(off_diagonal).max() < 5.5 / np.sqrt(n)
        shifted = sample[:, 1:] @ sample[:, :-1].T / n
        assert np.abs(shifted).max() < 5.5 / np.sqrt(n)


def test_a_stream_does_not_correlate_with_itself(many_laplace, many_normal):
    for values in (many_laplace[: 1 << 20], many_normal[: 1 << 20], np.abs(many_laplace[: 1 << 20]) - 1):
        for lag in (1, 2, 15, 16, 17, 32, 64, 1024):
            correlation = (values[lag:] * values[:-lag]).mean() / values.var()
            assert abs(correlation) < 5 / np.sqrt(len(values))


# ---- distinct draws --------------------------------------------------------------------------------------------------


def unmarked(key, marks, count, num_items=None):
    marks = marks.copy()
    drawn = np.full(count, -1, np.int64)
    draws.draw_unmarked(np.uint64(key), marks, num_items or len(marks), 2, drawn)
    return drawn, marks


def test_draw_is_distinct_never_marked_and_leaves_its_mark():
    marks = np.zeros(50, np.uint8)
    marks[::3] = 1
    for key in user_stream_keys(5, np.arange(200)):
        drawn, after = unmarked(key, marks, 10)
        assert len(np.unique(drawn)) == 10
        assert (marks[drawn] == 0).all()
        assert (after[drawn] == 2).all()
        assert (after != marks).sum() == 10


def test_draw_takes_all_that_is_left():
    marks = np.ones(64, np.uint8)
    free = [0, 7, 8, 63]
    marks[free] = 0
    for key in user_stream_keys(5, np.arange(50)):
        assert sorted(unmarked(key, marks, 4)[0].tolist()) == free


def test_draw_stays_within_the_catalogue_and_stops_at_once_for_nothing():
    padded = np.zeros(16, np.uint8)
    assert sorted(unmarked(KEY, padded, 10, num_items=10)[0].tolist()) == list(range(10))
    assert not unmarked(KEY, np.ones(8, np.uint8), 0)[0].size


def test_a_longer_draw_begins_with_the_shorter_one():
    marks = np.zeros(100, np.uint8)
    marks[:30] = 1
    assert (unmarked(KEY, marks, 40)[0][:7] == unmarked(KEY, marks, 7)[0]).all()


@pytest.mark.parametrize(("num_items", "count"), [(37, 1), (37, 10), (1000, 3)])
def test_draw_is_uniform(num_items, count):
    """Chi-square of how often each free item is drawn, of the first place and over all places."""
    marks = np.zeros(num_items, np.uint8)
    marks[[1, num_items // 2]] = 1
    free = np.flatnonzero(marks == 0)
    keys = user_stream_keys(11, np.arange(20_000))
    drawn = np.stack([unmarked(key, marks, count)[0] for key in keys])
    first = np.bincount(drawn[:, 0], minlength=num_items)[free]
    assert stats.chisquare(first).pvalue > 1e-3
    # Without replacement the counts vary less than a multinomial's: scaled by (F - 1) / (F - count).
    total = np.bincount(drawn.reshape(-1), minlength=num_items)[free]
    statistic = ((total - total.mean()) ** 2 / total.mean()).sum() * (len(free) - 1) / (len(free) - count)
    assert 1e-3 < stats.chi2.sf(statistic, len(free) - 1) < 1 - 1e-3


def test_pairs_of_a_draw_are_uniform():
    keys = user_stream_keys(12, np.arange(20_000))
    marks = np.zeros(8, np.uint8)
    drawn = np.stack([unmarked(key, marks, 2)[0] for key in keys])
    pairs = np.bincount(drawn[:, 0] * 8 + drawn[:, 1], minlength=64).reshape(8, 8)
    assert not np.diag(pairs).any()
    assert stats.chisquare(pairs[~np.eye(8, dtype=bool)]).pvalue > 1e-3
