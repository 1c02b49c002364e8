"""Uploads with their noise, and distances without any."""

import numpy as np

from fastpfrec_flwr.draws import fill_laplace
from fastpfrec_flwr.randomness import stream_key, user_stream_keys
from fastpfrec_flwr.trusted_node.distances import Distances


def noiseless(*distances):
    distances = np.array(distances, np.float64)
    return Distances(distances**2, np.zeros(len(distances)), np.zeros(len(distances)))


ITEMS, K, SCALE = 500, 32, 0.1


def uploads_of(changes, key):
    """Noised changes (clients, rows, k) end to end, with their pointer."""
    clients, rows, k = changes.shape
    values = changes.astype(np.float32).reshape(-1)
    noise = np.empty_like(values)
    fill_laplace(np.uint64(stream_key(key)), SCALE, noise)
    return (values + noise).reshape(-1, k), np.arange(clients + 1, dtype=np.int64) * rows


def norm_keys(clients, key=5):
    return user_stream_keys(key, np.arange(clients))
