"""SuperNode to server: metrics, as sums over its users."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Message, MetricRecord, RecordDict

from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.messages.records import RefusedError, record_of, usable_content


def encode_metric_sums(sums: Mapping[str, MetricSums]) -> RecordDict:
    """SuperNode -> server: sums over its users for each part."""
    return RecordDict({part: MetricRecord(dict(of_part.to_dict())) for part, of_part in sums.items()})


def decode_metric_sums(reply: Message) -> dict[str, MetricSums]:
    """Read what `encode_metric_sums` wrote; part -> sums."""
    content = usable_content(reply)
    if not content or not set(content) <= {"validation", "test"}:
        raise RefusedError(f"evaluate reply: records must be some of test, validation, got {sorted(content)}")
    try:
        return {part: MetricSums.from_dict(dict(record_of(content, part, MetricRecord))) for part in content}
    except ValueError as error:
        raise RefusedError(f"evaluate reply: {error}") from None
