"""What a round came to, and what all rounds came to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fastpfrec_flwr.messages import TrainReport
from fastpfrec_flwr.trusted_node.roster import Attendance

# Reasons come from anybody who sends a message, and a liar can send a new one every time.
_MOST_REASONS = 200
_OTHER = "other reasons"


@dataclass(frozen=True)
class RoundOutcome:
    """One round.

    Attributes
    ----------
    trained : clients whose uploads arrived and could be read. refused : reasons, one for each upload or reply that could not.
    isolated : clients left out by a check, their nodes' included. isolated_nodes : nodes left out whole.
    skipped : users drawn that did not train. loss : mean train loss per positive, if asked for.
    uploaded_rows : rows that travelled. moved : whether the model changed. why_unmoved : if not, why.
    tier_seconds : of the clients (training, messages and decoding), of the trusted nodes, of the server's average and step.
    skips : reason -> users; together they are `skipped`. attendance : which nodes were there, and uploads that were lost with one.
    events : what the log should say of nodes and rows. shortened : rows that were found pulled one way.
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
    why_unmoved: str = "nothing healthy arrived"
    skips: dict[str, int] = field(default_factory=dict)
    attendance: Attendance = Attendance()  # noqa: RUF009 - frozen
    events: list[str] = field(default_factory=list)
    shortened: int = 0


def count_skips(reports: Iterable[TrainReport]) -> dict[str, int]:
    """Why users that were drawn did not train; reasons that nobody had are left out."""
    counts = Counter[str]()
    for report in reports:
        counts["nothing to learn from"] += report.skipped - report.budget_spent
        counts["privacy budget spent"] += report.budget_spent
    return {reason: count for reason, count in counts.items() if count}


def why_unmoved(usable: int, least: int, nobody: bool = False) -> str:
    """Why a round left the model as it was: `usable` uploads where `least` were wanted, `nobody` of the nodes there."""
    if nobody:
        return "no trusted node is there"
    if usable < least:
        return f"{usable} usable uploads, and min-clients is {least}"
    return "nothing healthy arrived"


@dataclass
class Tally:
    """Sums over the rounds of a run; `nodes_away`, `nodes_quarantined` and `rows_shortened` count each in each round."""

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
    skips: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    reassigned: int = 0
    node_failures: int = 0
    nodes_away: int = 0
    nodes_quarantined: int = 0
    rounds_without_nodes: int = 0
    rows_shortened: int = 0

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
        for reason in outcome.refused:
            known = reason in self.reasons or len(self.reasons) < _MOST_REASONS
            self.reasons[reason if known else _OTHER] += 1
        self.skips.update(outcome.skips)
        there = outcome.attendance
        self.lost += there.lost
        self.reassigned += there.reassigned
        self.node_failures += len(there.failing)
        self.nodes_away += len(there.failing) + len(there.away)
        self.nodes_quarantined += len(there.quarantined)
        self.rounds_without_nodes += there.nobody
        self.rows_shortened += outcome.shortened

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {**vars(self), "reasons": dict(self.reasons.most_common(20)), "skips": dict(self.skips)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Tally:
        """Read what `to_dict` wrote."""
        return Tally(**{**values, "reasons": Counter(values["reasons"]), "skips": Counter(values.get("skips", {}))})
