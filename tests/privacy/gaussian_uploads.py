"""Small uploads with Gaussian noise: as real devices send them, and as simulated ones do."""

import dataclasses

import numpy as np

from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism
from fastpfrec_flwr.randomness import user_stream_keys
from fastpfrec_flwr.trusted_node.uploads import Uploads

ITEMS, K, CLIENTS, SCALE = 400, 8, 20, 0.1


@dataclasses.dataclass
class Changes:
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def cohort(size=0.05, touched=60):
    generator = np.random.default_rng(1)
    rows = np.concatenate([np.sort(generator.choice(ITEMS, touched, replace=False)) for _ in range(CLIENTS)])
    values = generator.normal(0, size, (CLIENTS * touched, K)).astype(np.float32)
    return Changes(rows.astype(np.int32), np.arange(CLIENTS + 1, dtype=np.int64) * touched, values)


def made(real, repeat, scale=SCALE):
    changes = cohort()
    keys = None if real else user_stream_keys(repeat + 1, np.arange(CLIENTS))
    uploads = GaussianMechanism(Clip(0, 0), scale, dense=True).privatize(
        changes, np.arange(CLIENTS, dtype=np.uint64), keys, ITEMS
    )
    return Uploads(uploads.nonces, uploads.pointer, uploads.rows, uploads.values, uploads.cover_scale, "gaussian")
