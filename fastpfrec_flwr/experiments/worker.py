"""A worker process: imports everything once, then forks a child for each run, so that a crash costs that run alone.

It reads jobs from stdin, a line of JSON each, and answers each with a line of JSON that holds the child's exit status. When
stdin ends (its master is gone) it ends its child and itself. It has one thread and opens nothing before it forks.

Jobs: {"do": "run", "folder", "kind", "model", "chosen"} makes the run that `settings.toml` in the folder describes;
{"do": "prepare", "settings": [...], "output"} prepares the data of these settings files; {"do": "warm", ...} compiles what they
need by tiny runs. What the child prints goes to `output.txt` in the folder, or to "output".
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastpfrec_flwr.foreseen import Foreseen

SETTINGS, OUTPUT, STATE = "settings.toml", "output.txt", "state"
# Errors that the user can do something about are told in a line.
FORESEEN = 2
_POLL_SECONDS = 0.05
# A run that goes everywhere and takes no time.
_SMALL: dict[str, Any] = {
    "data-set": "synthetic", "data-dir": "", "split": "auto", "min-weight": 0.0, "num-rounds": 2, "evaluate-every": 1,
    "catalogue": "", "early-stop-patience": 0, "clients-per-round": 40, "num-trusted-nodes": 2, "embedding-dim": 8,
    "num-negatives": 4, "trackers": "", "metrics-file": "",
}  # fmt: skip


def write_settings(path: Path, values: Mapping[str, Any]) -> None:
    """Write run-config values as TOML: what `fastpfrec simulate -c` takes, too."""
    from fastpfrec_flwr.files import write_atomically

    lines = [f"{key} = {toml_value(value)}\n" for key, value in values.items()]
    write_atomically(path, "".join(lines).encode())


def toml_value(value: Any) -> str:
    """A value as TOML spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _run(job: Mapping[str, Any]) -> None:
    from fastpfrec_flwr.simulation.run import simulate

    folder = Path(job["folder"])
    values = _read(folder / SETTINGS)
    if job["kind"] == "central":
        from fastpfrec_flwr.experiments.central import run_central

        run_central(values, job["model"], job["chosen"])
    else:
        simulate(values, 1)


def _prepare(job: Mapping[str, Any]) -> None:
    from fastpfrec_flwr.config import parse_run_config
    from fastpfrec_flwr.data.preparation import prepare_run

    for path in job["settings"]:
        config = parse_run_config(_read(Path(path)))
        prepare_run(config)


def _warm(job: Mapping[str, Any]) -> None:
    from fastpfrec_flwr.simulation.run import simulate

    for path in job["settings"]:
        values = _read(Path(path))
        folder = tempfile.mkdtemp(prefix="fastpfrec-warm-")
        small = {
            **_SMALL,
            "item-refresh-interval": min(1, values["item-refresh-interval"]),
            "compromised-nodes": min(1, values["compromised-nodes"]),
            "failed-nodes": min(1, values["failed-nodes"]),
            "pretrain-rounds": min(1, values["pretrain-rounds"]),
            "output-dir": f"{folder}/run",
            "state-dir": f"{folder}/state",
        }
        try:
            simulate({**values, **small}, 1)
        except Exception:  # a run that cannot be made says so itself, where people look
            traceback.print_exc()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))


_JOBS: dict[str, Callable[[Mapping[str, Any]], None]] = {"run": _run, "prepare": _prepare, "warm": _warm}


def _child(job: Mapping[str, Any]) -> int:
    """Do a job in this process; its exit status."""
    import faulthandler

    path = job.get("output") or str(Path(job["folder"]) / OUTPUT)
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    status = 1
    try:
        _JOBS[job["do"]](job)
        status = 0
    except Foreseen as error:
        print(f"error: {error}", file=sys.stderr)
        status = FORESEEN
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _wait(pid: int) -> int | None:
    """Exit status of the child, negative for a signal; None if stdin ended before, and the child with it."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if readable:  # one job at a time: what can be read is the end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None


def main() -> None:
    """Serve jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master decides what an interrupt ends
    _import_everything()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    while line := _next_line():
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            os._exit(_child(job))
        status = _wait(pid)
        if status is None:
            return
        print(json.dumps({"status": status}), file=answers, flush=True)


def _import_everything() -> None:
    """What every run needs, and a first call of a kernel, which wakes Numba: seconds that the children share."""
    import matplotlib.backends.backend_agg  # noqa: F401
    import numpy as np

    import fastpfrec_flwr.experiments.central
    import fastpfrec_flwr.simulation.run  # noqa: F401
    from fastpfrec_flwr.draws import fill_normal

    fill_normal(np.uint64(1), np.empty(1, np.float32))


def _next_line() -> bytes:
    """One line from stdin, unbuffered: nothing of it may be read ahead."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return b""
        line += piece
    return line


if __name__ == "__main__":
    main()
