"""Threads: tasks of compiled code side by side, never more threads than the process was given."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

_granted = threading.local()


def available_threads(requested: int = 0) -> int:
    """Threads this process may use: the request, else OMP_NUM_THREADS (Ray sets it per worker), else the CPUs it may run on."""
    if requested > 0:
        return requested
    granted = os.environ.get("OMP_NUM_THREADS", "")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(int(granted), cpus) if granted.isdigit() and int(granted) > 0 else cpus


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    # Looks through the loaded libraries once; numba's matrix products go through SciPy's BLAS, so that must be loaded first.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fastpfrec")


@contextmanager
def one_thread_products() -> Iterator[None]:
    """Matrix products take one thread each for a while: threads of our own call them, and two layers of threads fight."""
    with _blas().limit(limits=1, user_api="blas"):
        yield


class _Job:
    """Tasks that one thread has to do and others may help with."""

    def __init__(self, run: Callable[[Any], None], tasks: Iterable[Any]) -> None:
        self._run = run
        self.waiting = deque(tasks)
        self.helpers = 0
        self.error: BaseException | None = None

    def work(self) -> None:
        """Do tasks until none is left; an error ends them all."""
        while True:
            try:
                task = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._run(task)
            except BaseException as error:
                self.error = self.error or error
                self.waiting.clear()

    def raise_error(self) -> None:
        """Raise the first error, if there was one."""
        if self.error is not None:
            raise self.error


class _Crew:
    """Callers that work side by side; one that has nothing left to do takes tasks of the others."""

    def __init__(self, callers: int) -> None:
        self._busy = callers
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()

    def share(self, job: _Job) -> None:
        """Do a job, with the help of whoever is idle."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        job.work()
        with self._changed:
            self._jobs.remove(job)
            self._changed.wait_for(lambda: job.helpers == 0)

    def leave(self, everybody: bool = False) -> None:
        """One caller has come to its end, or all have because one failed."""
        with self._changed:
            self._busy = 0 if everybody else self._busy - 1
            self._changed.notify_all()

    def help(self) -> None:
        """Help with the jobs of the others until all callers have come to their ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._busy <= 0 or self._open() is not None)
                job = self._open()
                if job is None:
                    return
                job.helpers += 1
            job.work()
            with self._changed:
                job.helpers -= 1
                self._changed.notify_all()

    def _open(self) -> _Job | None:
        return next((job for job in self._jobs if job.waiting), None)


def side_by_side(run: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Call `run` on every task, `threads` at a time, each in one thread of its own; the first error is raised.

    What a task itself shares out by `in_parallel` it does alone as long as the others are at work, because they have used up the
    processors, and with those of them that have come to their end: tasks of unlike length end together.
    """
    waiting = list(tasks)
    crew = _Crew(len(waiting))

    def call(task: Task) -> None:
        try:
            run(task)
        except BaseException:
            crew.leave(everybody=True)
            raise
        crew.leave()

    job = _Job(call, waiting)

    def work() -> None:
        before = getattr(_granted, "crew", None)
        _granted.crew = crew
        try:
            job.work()
            if job.error is None:
                crew.help()
        finally:
            _granted.crew = before

    _with_helpers(work, min(threads, len(waiting)))
    job.raise_error()


def in_parallel(run: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Call `run` (which must release the interpreter lock to gain anything) on every task; the first error is raised.

    The caller works too: it is on a processor already, and waking one thread less is worth a fifth of a short phase. Tasks
    that call a BLAS belong under `one_thread_products`, so that the threads here are all there are.
    """
    job = _Job(run, tasks)
    crew = getattr(_granted, "crew", None)
    if crew is None or threads <= 1:
        _with_helpers(job.work, threads)
    else:
        crew.share(job)
    job.raise_error()


def results_in_parallel(run: Callable[[Task], Result], tasks: Iterable[Task], threads: int) -> list[Result]:
    """What `run` gives for each task, in the order of the tasks; otherwise as `in_parallel`."""
    todo = list(tasks)
    found: dict[int, Result] = {}

    def place(number: int) -> None:
        found[number] = run(todo[number])

    in_parallel(place, range(len(todo)), threads)
    return [found[number] for number in range(len(todo))]


def _with_helpers(work: Callable[[], None], threads: int) -> None:
    """Call `work` in `threads` threads, this one among them."""
    helpers = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        # One that has not begun has nothing left to do.
        wait([helper for helper in helpers if not helper.cancel()])


# Pieces per thread: some more than one, because the pieces' costs are estimates and other processes get in the way.
_PIECES = 4


def even_pieces(work: NDArray[Any], threads: int) -> list[tuple[int, int]]:
    """Cut a row of jobs into pieces of about the same work, a few for each thread.

    Parameters
    ----------
    work : (jobs,) what each costs, any unit, >= 0.

    Returns
    -------
    (first, last) of each piece; none is empty.
    """
    pieces = 1 if threads <= 1 else min(_PIECES * threads, len(work))
    done = np.cumsum(work, dtype=np.float64)
    if len(work) == 0:
        return []
    cuts = np.searchsorted(done, done[-1] * np.arange(1, pieces) / pieces)
    bounds = np.unique(np.concatenate([[0], cuts, [len(work)]]))
    return [(int(first), int(last)) for first, last in pairwise(bounds)]
