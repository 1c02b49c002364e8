"""The best items of every user by inner product, over the whole catalogue, with what the user already has left out.

A matrix product gives every score in float32, but its rounding depends on the library, the device and the other users
in the same call, and near ties would fall one way or the other. So it is only used to throw items away: those whose
float32 score lies within the rounding error of the k-th best are scored once more, in float64 and in a fixed order, and
ranked by that. The list is therefore the exact one (ties by item id, smallest first), the same bit for bit on every
device and beside any other users, at the price of a few dozen short dot products a user.

Error of a float32 inner product of length k, in any order of summation: at most k u / (1 - k u) times the sum of
|x_i y_i|, u = 2^-24 (Higham: Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1), and that sum is at
most ||x|| ||y||.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.evaluation.rows import Rows, RowsLike, checked_rows, entries_of

Engine = Literal["auto", "numba", "torch"]
BLOCK_BYTES = 12 << 20  # scores held by one thread: they are read twice, best from the cache
TORCH_BLOCK_BYTES = 24 << 20  # comparisons and candidate lists take several times as much beside them
TF32_ERROR = 2.0**-9  # accelerators may round both factors to 11 bits first; this is twice the worst of that


def rank_top_k(
    user_vectors: NDArray[np.float32],
    item_table: NDArray[np.float32],
    masked: RowsLike | Sequence[RowsLike] = (),
    *,
    top_k: int = 20,
    item_bias: NDArray[np.float32] | None = None,
    device: str = "cpu",
    engine: Engine = "auto",
    threads: int | None = None,
) -> NDArray[np.int32]:
    """Rank all items for every user by `user_vectors @ item_table.T + item_bias`.

    Memory: the result and, for each thread, `BLOCK_BYTES` of scores.

    Parameters
    ----------
    user_vectors : (users, k) float32.
    item_table : (items, k) float32.
    masked : rows of items that a user cannot be recommended, one set or several; each holds one row for each user.
    top_k : length of the list.
    item_bias : (items,) float32 added to every user's score of an item, or None.
    device : where the `torch` engine multiplies, in torch's spelling.
    engine : `numba` runs on the processor; `torch` on any device; `auto` takes `numba` for the processor.
    threads : threads of the `numba` engine; None for one a core. Does not change the result.

    Returns
    -------
    (users, top_k) int32 item ids, best first, ties by smaller id; -1 where fewer than `top_k` items are left to rank.

    Raises
    ------
    ValueError if shapes do not fit, an id lies outside the catalogue, a vector is not finite (a model that has diverged
    has no ranking), scores would overflow, or the engine cannot run on the device.
    """
    users, table = _factors(user_vectors, item_table, item_bias)
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if engine == "auto":
        engine = "numba" if device == "cpu" else "torch"
    if engine == "numba" and device != "cpu":
        raise ValueError(f"engine 'numba' runs on device 'cpu' only, got {device!r}; use engine 'torch' or 'auto'")
    masks = _checked_masks(masked, len(users), len(table))
    top_items = np.empty((len(users), top_k), np.int32)
    if engine == "numba":
        slacks = _slacks(users, table, 0.0)
        _rank_on_processor(users, table, slacks, masks, top_items, threads)
    elif engine == "torch":
        slacks = _slacks(users, table, TF32_ERROR)
        _rank_with_torch(users, table, slacks, masks, top_items, device)
    else:
        raise ValueError(f"engine must be 'auto', 'numba' or 'torch', got {engine!r}")
    return top_items


def rank_scores(
    scores: NDArray[np.float32], masked: RowsLike | Sequence[RowsLike] = (), *, top_k: int = 20
) -> NDArray[np.int32]:
    """Rank items by given scores, for models that are not an inner product.

    Parameters
    ----------
    scores : (users, items) float32; overwritten with minus infinity where masked.
    masked, top_k : as for `rank_top_k`.

    Returns
    -------
    (users, top_k) int32, as for `rank_top_k`.

    Raises
    ------
    ValueError if shapes do not fit or a score is not a finite number.
    """
    if scores.ndim != 2 or scores.dtype != np.float32:
        raise ValueError(f"scores must be a (users, items) float32 table, got {scores.shape} {scores.dtype}")
    if not np.isfinite(scores).all():
        raise ValueError("scores hold values that are not finite numbers")
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    from fastpfrec_flwr.evaluation import scan

    for rows in _checked_masks(masked, len(scores), scores.shape[1]):
        scan.mask_rows(scores, rows.items, rows.starts, rows.ends)
    top_items = np.empty((len(scores), top_k), np.int32)
    scan.rank_rows(scores, top_items)
    return top_items


def rank_in_blocks(
    num_users: int,
    num_items: int,
    scores_of: Callable[[int, int], NDArray[np.float32]],
    masked: Sequence[Rows] = (),
    *,
    top_k: int = 20,
) -> NDArray[np.int32]:
    """`rank_scores` for many users, whose scores are made a block at a time.

    Parameters
    ----------
    scores_of : gives the scores of users [first, last), (last - first, num_items); they are used up.
    masked, top_k : as for `rank_top_k`, of all users.

    Returns
    -------
    (num_users, top_k) int32.
    """
    found = np.empty((num_users, top_k), np.int32)
    for first, last in _blocks(num_users, num_items, BLOCK_BYTES):
        part = [Rows(rows.items, rows.starts[first:last], rows.ends[first:last]) for rows in masked]
        scores = np.ascontiguousarray(scores_of(first, last), np.float32)
        found[first:last] = rank_scores(scores, part, top_k=top_k)
    return found


def _factors(
    user_vectors: NDArray[Any], item_table: NDArray[Any], item_bias: NDArray[Any] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Check the factors of the scores and take the bias in as one more column, against a one for every user."""
    users = np.ascontiguousarray(user_vectors, dtype=np.float32)
    table = np.ascontiguousarray(item_table, dtype=np.float32)
    if users.ndim != 2 or table.ndim != 2 or users.shape[1] != table.shape[1]:
        raise ValueError(f"user vectors {users.shape} and item table {table.shape} must be tables of the same width")
    if item_bias is not None:
        bias = np.asarray(item_bias, dtype=np.float32)
        if bias.shape != (len(table),):
            raise ValueError(f"item bias must hold one value for each of {len(table)} items, got shape {bias.shape}")
        users = np.hstack([users, np.ones((len(users), 1), np.float32)])
        table = np.hstack([table, bias[:, None]])
    for name, values in (("user vectors", users), ("item table or bias", table)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} hold values that are not finite numbers: the model has diverged, nothing to rank")
    return users, table


