"""SuperNode to trusted nodes: what clients upload, and how a bad upload costs its own client only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.config_privacy import LARGEST_VALUE
from fastpfrec_flwr.messages.arrays import decode_array, decode_exponents, encode_array
from fastpfrec_flwr.messages.records import RefusedError, exact_keys, record_of, usable_content, value_of
from fastpfrec_flwr.parallel import in_parallel
from fastpfrec_flwr.privacy.eight_bits import from_eight_bits
from fastpfrec_flwr.privacy.laws import LAPLACE
from fastpfrec_flwr.privacy.mechanism import PrivatizedUploads
from fastpfrec_flwr.trusted_node.uploads import Norms, Uploads

_CLIENTS_PER_TASK = 32
# No loss per positive is larger than this: one client should not fill the round's mean alone.
LARGEST_LOSS = 1e6
_REPORT_TYPES: dict[str, type] = {
    "server-round": int,
    "skipped": int,
    "loss-sum": float,
    "positives": int,
    "budget-spent": int,
    "table-version": int,
}
_UPLOAD_DTYPES = {"nonces": "uint64", "pointer": "int64", "rows": "int32", "values": "float32"}


@dataclass(frozen=True)
class TrainReport:
    """What a SuperNode says of a round beside its uploads.

    Attributes
    ----------
    server_round : the round that it answers. skipped : users drawn that did not train.
    loss_sum, positives : sum of the losses and of their positives, 0 where the loss was not asked for.
    budget_spent : of the skipped, those whose epsilon budget is spent; the others had nothing to learn from.
    table_version : of the item table that they trained on, `Order.table_version`.
    """

    server_round: int
    skipped: int
    loss_sum: float
    positives: int
    budget_spent: int = 0
    table_version: int = 0


def encode_uploads(uploads: PrivatizedUploads, report: TrainReport, num_items: int = 0) -> RecordDict:
    """SuperNode -> trusted nodes: what its clients upload.

    Parameters
    ----------
    num_items : rows of the table. Uploads of whole tables leave out their row numbers then, which say nothing.

    Raises
    ------
    TypeError for anything that did not come out of a privacy mechanism.
    """
    if type(uploads) is not PrivatizedUploads:
        raise TypeError(f"only PrivatizedUploads may leave a client, got {type(uploads).__name__}")
    arrays = {name: encode_array(getattr(uploads, name)) for name in _UPLOAD_DTYPES}
    if uploads.exponents is not None:
        arrays["exponents"] = encode_array(uploads.exponents)
    whole = uploads.cover_scale == 0.0 and len(uploads.rows) > 0
    if num_items and whole and (np.diff(uploads.pointer) == num_items).all():
        arrays["rows"] = encode_array(np.empty(0, np.int32))
    return RecordDict(
        {
            "uploads": ArrayRecord(arrays),
            "cover": ConfigRecord({"cover-scale": uploads.cover_scale}),
            "train": MetricRecord({key: getattr(report, key.replace("-", "_")) for key in _REPORT_TYPES}),
        }
    )


@dataclass(frozen=True)
class DecodedUploads:
    """The good uploads of a reply, and why the others were refused (one reason for each bad client)."""

    uploads: Uploads
    report: TrainReport
    refused: list[str]


def decode_uploads(
    reply: Message,
    server_round: int,
    max_clients: int,
    num_items: int,
    embedding_dim: int,
    cover_scale: float,
    threads: int = 1,
    precision: str = "float32",
    table_version: int | None = None,
    noise_kind: str = LAPLACE,
    rows_each: int | None = None,
) -> DecodedUploads:
    """Read what `encode_uploads` wrote.

    Parameters
    ----------
    server_round : the round that is open. max_clients : most clients that the reply may bring.
    num_items, embedding_dim : shape of the table. cover_scale : noise that simulated dense uploads still lack, or 0.
    precision : float32, or float16 or int8 where the run asks for it; they are float32 from here on.
    table_version : of the table that was sent; None takes any.
    noise_kind : law of the noise, see `privacy.laws`. rows_each : how many rows every client must bring; None is any number.

    Raises
    ------
    RefusedError if the reply as a whole cannot be used.
    """
    content = usable_content(reply)
    if set(content) != {"uploads", "cover", "train"}:
        raise RefusedError(f"train reply: records must be cover, train, uploads, got {sorted(content)}")
    report = _decode_train_report(record_of(content, "train", MetricRecord), server_round, table_version)
    cover = record_of(content, "cover", ConfigRecord)
    exact_keys(cover, {"cover-scale"}, "cover")
    claimed = value_of(cover, "cover-scale", float, "cover")
    if claimed not in (0.0, cover_scale):
        raise RefusedError(f"cover: cover-scale must be 0.0 or {cover_scale}, got {claimed!r}")
    most_positives = max_clients * num_items
    if report.skipped > max_clients or report.positives > most_positives:
        raise RefusedError(f"train: at most {max_clients} clients and {most_positives} positives, got {report}")
    arrays = record_of(content, "uploads", ArrayRecord)
    exact_keys(arrays, {*_UPLOAD_DTYPES, *(["exponents"] if precision == "int8" else [])}, "uploads")
    nonces = decode_array(arrays["nonces"], "nonces", "uint64", (None,))
    if len(nonces) > max_clients:
        raise RefusedError(f"nonces: {len(nonces)} clients, at most {max_clients} were asked")
    pointer = decode_array(arrays["pointer"], "pointer", "int64", (len(nonces) + 1,))
    rows = decode_array(arrays["rows"], "rows", "int32", (None,))
    whole = not len(rows) and claimed == 0.0 and pointer[0] == 0 and bool((np.diff(pointer) == num_items).all())
    count = len(nonces) * num_items if whole else len(rows)
    values = decode_array(arrays["values"], "values", precision, (count, embedding_dim))
    if whole:
        rows = np.tile(np.arange(num_items, dtype=np.int32), len(nonces))  # whole tables come without row numbers
    if precision != "float32":
        values = _as_float32(values, arrays, precision)
        values.flags.writeable = False  # one type for the kernels, however the values came
    # Compared, not subtracted: differences of hostile pointers wrap around and look harmless.
    if pointer[0] != 0 or pointer[-1] != len(rows) or (pointer[1:] < pointer[:-1]).any():
        raise RefusedError(f"pointer: does not divide {len(rows)} rows among {len(nonces)} clients")
    faults, norms = np.zeros(len(nonces), np.uint8), Norms(np.zeros(len(nonces)), np.zeros(len(nonces)))

    def look(first: int) -> None:
        last = min(first + _CLIENTS_PER_TASK, len(faults))
        _find_faults(
            pointer, rows, values, num_items, LARGEST_VALUE, first, last, faults, norms.whole, norms.largest_row
        )

    in_parallel(look, range(0, len(faults), _CLIENTS_PER_TASK), threads)
    if claimed != cover_scale:
        # Without cover the rows are all there is, so they must be the whole table: then no cover is left to draw.
        faults[(faults == 0) & (np.diff(pointer) != num_items)] = 6
    if rows_each is not None:
        faults[(faults == 0) & (np.diff(pointer) != rows_each)] = 7
    uploads = Uploads(nonces, pointer, rows, values, cover_scale, noise_kind).with_norms(norms)
    if faults.any():
        uploads = select_clients(uploads, np.flatnonzero(faults == 0))
    return DecodedUploads(uploads, report, [_FAULTS[int(fault)] for fault in faults if fault])


def _as_float32(values: NDArray[Any], arrays: ArrayRecord, precision: str) -> NDArray[np.float32]:
    if precision == "float16":
        return values.astype(np.float32)
    return from_eight_bits(values, decode_exponents(arrays["exponents"], "exponents", len(values)))


def row_bytes(precision: str, width: int) -> int:
    """Bytes of one row of `width` values on its way, its number left out."""
    return width + 1 if precision == "int8" else int(np.dtype(precision).itemsize) * width


_FAULTS = {
    1: "upload without rows",
    2: "row ids out of range",
    3: "row ids repeated or unsorted",
    4: "values not finite",
    5: f"values beyond +-{LARGEST_VALUE:g}",
    6: "rows missing from a dense upload without cover noise",
    7: "more or fewer rows than every upload has",
}


@compiled
def _find_faults(
    pointer: Any,
    rows: Any,
    values: Any,
    num_items: int,
    largest: float,
    first: int,
    last: int,
    faults: Any,
    squares: Any,
    largest_rows: Any,
) -> None:
    """Look at every element once; what it costs is reading them, so the squared norms are taken along for the checks."""
    limit = np.float32(largest)
    for j in range(first, last):
        total, longest = 0.0, np.float32(0.0)
        if pointer[j] == pointer[j + 1]:
            faults[j] = 1
            continue
        before = -1
        for t in range(pointer[j], pointer[j + 1]):
            row = rows[t]
            if row < 0 or row >= num_items:
                faults[j] = 2
                break
            if row <= before:
                faults[j] = 3
                break
            before = row
            square = np.float32(0.0)
            for c in range(values.shape[1]):
                square += values[t, c] * values[t, c]
            total += float(square)
            longest = max(longest, square)
            # No element is beyond the limit if their squares' sum is not. This way round NaN is caught: it compares false.
            if square <= limit * limit:
                continue
            good: Any = 0
            finite = True
            for c in range(values.shape[1]):
                good += np.int32(abs(values[t, c]) <= limit)
                finite = finite and bool(np.isfinite(values[t, c]))
            if good < values.shape[1]:
                faults[j] = 5 if finite else 4
                break
        squares[j] = total
        largest_rows[j] = longest


def select_clients(uploads: Uploads, chosen: NDArray[np.int64]) -> Uploads:
    """The uploads of some clients, copied."""
    lengths = np.diff(uploads.pointer)[chosen]
    pointer = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths, out=pointer[1:])
    entries = np.repeat(uploads.pointer[chosen] - pointer[:-1], lengths) + np.arange(pointer[-1])
    few = Uploads(
        uploads.nonces[chosen], pointer, uploads.rows[entries], uploads.values[entries], uploads.cover_scale,
        uploads.noise_kind,
    )  # fmt: skip
    return few if uploads.norms is None else few.with_norms(uploads.norms.of(chosen))


def _decode_train_report(record: Mapping[str, Any], server_round: int, table_version: int | None) -> TrainReport:
    exact_keys(record, set(_REPORT_TYPES), "train")
    values = {key.replace("-", "_"): value_of(record, key, kind, "train") for key, kind in _REPORT_TYPES.items()}
    report = TrainReport(**values)
    if report.server_round != server_round:
        raise RefusedError(f"train: reply to round {report.server_round} in round {server_round}")
    if table_version is not None and report.table_version != table_version:
        raise RefusedError("train: made for another version of the item table than this round's")
    counts_fit = 0 <= report.budget_spent <= report.skipped and report.positives >= 0
    # NaN compares false.
    if not counts_fit or not abs(report.loss_sum) <= LARGEST_LOSS * report.positives:
        raise RefusedError(f"train: figures make no sense: {report}")
    return report
