"""The paper's central models, which see all interactions in one place: matrix factorisation, LightGCN, SGL and XSimGCL.

- MF with BPR (Rendle et al., UAI 2009): u and i are rows of one table.
- LightGCN (He et al., SIGIR 2020): final rows are the mean of layers 0 to L of D^(-1/2) A D^(-1/2) E.
- SGL (Wu et al., SIGIR 2021): plus InfoNCE between two graphs with edges dropped at random, anew in every epoch.
- XSimGCL (Yu et al., TKDE 2023): plus InfoNCE between the final rows and those of one layer of the same noisy propagation.

All with Adam on BPR of (user, own item, item that the user has not), L2 on the rows of the batch, and sparse products: a layer
costs its edges. The graph is symmetric, so a product's gradient is the same product. The number of epochs is chosen on validation;
for the test, the model learns anew from train and validation for as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fastpfrec_flwr.baselines.central import Phase, SplitLike, history, history_matrix
from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.randomness import derive_generator

Kind = Literal["mf", "lightgcn", "sgl", "xsimgcl"]


@dataclass(frozen=True)
class GraphSettings:
    """How a central model is trained; the same for all but what belongs to one.

    Attributes
    ----------
    epochs : at most. every : epochs between looks at validation NDCG@20. patience : looks without a better one.
    batch : pairs per step. l2 : of a pair's rows. drop : share of edges left out in each of SGL's graphs.
    contrast, temperature : weight and temperature of InfoNCE. noise : length of XSimGCL's noise per layer.
    contrast_layer : the layer that it holds against the final rows.
    """

    embedding_dim: int = 64
    layers: int = 3
    epochs: int = 400
    every: int = 10
    patience: int = 5
    batch: int = 2048
    learning_rate: float = 1e-3
    l2: float = 1e-4
    drop: float = 0.1
    contrast: float = 0.2
    temperature: float = 0.2
    noise: float = 0.2
    contrast_layer: int = 1
    seed: int = 1
    device: str = "cpu"


@dataclass(frozen=True)
class Trained:
    """A model after some epochs: users (users, k), items (items, k) as they are scored, and the epochs that it took."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    epochs: int


def default_settings(kind: Kind, seed: int = 1, device: str = "cpu") -> GraphSettings:
    """What each model is run with; layers and weights as in the papers' code (SELFRec), 3 layers where the literature has them."""
    base = GraphSettings(seed=seed, device=device)
    changes: dict[Kind, dict[str, Any]] = {
        "mf": {"layers": 0},
        "lightgcn": {},
        "sgl": {"contrast": 0.1},
        "xsimgcl": {"contrast": 0.2},
    }
    return replace(base, **changes[kind])


def graph_top_k(
    split: SplitLike, kind: Kind, settings: GraphSettings, *, top_k: int = 20
) -> tuple[dict[Phase, NDArray[np.int32]], int]:
    """Lists for validation and test, and the number of epochs that validation chose.

    Returns
    -------
    part -> (users, top_k) int32, as from `evaluation.ranking.rank_top_k`; epochs.
    """
    truth = Rows.of_csr(split.validation)
    best: dict[str, Any] = {"value": -1.0, "epochs": 0, "lists": None, "stale": 0}

    def look(trained: Trained) -> bool:
        lists = rank_top_k(trained.users, trained.items, history(split, "validation"), top_k=top_k)
        value = metrics(metric_sums(lists, truth))["ndcg@20"]
        if value > best["value"]:
            best.update(value=value, epochs=trained.epochs, lists=lists, stale=0)
        else:
            best["stale"] += 1
        return bool(best["stale"] < settings.patience)

    train(history_matrix(split, "validation"), kind, settings, look)
    fixed = replace(settings, epochs=best["epochs"], every=best["epochs"])
    final = train(history_matrix(split, "test"), kind, fixed)
    test = rank_top_k(final.users, final.items, history(split, "test"), top_k=top_k)
    return {"validation": best["lists"], "test": test}, best["epochs"]


def train(
    pairs: Any, kind: Kind, settings: GraphSettings, look: Callable[[Trained], bool] = lambda trained: True
) -> Trained:
    """Train on a (users, items) table of ones.

    Parameters
    ----------
    look : called every `settings.every` epochs; training goes on while it says so.
    """
    generator = derive_generator(settings.seed, "central", kind)
    num_users, num_items = pairs.shape
    coo = pairs.tocoo()
    users, items = coo.coords[0].astype(np.int64), coo.coords[1].astype(np.int64)
    owned = np.sort(users * num_items + items)
    shape = (num_users + num_items, settings.embedding_dim)
    # Xavier, as in the papers' code.
    bound = np.sqrt(6.0 / sum(shape))
    table = torch.tensor(generator.uniform(-bound, bound, shape), dtype=torch.float32, device=settings.device)
    table.requires_grad_()
    optimiser = torch.optim.Adam([table], lr=settings.learning_rate)
    graph = normalised_graph(users, items, num_users, num_items, settings.device)
    noise = torch.Generator(settings.device).manual_seed(int(generator.integers(2**62)))
    epoch = 0
    for epoch in range(1, settings.epochs + 1):
        views = (
            [_thinned(users, items, num_users, num_items, settings, generator) for _ in range(2)]
            if kind == "sgl"
            else []
        )
        order = generator.permutation(len(users))
        for first in range(0, len(order), settings.batch):
            chosen = order[first : first + settings.batch]
            negatives = draw_negatives(generator, users[chosen], owned, num_items)
            batch = tuple(
                torch.from_numpy(each).to(settings.device)
                for each in (users[chosen], num_users + items[chosen], num_users + negatives)
            )
            optimiser.zero_grad(set_to_none=True)
            _loss(table, graph, views, batch, kind, settings, noise).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        last = epoch == settings.epochs
        if epoch % settings.every == 0 or last:
            go_on = look(_trained(table, graph, kind, settings, num_users, epoch))
            if not go_on:
                break
    return _trained(table, graph, kind, settings, num_users, epoch)


