"""An accelerator's memory is smaller than the host's: a cohort that does not fit is trained in parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from fastpfrec_flwr.foreseen import Foreseen

Part = TypeVar("Part")

_LOG = logging.getLogger(__name__)


class DeviceMemoryError(Foreseen, RuntimeError):
    """Not even one user fits into the accelerator's memory."""


def in_parts_that_fit(train: Callable[[int, int], Part], users: int) -> list[Part]:
    """Train all users at once, or, where the device has no memory left, in halves, and these in halves again.

    Parameters
    ----------
    train : trains users [first, last) and gives what the host needs of them. users : in all, may be 0.

    Returns
    -------
    What `train` gave, in the order of the users.

    Raises
    ------
    DeviceMemoryError if one user alone does not fit.
    """
    waiting, found, halved = [(0, users)], [], 0
    while waiting:
        first, last = waiting.pop()
        part = _attempt(train, first, last)
        if part is not None:
            found.append(part)
            continue
        if last - first <= 1:
            raise DeviceMemoryError(
                'the accelerator\'s memory does not hold one user and the item table: free some of it, say device = "cpu", or take '
                "a smaller num-negatives or embedding-dim"
            )
        # What the failed attempt had taken is free again only now that its frames are gone.
        torch.cuda.empty_cache()
        middle = (first + last) // 2
        waiting += [(middle, last), (first, middle)]
        halved = max(halved, last - first)
    if halved:
        _LOG.warning(
            "the accelerator has no memory left for %d clients at once: they were trained in %d parts, with the same result; give "
            "each SuperNode fewer clients or a larger share of the accelerator",
            halved,
            len(found),
        )
    return found


def _attempt(train: Callable[[int, int], Part], first: int, last: int) -> Part | None:
    """What `train` gives, None where it ran out of memory."""
    try:
        return train(first, last)
    except torch.OutOfMemoryError:
        return None
