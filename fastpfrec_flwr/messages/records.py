"""Reading records that anybody may have sent: exact keys, exact types, and a refusal with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

# A reason may quote what a stranger sent: a record name of a megabyte, or a line break and a forged line of the log.
LONGEST_REASON = 1000


class RefusedError(ValueError):
    """A message that cannot be used; the text says why, in one line of bounded length, for the round's record."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


def one_line(text: str) -> str:
    """Text from anybody as one printable line of at most `LONGEST_REASON` characters."""
    short = text[: LONGEST_REASON - 3] + "..." if len(text) > LONGEST_REASON else text
    return "".join(each if each.isprintable() else " " for each in short)


def record_of(content: RecordDict, key: str, kind: type) -> Any:
    """The record `key` of a message, if it is one of that kind."""
    if key not in content or not isinstance(content[key], kind):
        raise RefusedError(f"record {key!r} of kind {kind.__name__} is missing; got {sorted(content)}")
    return content[key]


def exact_keys(record: Mapping[str, Any], keys: set[str], name: str) -> None:
    """Refuse a record with other keys than these; `name` is what the reason calls it."""
    if set(record) != keys:
        missing, extra = sorted(keys - set(record)), sorted(set(record) - keys)
        raise RefusedError(f"{name}: missing keys {missing}, unknown keys {extra}")


def value_of(record: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    """A value of a record, if it is of exactly that type (a bool is no int)."""
    value = record[key]
    if type(value) is not kind:
        raise RefusedError(f"{name}: {key} must be {kind.__name__}, got {value!r}")
    return value


def encode_refusal(reason: str) -> RecordDict:
    """A reply that says why the client did not do what it was asked to."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def usable_content(reply: Message) -> RecordDict:
    """Content of a reply.

    Raises
    ------
    RefusedError if the client failed or refused, with the last line of its reason.
    """
    if reply.has_error():
        lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
        raise RefusedError(f"client failed (code {reply.error.code}): {lines[-1] if lines else 'no reason given'}")
    content: RecordDict = reply.content
    if "refusal" in content:
        reason = record_of(content, "refusal", ConfigRecord).get("reason")
        raise RefusedError(reason if isinstance(reason, str) and reason.strip() else "client refused: no reason given")
    return content
