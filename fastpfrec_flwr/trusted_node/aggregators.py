"""What a trusted node makes of the uploads that its check left: the paper's mean, or a robust rule in its place.

Every aggregator ends in a `NodeMean`, which is all that the server knows of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.trusted_node.aggregation import NodeMean, node_mean
from fastpfrec_flwr.trusted_node.points import UploadPoints
from fastpfrec_flwr.trusted_node.robust import LocationRule, WeightRule, inner_products, located, weighted
from fastpfrec_flwr.trusted_node.uploads import Uploads


class Aggregator(Protocol):
    """Turns the uploads of a node's clients into one change of the table."""

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """Aggregate some clients of the round (at least one).

        Parameters
        ----------
        parts : all uploads of the round, as they arrived. members : of each part, the clients that belong to this node.
        num_items : rows of the table. cover_key : stream of the round's cover noise, for rules that must see it.

        Raises
        ------
        ValueError if there is no client, or if some parts have cover noise and others not.
        """


@dataclass(frozen=True)
class Mean:
    """The paper's unweighted mean. Its cover noise stays to be drawn, in one go for all nodes."""

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`."""
        return node_mean(parts, members, num_items)


@dataclass(frozen=True)
class PerCoordinate:
    """A location rule on every coordinate of the whole tables, rows that a client did not touch included.

    Without noise a row that fewer than half of the clients touch has median zero, and a trimmed mean cuts the few that say
    something: that is what these rules do to sparse changes, not a fault. Under dense noise, which lies on all clients alike, the
    few still shift the middle. `PerRow` is the remedy where uploads show their rows.
    """

    rule: LocationRule

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`."""
        points = UploadPoints.gather(parts, members, num_items, cover_key)
        rows, values = located(points, self.rule)
        # Of the noise the server expects the mean's, which is at least the location's (a median of Laplace draws has half).
        # Where it is zero exactly, the clients that sent nothing have outvoted the others and their noise.
        touched = points.touched_by[rows] if points.uploads.cover_scale == 0 else np.full(len(rows), points.count)
        touched = np.where(values.any(axis=1), touched, 0)
        return NodeMean(points.count, rows, values, touched, 0.0, points.uploads.noise_kind)


@dataclass(frozen=True)
class PerRow:
    """(share of clients that sent the row) x (location over those clients): for uploads that show their rows.

    With the mean for a rule this is the mean over all clients, sum / n = (m / n) (sum / m), so learning rates keep their
    meaning. Against liars it holds on rows that enough honest clients sent; on a row that only m < 3 send it is their mean, and
    a lie weighs 1 / n there, as in the plain mean.
    """

    rule: LocationRule

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`.

        Raises
        ------
        ValueError for uploads with cover noise too: a real dense upload does not show which rows its client touched.
        """
        points = UploadPoints.gather(parts, members, num_items, cover_key)
        uploads = points.uploads
        if uploads.cover_scale > 0:
            raise ValueError("row-wise rules need uploads that show their rows: use upload = 'sparse' or no noise")
        counts = points.touched_by
        rows = np.flatnonzero(counts)
        by_row = np.argsort(uploads.rows, kind="stable")
        first = np.cumsum(counts) - counts
        values = np.empty((len(rows), uploads.values.shape[1]))
        for senders in np.unique(counts[rows]):
            alike = np.flatnonzero(counts[rows] == senders)
            entries = by_row[first[rows[alike]][None, :] + np.arange(senders)[:, None]]  # (senders, alike)
            location = self.rule.locate(uploads.values[entries].astype(np.float64))
            values[alike] = location * (senders / points.count)
        return NodeMean(points.count, rows.astype(np.int32), values, counts[rows], 0.0, uploads.noise_kind)


@dataclass(frozen=True)
class PerClient:
    """A weight rule on whole uploads, noise included: two passes over them, one for inner products and one for the sum."""

    rule: WeightRule

    def aggregate(
        self, parts: list[Uploads], members: list[NDArray[np.int64]], num_items: int, cover_key: int
    ) -> NodeMean:
        """See `Aggregator`."""
        points = UploadPoints.gather(parts, members, num_items, cover_key)
        weights = self.rule.weights(inner_products(points))
        rows, values = weighted(points, weights)
        # As many clients as an even mean with this noise would have behind it: 1 for Krum.
        squares = float((weights**2).sum())
        clients = min(max(round(1.0 / squares), 1), points.count) if squares > 0 else points.count
        if points.uploads.cover_scale > 0:
            return NodeMean(clients, rows, values, np.full(len(rows), clients), 0.0, points.uploads.noise_kind)
        owner = np.repeat(np.arange(points.count), np.diff(points.uploads.pointer))
        share = np.bincount(points.uploads.rows, weights[owner] ** 2, num_items)[rows]
        touched = np.clip(np.rint(clients**2 * share), 0, clients).astype(np.int64)
        return NodeMean(clients, rows, values, touched, 0.0, points.uploads.noise_kind)
