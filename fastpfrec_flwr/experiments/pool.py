"""Worker processes as the runner sees them: give a job, ask whether it is done, end them all."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class WorkerDied(RuntimeError):
    """A worker process ended by itself; the message says how."""


class Worker:
    """One worker process, in a session of its own: a Ctrl-C in the terminal does not reach it.

    Parameters
    ----------
    log : where it prints what belongs to no run.
    """

    def __init__(self, log: Path) -> None:
        self._log: TextIO = log.open("a", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fastpfrec_flwr.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,  # an answer that waited in a buffer of ours would wake nobody
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
        self._ready = False
        self._busy = False
        self.began = 0.0
        assert self._process.stdout is not None
        self._answers = selectors.DefaultSelector()
        self._answers.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def busy(self) -> bool:
        """Whether it works on a job."""
        return self._busy

    def give(self, job: Mapping[str, Any]) -> None:
        """Hand over a job; it must have none."""
        if self._busy:
            raise RuntimeError("a worker takes one job at a time: poll() until it is done")
        assert self._process.stdin is not None
        self._busy = True
        self.began = time.monotonic()
        with suppress(BrokenPipeError):  # poll() says so
            self._process.stdin.write(json.dumps(job).encode() + b"\n")

    def poll(self, seconds: float = 0.0) -> int | None:
        """Exit status of the job (negative: the signal that ended it), or None if it still runs after `seconds`.

        Raises
        ------
        WorkerDied if the worker itself is gone.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while self._answers.select(max(0.0, deadline - time.monotonic())):
            line = self._process.stdout.readline()  # the worker writes whole lines
            if not line:
                self._busy = False
                raise WorkerDied(f"the worker process ended with status {self._process.wait()}")
            answer = json.loads(line)
            if "ready" in answer:
                self._ready = True
                self.began = time.monotonic()  # the imports belong to no run
                continue
            self._busy = False
            return int(answer["status"])
        return None

    def end(self) -> None:
        """End it and what it runs, now."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._answers.close()
