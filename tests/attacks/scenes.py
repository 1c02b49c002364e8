"""Small hand-made uploads and scenes for attacks."""

import numpy as np

from fastpfrec_flwr.attacks.forging import Own, Scene
from fastpfrec_flwr.config import default_values, parse_run_config

ITEMS, K = 6, 2


def config_of(**changes):
    values = {"data_set": "synthetic", "embedding_dim": K, "num_trusted_nodes": 1, "clients_per_round": 10, **changes}
    return parse_run_config({**default_values(), **{key.replace("_", "-"): each for key, each in values.items()}})


def own_of(*uploads):
    """Uploads given as {row: values}."""
    rows = [np.array(sorted(each), np.int32) for each in uploads]
    values = [np.array([each[row] for row in sorted(each)], np.float32).reshape(-1, K) for each in uploads]
    pointer = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    keys = np.arange(1, len(uploads) + 1, dtype=np.uint64)
    return Own(keys, pointer, np.concatenate(rows), np.concatenate(values))


def scene_of(table=None, cover_scale=0.0, popularity=None, server_round=1, **changes):
    if cover_scale == 0 and "noise" not in changes:
        changes = {"noise": "none", "noise_scale": 0.0, **changes}
    table = np.zeros((ITEMS, K), np.float32) if table is None else np.asarray(table, np.float32)
    popularity = np.arange(len(table)) if popularity is None else np.asarray(popularity)
    return Scene(config_of(**changes), table, server_round, cover_scale, popularity)


def filled(forgery, i):
    """{row: values} of a forged upload."""
    rows = forgery.rows(i)
    assert (np.diff(rows) > 0).all()
    out = np.full((len(rows), K), np.nan, np.float32)
    forgery.fill(i, out)
    return dict(zip(rows.tolist(), out.tolist(), strict=True))