class _Product(torch.autograd.Function):
    """A symmetric sparse matrix times a dense one."""

    @staticmethod
    def forward(ctx: Any, graph: Tensor, dense: Tensor) -> Tensor:
        ctx.graph = graph
        return graph @ dense

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.graph @ gradients[0]


def normalised_graph(
    users: NDArray[np.int64], items: NDArray[np.int64], num_users: int, num_items: int, device: str
) -> Tensor:
    """D^(-1/2) A D^(-1/2) of the graph of users and items, sparse (nodes, nodes); users come first."""
    nodes = num_users + num_items
    rows, columns = np.concatenate([users, num_users + items]), np.concatenate([num_users + items, users])
    roots = 1.0 / np.sqrt(np.maximum(np.bincount(rows, minlength=nodes), 1))
    matrix: Any = sparse.csr_array((roots[rows] * roots[columns], (rows, columns)), shape=(nodes, nodes))
    matrix.sort_indices()
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=(nodes, nodes),
        device=device,
    )


def _thinned(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    num_users: int,
    num_items: int,
    settings: GraphSettings,
    generator: np.random.Generator,
) -> Tensor:
    kept = generator.random(len(users)) >= settings.drop
    return normalised_graph(users[kept], items[kept], num_users, num_items, settings.device)


def draw_negatives(
    generator: np.random.Generator, users: NDArray[np.int64], owned: NDArray[np.int64], num_items: int
) -> NDArray[np.int64]:
    """One item that each user has not, uniform, by rejection.

    Parameters
    ----------
    owned : ascending user * num_items + item of all pairs that are known.
    """
    drawn = generator.integers(num_items, size=len(users))
    again = np.arange(len(users))
    for _ in range(100):  # a user with the whole catalogue keeps its last draw
        keys = users[again] * num_items + drawn[again]
        place = np.minimum(np.searchsorted(owned, keys), len(owned) - 1)
        again = again[owned[place] == keys]
        if not len(again):
            break
        drawn[again] = generator.integers(num_items, size=len(again))
    return drawn


def _layers(
    table: Tensor, graph: Tensor, layers: int, noise: float = 0.0, source: torch.Generator | None = None
) -> list[Tensor]:
    """Layers 1 to L, with XSimGCL's noise on each where asked for."""
    found, current = [], table
    for _ in range(layers):
        current = _Product.apply(graph, current)  # type: ignore[no-untyped-call]
        if noise > 0:
            drawn = torch.rand(current.shape, generator=source, device=current.device)
            drawn = torch.nn.functional.normalize(drawn, dim=1)
            current = current + torch.sign(current.detach()) * drawn * noise
        found.append(current)
    return found


def _mean(table: Tensor, layers: list[Tensor], kind: Kind) -> Tensor:
    """Final rows; XSimGCL leaves layer 0 out of the mean."""
    return torch.stack(layers if kind == "xsimgcl" else [table, *layers]).mean(dim=0)


def _loss(
    table: Tensor,
    graph: Tensor,
    views: list[Tensor],
    batch: tuple[Tensor, ...],
    kind: Kind,
    settings: GraphSettings,
    source: torch.Generator,
) -> Tensor:
    users, items, negatives = batch
    noisy = settings.noise if kind == "xsimgcl" else 0.0
    layers = _layers(table, graph, settings.layers, noisy, source)
    final = _mean(table, layers, kind)
    difference = (final[users] * (final[items] - final[negatives])).sum(dim=1)
    loss = -torch.nn.functional.logsigmoid(difference).mean()
    loss = loss + settings.l2 / 2 * sum((table[rows] ** 2).sum() for rows in batch) / len(users)
    if kind == "xsimgcl":
        one, other = final, layers[settings.contrast_layer - 1]
    elif kind == "sgl":
        one, other = (_mean(table, _layers(table, view, settings.layers), kind) for view in views)
    else:
        return loss
    for rows in (torch.unique(users), torch.unique(items)):
        loss = loss + settings.contrast * info_nce(one[rows], other[rows], settings.temperature)
    return loss


def info_nce(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Mean over rows of -log softmax of a row's likeness (cosine) to its own other view among all of them."""
    one, other = torch.nn.functional.normalize(one, dim=1), torch.nn.functional.normalize(other, dim=1)
    logits = one @ other.T / temperature
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(one), device=one.device))


@torch.no_grad()
def _trained(table: Tensor, graph: Tensor, kind: Kind, settings: GraphSettings, num_users: int, epoch: int) -> Trained:
    layers = _layers(table, graph, settings.layers)
    final = _mean(table, layers, kind).cpu().numpy()
    return Trained(np.ascontiguousarray(final[:num_users]), np.ascontiguousarray(final[num_users:]), epoch)
