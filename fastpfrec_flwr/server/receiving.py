"""Uploads as they arrive: decoded reply by reply, and refused where they are of no use. A bad one costs its own clients only."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.messages import DecodedUploads, RefusedError, TrainReport
from fastpfrec_flwr.privacy.sampled_rows import rows_in_upload
from fastpfrec_flwr.server.assignment import with_keyed_nonces
from fastpfrec_flwr.server.rounds import count_skips
from fastpfrec_flwr.trusted_node.uploads import Uploads


@dataclass(frozen=True)
class Expected:
    """What the replies of a round may bring.

    Attributes
    ----------
    server_round, table_version : of the order that they answer. num_rows : of the table that it came with.
    most_uploads : SuperNode -> most uploads in its reply. deployed : whether real devices answer, which draw all noise themselves.
    key : mixed into the nonces of uploads that are used, see `assignment`; None leaves them as they are.
    """

    server_round: int
    table_version: int
    num_rows: int
    most_uploads: dict[int, int]
    deployed: bool = False
    key: int | None = None


@dataclass(frozen=True)
class Received:
    """What a round brought.

    Attributes
    ----------
    parts : the usable uploads, of one SuperNode each. reports : what the SuperNodes say of their training.
    refused : reasons, one for each upload or reply that was of no use. seconds : that it took, waiting included.
    """

    parts: list[Uploads]
    reports: list[TrainReport]
    refused: list[str]
    seconds: float

    @property
    def num_clients(self) -> int:
        """Clients whose uploads are usable."""
        return sum(part.num_clients for part in self.parts)

    @property
    def num_rows(self) -> int:
        """Rows that travelled with them."""
        return sum(len(part.rows) for part in self.parts)

    @property
    def skipped(self) -> int:
        """Users drawn that did not train."""
        return sum(report.skipped for report in self.reports)

    @property
    def skips(self) -> dict[str, int]:
        """Why they did not: reason -> users."""
        return count_skips(self.reports)

    @property
    def loss(self) -> float | None:
        """Mean train loss per positive; None where nobody reports one."""
        positives = sum(report.positives for report in self.reports)
        return sum(report.loss_sum for report in self.reports) / positives if positives else None


class Receiver:
    """Receives round after round, and remembers the nonces of the last one: an upload counts once.

    Parameters
    ----------
    threads : that decode one reply.
    """

    def __init__(self, config: RunConfig, threads: int = 1) -> None:
        self._config = config
        self._threads = threads
        self._last_nonces: set[int] = set()

    def forget(self) -> None:
        """Begin as if nothing had come before."""
        self._last_nonces = set()

    def receive(self, replies: Iterable[Message], expected: Expected) -> Received:
        """Take replies in, each decoded as the iterable yields it."""
        began = time.perf_counter()
        parts: list[Uploads] = []
        reports: list[TrainReport] = []
        refused: list[str] = []
        nonces: set[int] = set()
        for reply in replies:
            try:
                decoded = self._decoded(reply, expected)
            except RefusedError as error:
                refused.append(str(error))
                continue
            refused += decoded.refused
            fresh = with_keyed_nonces(self._fresh(decoded.uploads, nonces, refused), expected.key)
            reports.append(decoded.report)
            if fresh.num_clients:
                parts.append(fresh)
        self._last_nonces = nonces
        return Received(parts, reports, refused, time.perf_counter() - began)

    def _decoded(self, reply: Message, expected: Expected) -> DecodedUploads:
        config = self._config
        cover = config.upload == "dense" and not expected.deployed
        # A real device's noise lies on the whole table: an upload of fewer rows is no honest one's.
        fixed = config.upload == "sampled" or (
            config.upload == "dense" and expected.deployed and config.noise != "none"
        )
        return messages.decode_uploads(
            reply,
            expected.server_round,
            expected.most_uploads.get(reply.metadata.src_node_id, 0),
            expected.num_rows,
            config.upload_width,
            config.effective_noise_scale if cover else 0.0,
            self._threads,
            config.upload_precision,
            expected.table_version,
            noise_kind=config.noise_kind,
            rows_each=rows_in_upload(config.upload, config.sampled_share, expected.num_rows) if fixed else None,
        )

    def _fresh(self, uploads: Uploads, seen: set[int], refused: list[str]) -> Uploads:
        """Leave out uploads that came twice or were replayed from the last round."""
        new = np.ones(uploads.num_clients, np.bool_)
        for j, nonce in enumerate(uploads.nonces.tolist()):
            if nonce in seen or nonce in self._last_nonces:
                new[j] = False
                refused.append("upload came twice" if nonce in seen else "upload replayed from the last round")
            seen.add(nonce)
        return uploads if new.all() else messages.select_clients(uploads, np.flatnonzero(new))
