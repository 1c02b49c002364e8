"""Many `flwr run`s in a row against one local SuperLink: how long each takes to its first figures, and what each leaves behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.output import Line
from benchmarks.processes import entries, listening, processes_of, resident_mb, size_mb
from benchmarks.setup import ROOT

# The first line of the progress table that has figures: "    1/5 0.5530 ...".
_FIRST_FIGURES = re.compile(r"^\s*1/\d+\s")
_SETTLE_S = 5.0


def repeated(data_set: str, data_dir: str, runs: int, rounds: int) -> Iterator[Line]:
    """Run the app again and again; what each run took and what was there when it had ended.

    The first line is cold: a SuperLink is started, the app is installed and the kernels are compiled. Home, ports, caches and
    state are the benchmark's own and go with it. Linux only, because it reads /proc.
    """
    with tempfile.TemporaryDirectory() as folder, _own_flower(Path(folder)) as environment:
        for run in range(1, runs + 1):
            out, state = Path(folder) / f"run-{run}", Path(folder) / "state"
            pairs = f'data-set="{data_set}" data-dir="{data_dir}" num-rounds={rounds} evaluate-every=1'
            own = f'{pairs} output-dir="{out}" state-dir="{state}"'
            flower = str(Path(sys.executable).with_name("flwr"))
            first, whole = _timed([flower, "run", str(ROOT), "--stream", "-c", own], environment)
            if not (out / "summary.json").is_file():
                raise RuntimeError(f"run {run} has left no summary in {out}: it did not come to its end")
            time.sleep(_SETTLE_S)
            left = processes_of(environment["FLWR_HOME"])
            yield {
                "run": run,
                "first_figures_s": first,
                "whole_s": whole,
                "processes": len(left),
                "memory_mb": sum(resident_mb(process) for process in left),
                "open_files": sum(entries(Path(f"/proc/{process}/fd")) for process in left),
                "ports": listening(left),
                "home_mb": size_mb(Path(environment["FLWR_HOME"])),
                "cache_mb": size_mb(Path(folder) / "cache"),
                "state_mb": size_mb(state),
                "ray_mb": size_mb(Path(environment["RAY_TMPDIR"])),
            }


@contextmanager
def _own_flower(folder: Path) -> Iterator[dict[str, str]]:
    """An environment in which `flwr` starts a SuperLink of its own, which is ended with everything that it has started."""
    own = {
        "FLWR_HOME": folder / "home",
        "XDG_CACHE_HOME": folder / "cache",
        "RAY_TMPDIR": folder / "ray",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": _free_port(),
        "FLWR_LOCAL_CONTROL_API_PORT": _free_port(),
        "FLWR_TELEMETRY_ENABLED": 0,
        "FLWR_DISABLE_UPDATE_CHECK": 1,
    }
    environment = os.environ | {key: str(value) for key, value in own.items()}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for name in ("FLWR_HOME", "RAY_TMPDIR"):
        Path(environment[name]).mkdir()
    try:
        yield environment
    finally:
        deadline = time.monotonic() + 20
        while left := processes_of(environment["FLWR_HOME"]):
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.5)


def _timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds to the first figures and to the end."""
    began, first = time.monotonic(), float("nan")
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if first != first and _FIRST_FIGURES.match(line):
                first = time.monotonic() - began
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines[-20:])}")
    return first, time.monotonic() - began


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
