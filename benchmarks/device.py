"""What a round costs a device of one user: `python -m benchmarks.device --data-dir DIR [--data-set gowalla-1m]`.

Each line is a process of its own that answers one train message as a SuperNode's ClientApp does, on a file with one user's items
and the whole catalogue: bytes of the upload, CPU seconds of the round, and memory (the peak, and what Python with torch alone
takes). As on a device, what Flower's own `flwr-clientapp` loads is in the process too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Measure every form of upload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-set", default="gowalla-1m")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--one", default="", help="used by itself")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_one(**json.loads(options.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        items = _write(Path(folder), options.data_set, options.data_dir)
        torch = _in_process(["-c", "import torch, benchmarks.device as d; print(d.peak_mb())"])
        print(
            f"{options.data_set}: {items} items, 64 dimensions, one user; Python with torch alone {float(torch):.0f} MB"
        )
        print(f"{'upload':22}{'MB up':>8}{'CPU s':>9}{'peak MB':>9}{'of it the round':>17}")
        for upload, precision in (
            ("dense", "float32"), ("dense", "float16"), ("dense", "int8"),
            ("sparse", "float32"), ("sparse", "float16"), ("sparse", "int8"),
        ):  # fmt: skip
            settings = {"folder": folder, "items": items, "upload": upload, "precision": precision}
            for _ in range(2):  # the first may have to compile
                found = json.loads(_in_process(["-m", "benchmarks.device", "--one", json.dumps(settings)]))
            print(
                f"{upload + ' ' + precision:22}{found['bytes'] / 1e6:8.2f}{found['seconds']:9.2f}{found['peak']:9.0f}"
                f"{found['peak'] - found['before']:17.0f}"
            )


def _in_process(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip().splitlines()[-1]


def peak_mb() -> float:
    """Largest resident memory of this process so far, or since it was last reset."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _write(folder: Path, data_set: str, data_dir: str) -> int:
    """A catalogue of all items, and the file of the user with the median number of items."""
    from fastpfrec_flwr.catalogue import Catalogue
    from fastpfrec_flwr.data import SplitSettings, prepare

    split = prepare(data_set, data_dir or None, SplitSettings("auto", 0.1, 0.2, 1)).load()
    ids = [str(each) for each in split.item_ids]
    Catalogue(tuple(ids), name=data_set).save(folder / "catalogue.json")
    lengths = split.train.lengths()
    user = int(np.argsort(lengths)[len(lengths) // 2])
    lines = [f"me,{ids[item]},{n}" for n, item in enumerate(split.train.row(user))]
    (folder / "me.csv").write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")
    return len(ids)


def _one(folder: str, items: int, upload: str, precision: str) -> dict[str, float]:
    """Answer one train message."""
    import flwr.supernode.cli
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from client_app import app
    from fastpfrec_flwr import messages
    from fastpfrec_flwr.config import default_values
    from fastpfrec_flwr.files import source_fingerprint
    from fastpfrec_flwr.messages import Order

    assert flwr.supernode.cli
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    config: dict[str, Any] = default_values() | {
        "upload": upload, "upload-precision": precision, "device": "cpu", "threads": 1, "num-negatives": 256,
    }  # fmt: skip
    node: dict[str, Any] = {
        "data-path": f"{folder}/me.csv", "catalogue": f"{folder}/catalogue.json", "state-dir": f"{folder}/{precision}-{upload}",
    }  # fmt: skip
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mb()
    table = np.random.default_rng(1).normal(0, 0.05, (items, 64)).astype(np.float32)
    order = Order(source_fingerprint(), f"t{time.time_ns()}", "train", 1, 1, report_loss=True)
    message = Message(messages.encode_train(messages.encode_model(table), order), 1, "train")
    del table
    began = time.process_time()
    reply = app(message, context)
    seconds = time.process_time() - began
    uploads = reply.content["uploads"]
    assert isinstance(uploads, ArrayRecord)
    size = sum(len(each.data) for each in uploads.values())
    return {"bytes": size, "seconds": seconds, "peak": peak_mb(), "before": before}


if __name__ == "__main__":
    main()
