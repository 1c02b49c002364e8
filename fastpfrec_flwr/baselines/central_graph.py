"""The paper's central models, which see all interactions in one place: matrix factorisation, LightGCN, SGL and XSimGCL.

- MF with BPR (Rendle et al., UAI 2009): u and i are rows of one table.
- LightGCN (He et al., SIGIR 2020): final rows are the mean of layers 0 to L of D^(-1/2) A D^(-1/2) E.
- SGL (Wu et al., SIGIR 2021): plus InfoNCE between two graphs with edges dropped at random, anew in every step.
- XSimGCL (Yu et al., TKDE 2023): plus InfoNCE between the final rows and those of one layer of the same noisy propagation.

All with Adam on BPR of (user, own item, item that the user has not) and L2 on the rows of the batch. A step propagates the whole
graph, whatever its batch: so batches are large (a share of all pairs, some with several negatives a pair, which take the noise out
of a step at a third of its price) and steps long, which decay to nothing along a cosine. The
number of epochs is chosen on validation; for the test, the model learns anew from train and validation for as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastpfrec_flwr.baselines.central import Phase, SplitLike, history, history_matrix
from fastpfrec_flwr.baselines.central_settings import GraphSettings, Kind
from fastpfrec_flwr.baselines.propagation import Graph, bpr, draw_negatives, mean_of_layers, noisy_layers
from fastpfrec_flwr.baselines.row_adam import RowAdam
from fastpfrec_flwr.evaluation.metrics import metric_sums, metrics
from fastpfrec_flwr.evaluation.ranking import rank_top_k
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.randomness import derive_generator, stream_key

# Adam divides by the gradients' size plus this. A row's gradient in a mean over a large batch can be as small as the usual 1e-8.
_EPSILON = 1e-12
_MEMORY = 0.9  # of Adam's first moment


@dataclass(frozen=True)
class Trained:
    """A model after some epochs: users (users, k), items (items, k) as they are scored, and the epochs that it took."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    epochs: int


@dataclass
class _Best:
    """The best look at validation so far."""

    value: float = -1.0
    epochs: int = 0
    lists: NDArray[np.int32] | None = None
    stale: int = 0


def best_on_validation(
    split: SplitLike, kind: Kind, settings: GraphSettings, *, top_k: int = 20
) -> tuple[float, int, NDArray[np.int32]]:
    """Train on the train part until validation NDCG@20 has not risen for `settings.patience` looks.

    Returns
    -------
    The best validation NDCG@20, the epochs that it took, and its lists (users, top_k) int32.
    """
    truth, best = Rows.of_csr(split.validation), _Best()

    def look(trained: Trained) -> bool:
        lists = _lists(trained, split, "validation", top_k)
        value = metrics(metric_sums(lists, truth))["ndcg@20"]
        if value > best.value:
            best.value, best.epochs, best.lists, best.stale = value, trained.epochs, lists, 0
        else:
            best.stale += 1
        return best.stale < settings.patience

    trained = train(history_matrix(split, "validation"), kind, settings, look)
    lists = best.lists if best.lists is not None else _lists(trained, split, "validation", top_k)
    return best.value, best.epochs or trained.epochs, lists


def graph_top_k(
    split: SplitLike, kind: Kind, settings: GraphSettings, *, top_k: int = 20
) -> tuple[dict[Phase, NDArray[np.int32]], int]:
    """Lists for validation and test, and the number of epochs that validation chose.

    Returns
    -------
    part -> (users, top_k) int32, as from `evaluation.ranking.rank_top_k`; epochs.
    """
    _, epochs, lists = best_on_validation(split, kind, settings, top_k=top_k)
    # The same steps up to the chosen epoch: the cosine's end stays where it was.
    chosen = replace(settings, every=epochs)
    final = train(history_matrix(split, "test"), kind, chosen, lambda trained: False)
    return {"validation": lists, "test": _lists(final, split, "test", top_k)}, epochs


def _lists(trained: Trained, split: SplitLike, phase: Phase, top_k: int) -> NDArray[np.int32]:
    masks = history(split, phase)
    return rank_top_k(trained.users, trained.items, masks, top_k=top_k, threads=torch.get_num_threads())


def train(
    pairs: Any, kind: Kind, settings: GraphSettings, look: Callable[[Trained], bool] = lambda trained: True
) -> Trained:
    """Train on a (users, items) table of ones.

    Parameters
    ----------
    look : called every `settings.every` epochs and after the last; training goes on while it says so.
    """
    training = Training(pairs, kind, settings)
    for epoch in range(1, settings.epochs + 1):
        training.run_epoch()
        if (epoch % settings.every == 0 or epoch == settings.epochs) and not look(training.trained()):
            break
    return training.trained()


