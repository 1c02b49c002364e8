"""Who runs all SuperNodes of a simulation may look into their folders: one file with every user's test metrics.

Nothing of it crosses the wire. The files stand beside the devices' state, so the release of that state leaves them.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from fastpfrec_flwr.client.opening import user_metrics_folder, user_metrics_name
from fastpfrec_flwr.evaluation.metrics import CUTOFFS
from fastpfrec_flwr.evaluation.user_metrics import UserMetrics

FILE = "user_metrics.npz"


def collect_user_metrics(run_folder: Path, state_root: Path, num_supernodes: int) -> Path | None:
    """Merge the devices' files into `user_metrics.npz` of the run folder.

    They are taken only if they give the hit ratios of `summary.json` exactly: a file of an earlier evaluation, or of a device
    whose reply was refused, belongs to other figures.

    Returns
    -------
    The file; None, with a word on stderr, where the run has test figures and the devices' files do not belong to them. A run
    without test figures has no such file either.
    """
    test = json.loads((run_folder / "summary.json").read_text(encoding="utf-8"))["test"]
    state_id = json.loads((run_folder / "config.json").read_text(encoding="utf-8"))["state_id"]
    folder = user_metrics_folder(state_root, state_id)
    target = run_folder / FILE
    target.unlink(missing_ok=True)
    if not test:
        return None
    try:
        merged = UserMetrics.merged(
            UserMetrics.load(folder / user_metrics_name(i, num_supernodes)) for i in range(num_supernodes)
        )
    except (OSError, ValueError) as error:
        print(f"no user metrics: {error}", file=sys.stderr)
        return None
    if any(merged.hit_ratio_micro(k) != test[f"hit_ratio_micro@{k}"] for k in CUTOFFS):
        print(f"no user metrics: the files in {folder} are not of the summary's evaluation", file=sys.stderr)
        return None
    merged.save(target)
    # State that was kept for a checkpoint may be gone on from, and these files with it.
    if not any(each != folder for each in folder.parent.iterdir()):
        shutil.rmtree(folder.parent, ignore_errors=True)
    return target