def _slacks(users: NDArray[np.float32], table: NDArray[np.float32], input_error: float) -> NDArray[np.float64]:
    """How far below the k-th best float32 score an item of the exact list can be, (users,).

    Three times what one score can be off: two for the scores compared, one for rounding the bar itself to float32. A
    score's error is taken as twice the proven figure (see the module's text) plus `input_error`, the relative error of
    the products where factors are rounded first, plus what flushing of subnormal products to zero may lose. It is zero
    where every product is zero, so that a user with an empty vector does not put the whole catalogue in question.
    """
    width = users.shape[1]
    sizes = _norms(users) * _norms(table).max(initial=0.0)
    if sizes.max(initial=0.0) >= 2.0**127:
        raise ValueError("user vectors and item table are too large: their scores would overflow float32")
    errors = sizes * ((width + 2) * 2.0**-23 + input_error) + (width + 2) * 2.0**-126
    return np.where(sizes > 0, 3.0 * errors, 0.0)


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Length of each row, (rows,), without overflow."""
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.sqrt(squares)


def _checked_masks(masked: RowsLike | Sequence[RowsLike], num_users: int, num_items: int) -> list[Rows]:
    several = masked if isinstance(masked, Sequence) else (masked,)
    return [checked_rows(rows, num_users, num_items, "masked items") for rows in several]


def _blocks(num_users: int, num_items: int, block_bytes: int) -> list[tuple[int, int]]:
    size = max(1, block_bytes // (4 * max(num_items, 1)))
    return [(first, min(first + size, num_users)) for first in range(0, num_users, size)]


def _rank_on_processor(
    users: NDArray[np.float32],
    table: NDArray[np.float32],
    slacks: NDArray[np.float64],
    masks: list[Rows],
    top_items: NDArray[np.int32],
    threads: int | None,
) -> None:
    """Fill `top_items` (users, top_k) with threads that take blocks of users in turn: one multiplies, another scans."""
    from fastpfrec_flwr.evaluation import scan

    blocks = _blocks(len(users), len(table), BLOCK_BYTES)
    if not blocks:
        return
    workers = max(1, min(threads or _cores(), len(blocks)))
    buffers: SimpleQueue[NDArray[np.float32]] = SimpleQueue()
    for _ in range(workers):
        buffers.put(np.empty((blocks[0][1], len(table)), np.float32))

    def rank_block(block: tuple[int, int]) -> None:
        first, last = block
        buffer = buffers.get()
        scores = buffer[: last - first]  # (block, items)
        np.matmul(users[first:last], table.T, out=scores)
        for rows in masks:
            scan.mask_rows(scores, rows.items, rows.starts[first:last], rows.ends[first:last])
        scan.rank_block(users[first:last], table, scores, slacks[first:last], top_items[first:last])
        buffers.put(buffer)

    _run(rank_block, blocks, workers)


def _run(task: Callable[[tuple[int, int]], None], blocks: Iterable[tuple[int, int]], workers: int) -> None:
    if workers == 1:
        for block in blocks:
            task(block)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(task, blocks):
            pass


def _cores() -> int:
    """Processor cores that this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rank_with_torch(
    users: NDArray[np.float32],
    table: NDArray[np.float32],
    slacks: NDArray[np.float64],
    masks: list[Rows],
    top_items: NDArray[np.int32],
    device: str,
) -> None:
    """Fill `top_items` (users, top_k): the device finds the items in question, the processor ranks them exactly."""
    import torch

    from fastpfrec_flwr.evaluation import scan

    if torch.get_float32_matmul_precision() == "medium":
        raise ValueError("float32 products are set to bfloat16: call torch.set_float32_matmul_precision('high') first")
    top_k = min(top_items.shape[1], len(table))
    if top_k == 0:
        top_items[:] = -1
        return
    target = torch.device(device)
    pairs = [entries_of(rows) for rows in masks]
    with torch.inference_mode(), torch.autocast(target.type, enabled=False):
        columns = torch.from_numpy(table).to(target).T  # (k, items)
        for first, last in _blocks(len(users), len(table), TORCH_BLOCK_BYTES):
            scores = torch.from_numpy(users[first:last]).to(target) @ columns  # (block, items)
            for owners, items in pairs:
                begin, end = np.searchsorted(owners, (first, last))
                cells = (owners[begin:end] - first) * len(table) + items[begin:end]
                scores.view(-1)[torch.from_numpy(cells).to(target)] = -torch.inf
            last_best = scores.topk(top_k, dim=1).values[:, -1]  # (block,)
            slack = torch.from_numpy(slacks[first:last]).to(target)
            bar = (last_best.double() - slack).float()  # (block,)
            wanted = (scores >= bar[:, None]) & (scores > -torch.inf)
            counts = wanted.sum(dim=1).cpu().numpy()  # (block,)
            candidates = wanted.nonzero()[:, 1].int().cpu().numpy()  # row by row, ids ascending
            indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            scan.rank_listed(users[first:last], table, candidates, indptr, top_items[first:last])
