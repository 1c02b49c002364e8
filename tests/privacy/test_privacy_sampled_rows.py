"""Uploads of rows drawn by lot: which rows travel says nothing of the user, and their scaled mean is the dense one's."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism, LaplaceMechanism, NoNoise
from fastpfrec_flwr.privacy.sampled_rows import SampledRows, rows_in_upload
from fastpfrec_flwr.privacy.upload_costs import upload_costs
from fastpfrec_flwr.randomness import user_stream_keys
from tests.privacy.test_privacy_exposure import setting_of

ITEMS, K = 200, 4


class Changes(NamedTuple):
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def cohort(clients, touched=40, seed=1):
    generator = np.random.default_rng(seed)
    rows = np.concatenate([np.sort(generator.choice(ITEMS, touched, replace=False)) for _ in range(clients)])
    values = generator.normal(0, 1, (clients * touched, K)).astype(np.float32)
    return Changes(rows.astype(np.int32), np.arange(clients + 1, dtype=np.int64) * touched, values)


def nonces_of(clients, seed=3):
    return user_stream_keys(seed, np.arange(clients))


def privatized(mechanism, changes, nonces, keys=None):
    own = changes._replace(changes=changes.changes.copy())
    return mechanism.privatize(own, nonces, keys, ITEMS)


@pytest.mark.parametrize(("share", "count"), [(0.1, 20), (0.001, 1), (0.333, 67), (1.0, 200)])
def test_every_upload_has_the_same_number_of_rows(share, count):
    assert rows_in_upload("sampled", share, ITEMS) == count
    uploads = privatized(SampledRows(NoNoise(Clip(0, 0)), share), cohort(5), nonces_of(5))
    assert uploads.pointer.tolist() == [count * j for j in range(6)]
    for j in range(5):
        rows = uploads.rows[uploads.pointer[j] : uploads.pointer[j + 1]]
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < ITEMS
    assert rows_in_upload("dense", share, ITEMS) == rows_in_upload("sparse", share, ITEMS) == ITEMS


def test_which_rows_travel_depends_on_the_nonce_alone():
    mechanism, nonces = SampledRows(LaplaceMechanism(Clip(1, 5), 0.1, dense=False), 0.2), nonces_of(6)
    one = privatized(mechanism, cohort(6, seed=1), nonces, nonces_of(6, 8))
    other = privatized(mechanism, cohort(6, touched=3, seed=2), nonces, nonces_of(6, 9))
    np.testing.assert_array_equal(one.rows, other.rows)
    few = privatized(mechanism, cohort(2), nonces[4:], nonces_of(2, 8))
    np.testing.assert_array_equal(few.rows, one.rows[one.pointer[4] :])
    again = privatized(mechanism, cohort(6), nonces_of(6, 4), nonces_of(6, 8))
    assert (again.rows != one.rows).any()


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_carry_the_change_or_zero(threads):
    changes, nonces = cohort(7), nonces_of(7)
    uploads = privatized(SampledRows(NoNoise(Clip(0, 0)), 0.3, threads), changes, nonces)
    dense = np.zeros((7, ITEMS, K), np.float32)
    for j in range(7):
        dense[j, changes.rows[changes.pointer[j] : changes.pointer[j + 1]]] = changes.changes[
            changes.pointer[j] : changes.pointer[j + 1]
        ]
        mine = slice(uploads.pointer[j], uploads.pointer[j + 1])
        np.testing.assert_allclose(uploads.values[mine], dense[j, uploads.rows[mine]], atol=2**-20)


def test_rows_are_drawn_uniformly():
    clients = 4000
    few = Changes(
        np.zeros(clients, np.int32), np.arange(clients + 1, dtype=np.int64), np.ones((clients, K), np.float32)
    )
    uploads = privatized(SampledRows(NoNoise(Clip(0, 0)), 0.1), few, nonces_of(clients))
    counts = np.bincount(uploads.rows, minlength=ITEMS)
    # Without replacement within an upload: the variance of a count is n f (1 - f).
    chi_square = ((counts - clients * 0.1) ** 2 / (clients * 0.1 * 0.9)).sum()
    assert stats.chi2.sf(chi_square, ITEMS - 1) > 1e-3
    assert stats.chi2.cdf(chi_square, ITEMS - 1) > 1e-3


def test_the_mean_over_the_share_is_the_mean_of_the_whole_changes():
    clients, share = 6000, 0.25
    one = cohort(1)
    changes = Changes(
        np.tile(one.rows, clients), np.arange(clients + 1, dtype=np.int64) * 40, np.tile(one.changes, (clients, 1))
    )
    uploads = privatized(SampledRows(NoNoise(Clip(0, 0)), share), changes, nonces_of(clients))
    total = np.zeros((ITEMS, K))
    np.add.at(total, uploads.rows, uploads.values.astype(np.float64))
    whole = np.zeros((ITEMS, K))
    whole[one.rows] = one.changes
    error = total / clients / share - whole
    # A coordinate's mean over n draws of a Bernoulli(f) / f has the standard deviation |x| sqrt((1 - f) / (f n)).
    deviation = np.abs(whole) * math.sqrt((1 - share) / (share * clients))
    assert (np.abs(error) <= 5 * deviation + 1e-5).all()


@pytest.mark.parametrize("mechanism", [LaplaceMechanism, GaussianMechanism])
@pytest.mark.parametrize("system", [False, True], ids=["seeded", "system"])
def test_every_drawn_row_carries_noise_and_the_clip_comes_first(mechanism, system):
    scale, clients = 0.5, 300
    huge = cohort(clients)._replace(changes=np.full((clients * 40, K), 1e6, np.float32))
    inner = mechanism(Clip(0, 1e-4), scale, dense=False)
    uploads = privatized(SampledRows(inner, 0.1), huge, nonces_of(clients), None if system else nonces_of(clients, 8))
    law = stats.laplace(scale=scale) if mechanism is LaplaceMechanism else stats.norm(scale=scale)
    values = uploads.values.astype(np.float64).ravel()
    assert len(values) == clients * 20 * K
    assert stats.kstest(values, law.cdf).pvalue > (1e-6 if system else 1e-3)  # no seed repeats what the system draws
    assert uploads.cover_scale == 0.0


def test_the_ledger_counts_the_rows_that_travel_and_no_noise_of_others():
    tight = {"clip_norm": 1.0, "row_clip": 0.0, "noise_scale": 4.0, "evaluate_every": 0, "report_loss": False}
    dense, sampled = setting_of(**tight), setting_of(**tight, upload="sampled", sampled_share=0.25)
    items = dense.num_items
    # 2 S sqrt(d) / lambda, with a quarter of the rows half of it.
    whole, _, _ = upload_costs(dense.config, items)
    part, _, _ = upload_costs(sampled.config, items)
    assert whole.pure == pytest.approx(2 * math.sqrt(items * dense.config.embedding_dim) / 4.0)
    rows = round(0.25 * items)
    assert part.pure == pytest.approx(2 * math.sqrt(rows * dense.config.embedding_dim) / 4.0)
    gaussian = {**tight, "noise": "gaussian", "check": "none", "upload": "sampled"}
    ledger = build_ledger(setting_of(**gaussian))
    assert ledger.of("server").epsilon == pytest.approx(ledger.of("trusted node").epsilon)
    assert math.isfinite(ledger.of("trusted node").epsilon)
