"""Rounds under `flwr run` and in-process, whole runs of both."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.output import Line
from benchmarks.setup import ROOT


def measured(data_set: str, data_dir: str, rounds: int, super_nodes: list[str]) -> list[Line]:
    """Median milliseconds of a round and seconds of the whole run, for each number of simulated SuperNodes."""
    figures: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        pairs = f'data-set="{data_set}" data-dir="{data_dir}" num-rounds={rounds} evaluate-every=0 report-loss=false'
        for count in super_nodes:
            for kind in ("flwr run", "in-process"):
                out = Path(folder) / f"{kind.replace(' ', '-')}-{count}"
                command = _command(kind, f'{pairs} output-dir="{out}"', count)
                subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                seconds = json.loads((out / "summary.json").read_text())["seconds"]
                median = 1e3 * seconds["round_median"]
                figures.append(
                    {"kind": kind, "super_nodes": int(count), "median_ms": median, "total_s": seconds["total"]}
                )
    return figures


def _command(kind: str, own: str, count: str) -> list[str]:
    """The command line of a run with its `own` pairs of configuration."""
    if kind == "flwr run":
        flower = str(Path(sys.executable).with_name("flwr"))
        federation = f"num-supernodes={count} client-resources-num-cpus=1"
        return [flower, "run", str(ROOT), "--stream", "-c", own, "--federation-config", federation]
    return [sys.executable, "-m", "fastpfrec_flwr", "simulate", "-c", own, "--num-supernodes", count]
