"""What passes before the first round: the command line's first word, reading a data set for the first time, opening it again."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks.output import Line, spread
from benchmarks.setup import ROOT
from fastpfrec_flwr.foreseen import Foreseen

# In a process of its own: the modules that it needs are loaded before the clock starts, as in a ClientApp that runs already.
_OPENING = """
import json, sys, time
import fastpfrec_flwr.data.interactions, fastpfrec_flwr.data.reading, fastpfrec_flwr.data.splitting, fastpfrec_flwr.data.synthetic
from fastpfrec_flwr.data import SplitSettings, open_shard, prepare
from fastpfrec_flwr.foreseen import Foreseen
times = []
try:
    for _ in range(2):
        began = time.perf_counter(), time.process_time()
        prepared = prepare(sys.argv[1], sys.argv[2] or None, SplitSettings("auto", 0.1, 0.2, 1))
        open_shard(prepared.directory, 0, 2)
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        assert prepared.from_cache == (len(times) == 2)
    print(json.dumps(times))
except Foreseen as error:
    print(json.dumps({"error": str(error)}))
"""


def measured(data_sets: list[str], data_dir: str, repeats: int) -> list[Line]:
    """Wall and processor milliseconds, medians with quartiles of the former."""
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}

    def note(what: str, wall: float, cpu: float) -> None:
        walls.setdefault(what, []).append(wall)
        cpus.setdefault(what, []).append(cpu)

    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fastpfrec_flwr", "--help"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        note("fastpfrec --help", wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        for name in data_sets:
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "XDG_CACHE_HOME": cache}
                command = [sys.executable, "-c", _OPENING, name, data_dir]
                done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            if isinstance(found, dict):
                raise Foreseen(found["error"])
            first, again = found
            note(f"read, split and keep {name}", *first)
            note(f"open {name} again", *again)
    return [{"what": what, **spread(walls[what]), "cpu_ms": spread(cpus[what])["median_ms"]} for what in walls]
