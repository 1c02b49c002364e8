"""The graph of users and items, and what a central model does with it: layers, BPR and noise, each with its gradient.

On the processor this is Numba's (`graph_kernels`), elsewhere torch's; both give the same up to rounding, which tests hold. The
graph is symmetric, so a product's gradient is the same product, and the mean of layers, (E + A (E + A (E + ...))) / (L + 1), is its
own gradient too: it needs no layer to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastpfrec_flwr.baselines import graph_kernels
from fastpfrec_flwr.parallel import even_pieces, in_parallel

_COLUMNS = 16  # that one task adds at least: a cache line


@dataclass(frozen=True)
class Graph:
    """D^(-1/2) A D^(-1/2) of users and items, symmetric (nodes, nodes); users come first.

    Attributes
    ----------
    users, items : (pairs,) int32 the two nodes of each pair, by user, then by item.
    pointer, columns, edges : (nodes + 1,) int64, (entries,) int32, (entries,) int64 the matrix as CSR and the pair of each entry.
    values : (entries,) float32.
    matrix : the same for torch on a device other than the processor, or None.
    """

    num_users: int
    num_items: int
    users: NDArray[np.int32]
    items: NDArray[np.int32]
    pointer: NDArray[np.int64]
    columns: NDArray[np.int32]
    edges: NDArray[np.int64]
    values: NDArray[np.float32]
    matrix: Tensor | None

    @classmethod
    def of(cls, pairs: Any, device: str) -> Graph:
        """From a (users, items) sparse table of ones."""
        table = pairs.tocsr()
        table.sort_indices()
        num_users, num_items = table.shape
        users = np.repeat(np.arange(num_users, dtype=np.int32), np.diff(table.indptr))
        items = (table.indices + num_users).astype(np.int32)
        by_item = np.argsort(items, kind="stable")
        owners = np.bincount(items - num_users, minlength=num_items)
        graph = cls(
            num_users,
            num_items,
            users,
            items,
            np.concatenate([table.indptr.astype(np.int64), len(users) + np.cumsum(owners)]),
            np.concatenate([items, users[by_item]]),
            np.concatenate([np.arange(len(users)), by_item]),
            np.zeros(2 * len(users), np.float32),
            None,
        )
        return graph.thinned(np.ones(len(users), bool), device)

    @property
    def num_nodes(self) -> int:
        """Users and items."""
        return self.num_users + self.num_items

    def thinned(self, kept: NDArray[np.bool_], device: str) -> Graph:
        """With some pairs alone, (pairs,) bool. The others stay as zeros: to cut them out costs more than to multiply them."""
        weights = kept.astype(np.float32)
        degrees = np.bincount(self.users, weights, self.num_nodes) + np.bincount(self.items, weights, self.num_nodes)
        roots = 1.0 / np.sqrt(np.maximum(degrees, 1))
        values = (weights * roots[self.users] * roots[self.items]).astype(np.float32)[self.edges]
        graph = replace(self, values=values, matrix=None)
        return graph if device == "cpu" else replace(graph, matrix=graph.as_torch(device))

    def as_torch(self, device: str) -> Tensor:
        """As a sparse tensor."""
        pointer, columns, values = map(torch.from_numpy, (self.pointer, self.columns.astype(np.int64), self.values))
        return torch.sparse_csr_tensor(pointer, columns, values, (self.num_nodes, self.num_nodes), device=device)


def product(graph: Graph, dense: Tensor, start: Tensor | None = None) -> Tensor:
    """A dense, plus `start`; (nodes, k) float32, without a gradient."""
    if graph.matrix is not None:
        found = graph.matrix @ dense
        return found if start is None else found.add_(start)
    rows = _rows(dense)
    out = np.empty_like(rows) if start is None else _rows(start).copy()
    threads = torch.get_num_threads()
    # A row costs about as much as four entries.
    pieces = even_pieces(np.diff(graph.pointer) + 4, threads)

    def run(piece: tuple[int, int]) -> None:
        graph_kernels.multiply_rows(
            graph.pointer, graph.columns, graph.values, rows, start is not None, piece[0], piece[1], out
        )

    in_parallel(run, pieces, threads)
    return torch.from_numpy(out)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, graph: Graph, layers: int) -> Tensor:
        ctx.graph, ctx.layers = graph, layers
        return _mean(graph, table.detach(), layers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _mean(ctx.graph, gradients[0].contiguous(), ctx.layers), None, None


def _mean(graph: Graph, table: Tensor, layers: int) -> Tensor:
    found = table.clone() if layers == 0 else table
    for _ in range(layers):
        found = product(graph, found, table)
    return found.div_(layers + 1)


def mean_of_layers(table: Tensor, graph: Graph, layers: int) -> Tensor:
    """LightGCN's final rows: the mean of layers 0 to L, (nodes, k)."""
    found: Tensor = _Mean.apply(table, graph, layers)  # type: ignore[no-untyped-call]
    return found


