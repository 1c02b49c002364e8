"""Threads: tasks of compiled code side by side, never more threads than the process was given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")


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


def in_parallel(run: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Call `run` (which must release the interpreter lock to gain anything) on every task; the first error is raised.

    Matrix products inside the tasks use one thread each, so the threads of the pool are all there are.
    """
    with one_thread_products():
        if threads <= 1:
            for task in tasks:
                run(task)
        else:
            for _ in _pool(threads).map(run, tasks):
                pass
