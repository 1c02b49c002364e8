"""What a round came to, and what all rounds came to together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RoundOutcome:
    """One round.

    Attributes
    ----------
    trained : clients whose uploads arrived and could be read. refused : reasons, one for each upload or reply that could not.
    isolated : clients left out by a check, their nodes' included. isolated_nodes : nodes left out whole.
    skipped : users drawn that had nothing to learn from. loss : mean train loss per positive, if asked for.
    uploaded_rows : rows that travelled. moved : whether the model changed.
    tier_seconds : of the clients (training, messages and decoding), of the trusted nodes, of the server's average and step.
    """

    trained: int
    refused: list[str]
    isolated: int
    isolated_nodes: int
    skipped: int
    loss: float | None
    uploaded_rows: int
    moved: bool
    tier_seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass
class Tally:
    """Sums over the rounds of a run."""

    rounds: int = 0
    trained: int = 0
    refused: int = 0
    isolated: int = 0
    isolated_nodes: int = 0
    skipped: int = 0
    uploaded_rows: int = 0
    unmoved_rounds: int = 0
    tier_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: RoundOutcome) -> None:
        """Count a round in."""
        self.rounds += 1
        self.trained += outcome.trained
        self.refused += len(outcome.refused)
        self.isolated += outcome.isolated
        self.isolated_nodes += outcome.isolated_nodes
        self.skipped += outcome.skipped
        self.uploaded_rows += outcome.uploaded_rows
        self.unmoved_rounds += not outcome.moved
        self.tier_seconds = [a + b for a, b in zip(self.tier_seconds, outcome.tier_seconds, strict=True)]
        self.reasons.update(outcome.refused)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {**vars(self), "reasons": dict(self.reasons.most_common(20))}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Tally:
        """Read what `to_dict` wrote."""
        return Tally(**{**values, "reasons": Counter(values["reasons"])})