class _NoisyLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, graph: Graph, layers: int, kept: int, noise: float, keys: list[int]
    ) -> tuple[Tensor, Tensor]:
        ctx.graph, ctx.layers, ctx.kept = graph, layers, kept
        current, total, middle = table.detach(), torch.zeros_like(table), table
        for layer in range(1, layers + 1):
            current = product(graph, current)
            if noise > 0:
                add_noise(current, noise, keys[layer - 1])
            total += current
            if layer == kept:
                middle = current
        return total.div_(layers), middle

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        final = gradients[0] / ctx.layers
        found = torch.zeros_like(final)
        for layer in range(ctx.layers, 0, -1):
            above = found.add_(final)
            if layer == ctx.kept:
                above.add_(gradients[1])
            found = product(ctx.graph, above)
        return found, None, None, None, None, None


def noisy_layers(
    table: Tensor, graph: Graph, layers: int, kept: int, noise: float, keys: list[int]
) -> tuple[Tensor, Tensor]:
    """XSimGCL's final rows, the mean of layers 1 to L with noise on each, and the rows of layer `kept`; (nodes, k) both.

    Parameters
    ----------
    keys : a stream key for each layer's noise. The noise counts as a constant: it has no gradient.
    """
    final, middle = _NoisyLayers.apply(table, graph, layers, kept, noise, keys)  # type: ignore[no-untyped-call]
    return final, middle


def add_noise(rows: Tensor, length: float, key: int) -> None:
    """Add to each row a random direction in the row's own orthant, of this length; rows (n, k) change in place."""
    if rows.device.type != "cpu":
        source = torch.Generator(rows.device).manual_seed(key % 2**63)
        drawn = torch.nn.functional.normalize(torch.rand(rows.shape, generator=source, device=rows.device), dim=1)
        rows += torch.sign(rows) * drawn * length
        return
    values = rows.numpy()
    threads = torch.get_num_threads()
    blocks = range(0, len(values), graph_kernels.NOISE_ROWS)

    def run(first: int) -> None:
        graph_kernels.add_noise(
            np.uint64(key), values, length, first, min(first + graph_kernels.NOISE_ROWS, len(values))
        )

    in_parallel(run, blocks, threads)


class _Bpr(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, users: Tensor, items: Tensor, negatives: Tensor) -> Tensor:
        table, triples = _rows(rows), tuple(each.numpy() for each in (users, items, negatives))
        slopes, gradient = np.empty(len(users), np.float32), np.zeros_like(table)
        threads = torch.get_num_threads()
        pieces = even_pieces(np.ones(len(users)), threads)
        sums = dict.fromkeys(pieces, 0.0)

        def slope(piece: tuple[int, int]) -> None:
            sums[piece] = graph_kernels.bpr_slopes(table, *triples, *piece, slopes)

        def add(first: int) -> None:
            last = min(first + step, table.shape[1])
            graph_kernels.add_bpr_gradient(table, *triples, slopes, 1.0 / len(users), first, last, gradient)

        in_parallel(slope, pieces, threads)
        # Triples meet in rows, so tasks share out columns: each adds in the order of the triples, however many tasks there are.
        step = _COLUMNS * max(1, -(-table.shape[1] // (_COLUMNS * threads)))
        in_parallel(add, range(0, table.shape[1], step), threads)
        ctx.gradient = torch.from_numpy(gradient)
        return rows.new_tensor(sum(sums.values()) / len(users))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.gradient.mul_(gradients[0]), None, None, None


def bpr(rows: Tensor, users: Tensor, items: Tensor, negatives: Tensor) -> Tensor:
    """Mean of -ln sigma(u . (i - j)) over triples of rows.

    Parameters
    ----------
    rows : (nodes, k) float32. users, items, negatives : (triples,) int32; fastest if the same user's stand together.
    """
    if rows.device.type == "cpu":
        found: Tensor = _Bpr.apply(rows, users, items, negatives)  # type: ignore[no-untyped-call]
        return found
    return torch_bpr(rows, users, items, negatives)


def torch_bpr(rows: Tensor, users: Tensor, items: Tensor, negatives: Tensor) -> Tensor:
    """`bpr` by torch alone, on any device."""
    u, i, j = (rows.index_select(0, each) for each in (users, items, negatives))
    return -torch.nn.functional.logsigmoid((u * (i - j)).sum(dim=1)).mean()


def draw_negatives(graph: Graph, users: NDArray[np.int32], key: int) -> NDArray[np.int32]:
    """The node of one item that each user has not, uniform, (draws,); a user with the whole catalogue gets any."""
    drawn = np.empty(len(users), np.int32)
    threads = torch.get_num_threads()

    def run(piece: tuple[int, int]) -> None:
        graph_kernels.draw_missing(
            np.uint64(key), users, graph.pointer, graph.columns, graph.num_users, graph.num_items, *piece, drawn
        )

    in_parallel(run, even_pieces(np.ones(len(users)), threads), threads)
    return drawn


def _rows(values: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(values.detach().numpy())
