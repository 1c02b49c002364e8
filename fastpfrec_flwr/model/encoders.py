"""The encoders as objects with one face: how item rows and a private vector become what is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model import fastgnn, lightgcn
from fastpfrec_flwr.model.linear import layer_weights
from fastpfrec_flwr.model.scoring import inference_user_vectors
from fastpfrec_flwr.model.spectral import solved_vectors

if TYPE_CHECKING:  # a device that trains with the compiled step starts without torch, in half the time and memory
    from torch import Tensor


class Stars(NamedTuple):
    """A cohort's stars as index tensors.

    Attributes
    ----------
    edge_owner : (edges,) user of each edge. own_edges : (targets,) edges to own items, the positives.
    target_owner : (targets,) their users. degrees : (users,) |N'(u)|.
    """

    edge_owner: Tensor
    own_edges: Tensor
    target_owner: Tensor
    degrees: Tensor


class Encoded(NamedTuple):
    """What is scored: `users` @ `targets` for positives, `users` @ (`scale` E_j) for negatives.

    Attributes
    ----------
    users : (targets, k) user vector for each positive. targets : (targets, k) item vector of each positive.
    scale : factor of a row outside the star.
    """

    users: Tensor
    targets: Tensor
    scale: float


class Encoder(Protocol):
    """One way to encode users and items."""

    def item_weights(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """(items,) weights of the rows in their neighbours' sums, from the public table; no gradient goes through them."""

    def refreshes(self, server_round: int) -> bool:
        """Whether item rows in the loss are convolved in this round."""

    def encode(self, private: Tensor, edge_rows: Tensor, weights: Tensor, stars: Stars, refresh: bool) -> Encoded:
        """Vectors for training.

        Parameters
        ----------
        private : (users, k) p_u. edge_rows : (edges, k). weights : (edges,) of `item_weights`.
        refresh : whether this round is one of `refreshes`.
        """

    def user_vectors(
        self, table: NDArray[np.float32], history: Rows, private: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """(users, k) vectors for ranking, to be multiplied with the rows of `table`; `history` are the users' true items."""


@dataclass(frozen=True)
class FastGNN:
    """The paper's encoder, see `model.fastgnn`."""

    user_weight: float
    neighbour_weight: float
    leave_one_out: bool
    norm_exponent: float
    refresh_interval: int

    def item_weights(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `Encoder`."""
        return fastgnn.norm_weights(table, self.norm_exponent)

    def refreshes(self, server_round: int) -> bool:
        """Every `refresh_interval` rounds; 0 is never."""
        return self.refresh_interval > 0 and server_round % self.refresh_interval == 0

    def encode(self, private: Tensor, edge_rows: Tensor, weights: Tensor, stars: Stars, refresh: bool) -> Encoded:
        """See `Encoder`."""
        weighted = weights[:, None] * edge_rows
        sums = fastgnn.neighbourhood_sums(weighted, stars.edge_owner, len(private))  # (users, k)
        users = fastgnn.target_user_vectors(
            private, sums, stars.degrees, weighted[stars.own_edges], stars.target_owner,
            self.user_weight, self.neighbour_weight, self.leave_one_out,
        )  # fmt: skip
        targets = edge_rows[stars.own_edges]  # (targets, k)
        if refresh:
            targets = fastgnn.refresh_rows(
                targets, private, stars.target_owner, stars.degrees, self.user_weight, self.neighbour_weight
            )
        return Encoded(users, targets, 1.0)

    def user_vectors(
        self, table: NDArray[np.float32], history: Rows, private: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See `Encoder`."""
        return inference_user_vectors(
            table, self.item_weights(table), history.items, history.starts, history.ends, private,
            self.user_weight, self.neighbour_weight,
        )  # fmt: skip


@dataclass(frozen=True)
class LightGCN:
    """The ablation's encoder, see `model.lightgcn`: everything convolved in every round, no weights to choose."""

    num_layers: int

    def item_weights(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """All alike."""
        return np.ones(len(table), np.float32)

    def refreshes(self, server_round: int) -> bool:
        """In every round."""
        return True

    def encode(self, private: Tensor, edge_rows: Tensor, weights: Tensor, stars: Stars, refresh: bool) -> Encoded:
        """See `Encoder`; `weights` and `refresh` say nothing here."""
        sums = fastgnn.neighbourhood_sums(edge_rows, stars.edge_owner, len(private))
        users = lightgcn.star_user_vectors(private, sums, stars.degrees, self.num_layers)[stars.target_owner]
        targets = lightgcn.star_item_vectors(
            edge_rows[stars.own_edges], stars.target_owner, private, sums, stars.degrees, self.num_layers
        )
        return Encoded(users, targets, 1.0 / (self.num_layers + 1))

    def user_vectors(
        self, table: NDArray[np.float32], history: Rows, private: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See `Encoder`. The factor of the candidates, all outside the star, is put on the user's side: scores are LightGCN's."""
        even, odd, _ = layer_weights(self.num_layers)
        scale = 1.0 / (self.num_layers + 1)
        return inference_user_vectors(
            table, self.item_weights(table), history.items, history.starts, history.ends, private,
            even * scale, odd * scale,
        )  # fmt: skip


@dataclass(frozen=True)
class Spectral:
    """Codes and least squares, see `model.spectral`; there is no loss to encode for."""

    background_weight: float
    user_l2: float

    def item_weights(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """All alike."""
        return np.ones(len(table), np.float32)

    def refreshes(self, server_round: int) -> bool:
        """Never."""
        return False

    def encode(self, private: Tensor, edge_rows: Tensor, weights: Tensor, stars: Stars, refresh: bool) -> Encoded:
        """Not used: what a client sends is no gradient.

        Raises
        ------
        TypeError always.
        """
        raise TypeError("the spectral encoder has no loss: client.spectral_step makes its updates")

    def user_vectors(
        self, table: NDArray[np.float32], history: Rows, private: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See `Encoder`; the private vectors say nothing here."""
        return solved_vectors(table, history.items, history.starts, history.ends, self.background_weight, self.user_l2)


def build_encoder(config: RunConfig) -> Encoder:
    """The encoder that the configuration asks for."""
    if config.encoder == "lightgcn":
        return LightGCN(config.num_layers)
    if config.encoder == "spectral":
        return Spectral(config.background_weight, config.user_l2)
    return FastGNN(
        config.user_weight,
        config.neighbour_weight,
        config.leave_one_out,
        config.norm_exponent,
        config.item_refresh_interval,
    )