class Training:
    """A model in training; see `train` for the arguments."""

    def __init__(self, pairs: Any, kind: Kind, settings: GraphSettings) -> None:
        self.kind, self.settings = kind, settings
        self.graph = Graph.of(pairs, settings.device)
        self.epochs = self.steps = 0
        self._generator = derive_generator(settings.seed, "central", kind)
        shape = (self.graph.num_nodes, settings.embedding_dim)
        # Xavier, as in the papers' code.
        bound = np.sqrt(6.0 / sum(shape))
        drawn = self._generator.uniform(-bound, bound, shape)
        self.table = torch.tensor(drawn, dtype=torch.float32, device=settings.device, requires_grad=True)
        betas, size = (_MEMORY, settings.moment_memory), settings.learning_rate
        self._optimiser: torch.optim.Optimizer
        if settings.moment == "row":
            self._optimiser = RowAdam([self.table], size, betas, _EPSILON)
        else:
            self._optimiser = torch.optim.Adam([self.table], size, betas, _EPSILON, fused=True)

    def run_epoch(self) -> None:
        """Every pair once or as many by user, in `settings.batches` steps."""
        pairs = len(self.graph.users)
        part = self._generator.permutation(np.arange(pairs) % self.settings.batches)
        for each in range(self.settings.batches):
            # In the order of the graph, so that a user's pairs stand together.
            chosen = np.flatnonzero(part == each)
            if self.settings.sampling == "users":
                chosen = self._by_user(len(chosen))
            if len(chosen):
                self._step(chosen)
        self.epochs += 1

    def _by_user(self, count: int) -> NDArray[np.int64]:
        """`count` pairs, in order: each of a user who has some, uniform, and of those pairs one, uniform."""
        # Rows of users come first, so their entries are the pairs.
        first = self.graph.pointer[: self.graph.num_users + 1]
        sizes = np.diff(first)
        users = self._generator.choice(np.flatnonzero(sizes), count)
        return np.sort(first[users] + (self._generator.random(count) * sizes[users]).astype(np.int64))

    def trained(self) -> Trained:
        """The model as it is now, without noise."""
        with torch.no_grad():
            final = self._final().cpu().numpy()
        users, items = final[: self.graph.num_users], final[self.graph.num_users :]
        return Trained(np.ascontiguousarray(users), np.ascontiguousarray(items), self.epochs)

    def _step(self, chosen: NDArray[np.int64]) -> None:
        settings, graph = self.settings, self.graph
        done = self.steps / (settings.epochs * settings.batches)
        self._optimiser.param_groups[0]["lr"] = settings.learning_rate * (1 + np.cos(np.pi * done)) / 2
        chosen = np.repeat(chosen, settings.negatives)
        users, items = graph.users[chosen], graph.items[chosen]
        triples = (users, items, draw_negatives(graph, users, self._key("negatives")))
        self._optimiser.zero_grad(set_to_none=True)
        self._loss(triples).backward()  # type: ignore[no-untyped-call]
        # L2 of the rows of each triple: of a row as often as it stands there.
        counts = sum(np.bincount(each, minlength=graph.num_nodes) for each in triples)
        decay = torch.from_numpy(np.asarray(counts * (settings.l2 / len(chosen)), np.float32)).to(settings.device)
        assert self.table.grad is not None
        self.table.grad.addcmul_(decay[:, None], self.table.detach())
        self._optimiser.step()
        self.steps += 1

    def _loss(self, triples: tuple[NDArray[np.int32], ...]) -> Tensor:
        settings = self.settings
        users, items, negatives = (torch.from_numpy(each).to(settings.device) for each in triples)
        if self.kind == "xsimgcl":
            keys = [self._key(f"noise {layer}") for layer in range(settings.layers)]
            one, other = self._noisy(settings.noise, keys)
            return bpr(one, users, items, negatives) + self._contrast(one, other, triples)
        loss = bpr(self._final(), users, items, negatives)
        if self.kind == "sgl":
            one, other = (mean_of_layers(self.table, self._thinned(), settings.layers) for _ in range(2))
            loss = loss + self._contrast(one, other, triples)
        return loss

    def _final(self) -> Tensor:
        if self.kind == "xsimgcl":
            return self._noisy(0.0, [])[0]
        return mean_of_layers(self.table, self.graph, self.settings.layers)

    def _noisy(self, noise: float, keys: list[int]) -> tuple[Tensor, Tensor]:
        return noisy_layers(self.table, self.graph, self.settings.layers, self.settings.contrast_layer, noise, keys)

    def _thinned(self) -> Graph:
        kept = self._generator.random(len(self.graph.users)) >= self.settings.drop
        return self.graph.thinned(kept, self.settings.device)

    def _contrast(self, one: Tensor, other: Tensor, triples: tuple[NDArray[np.int32], ...]) -> Tensor:
        """Weighted InfoNCE of the users and of the items of some of a batch's pairs."""
        settings = self.settings
        some = self._generator.choice(len(triples[0]), min(settings.contrast_pairs, len(triples[0])), replace=False)
        users, items = (torch.from_numpy(np.unique(each[some])).to(settings.device) for each in triples[:2])
        rows = torch.cat([users, items])  # one gather: its gradient is a table of all nodes
        one, other = one.index_select(0, rows), other.index_select(0, rows)
        return settings.contrast * sum(
            (
                info_nce(one[part], other[part], settings.temperature)
                for part in (slice(0, len(users)), slice(len(users), None))
            ),
            torch.zeros((), device=settings.device),
        )

    def _key(self, purpose: str) -> int:
        return stream_key(self.settings.seed, "central", self.kind, purpose, self.steps)


def info_nce(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Mean over rows of -log softmax of a row's likeness (cosine) to its own other view among all of them."""
    one, other = torch.nn.functional.normalize(one, dim=1), torch.nn.functional.normalize(other, dim=1)
    logits = one @ other.T / temperature
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(one), device=one.device))
