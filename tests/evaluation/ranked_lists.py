"""What the tests of this folder share: ragged rows from lists, and an independent judge of ranked lists."""

import numpy as np
import pytest

from fastpfrec_flwr.evaluation.metrics import CUTOFFS, per_user_metrics
from fastpfrec_flwr.evaluation.rows import Rows


def rows_of(lists):
    """One row of item ids a user."""
    lengths = np.array([len(row) for row in lists], dtype=np.int64)
    ends = np.cumsum(lengths)
    return Rows(np.array([item for row in lists for item in row], dtype=np.int32), ends - lengths, ends)


def agrees_with_trec(top, truth):
    """Hold per-user values against trec_eval's, which knows nothing of this project."""
    ir_measures = pytest.importorskip("ir_measures")
    if not ir_measures.providers.registry["pytrec_eval"].is_available():
        pytest.skip("trec_eval is not installed")
    measures = {"hit_rate_user": "Success", "recall": "R", "precision": "P", "ndcg": "nDCG"}
    names = {f"{theirs}@{k}": f"{ours}@{k}" for ours, theirs in measures.items() for k in CUTOFFS}
    qrels = {f"u{user}": {str(item): 1 for item in row} for user, row in enumerate(truth) if len(row)}
    run = {f"u{user}": {str(i): 100.0 - r for r, i in enumerate(row) if i >= 0} for user, row in enumerate(top)}
    ours = per_user_metrics(top, rows_of(truth))
    compared = 0
    for value in ir_measures.iter_calc([ir_measures.parse_measure(name) for name in names], qrels, run):
        mine = ours[names[str(value.measure)]][int(value.query_id[1:])]
        assert mine == pytest.approx(value.value, abs=1e-9), value
        compared += 1
    assert compared == len(names) * len(qrels)
