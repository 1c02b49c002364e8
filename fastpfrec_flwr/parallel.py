"""Threads: tasks of compiled code side by side, never more threads than the process was given."""

from __future__ import annotations

import os
import threading
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


@contextmanager
def one_thread() -> Iterator[None]:
    """This thread does all its work itself for a while: those who share out whole SuperNodes have used up the processors."""
    before = getattr(_granted, "alone", False)
    _granted.alone = True
    try:
        yield
    finally:
        _granted.alone = before


def in_parallel(run: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Call `run` (which must release the interpreter lock to gain anything) on every task; the first error is raised.

    The caller works too: it is on a processor already, and waking one thread less is worth a fifth of a short phase. Tasks
    that call a BLAS belong under `one_thread_products`, so that the threads here are all there are.
    """
    waiting = iter(list(tasks))
    if threads <= 1 or getattr(_granted, "alone", False):
        for task in waiting:
            run(task)
        return

    def work() -> None:
        # Each takes the next task that nobody has; an error ends them all.
        try:
            for task in waiting:
                run(task)
        except BaseException:
            for _ in waiting:
                pass
            raise

    helpers = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        wait(helpers)
    for helper in helpers:
        helper.result()


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
