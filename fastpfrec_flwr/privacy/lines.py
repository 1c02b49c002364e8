"""The parts of a ledger: the setting that it depends on, its lines, and how they are told."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.accountant import show

_USERS = {
    "replace": "replace one user's whole data (by any other that can train too)",
    "zero-out": "one user's whole data is there, or its device sends a zero change with the same noise; "
    "that it takes part is public",
}
INTERACTION = "add or remove one interaction of one user"
DEFAULT_DELTA = 1e-5


def user_adjacency(config: RunConfig) -> str:
    """What a user may change unnoticed, in the words of a line."""
    return _USERS[config.adjacency]


@dataclass(frozen=True)
class Setting:
    """What a ledger depends on.

    Attributes
    ----------
    num_users : of the data set. num_items : rows of the table, those included that a model has beside its items.
    deployed : real devices; their draws of who trains promise nothing.
    colluding : clients of a round that tell their own noise to the observer. delta : of every line that needs one.
    """

    config: RunConfig
    num_users: int
    num_items: int
    deployed: bool = False
    colluding: int = 0
    delta: float = DEFAULT_DELTA

    @property
    def clients(self) -> int:
        """Clients of a round."""
        return min(self.config.clients_per_round, self.num_users)

    @property
    def phases(self) -> int:
        """Trainings of the run: with a refit two, each with uploads of its own."""
        return 2 if self.config.refit else 1

    @property
    def uploads(self) -> int:
        """Most uploads of one user in the whole run.

        A simulation walks through a permutation of all users, so a user trains once per walk; a real device trains whenever it is
        asked to, in the worst case in every round.
        """
        walk = 1 if self.deployed else max(self.num_users // max(self.clients, 1), 1)
        return self.phases * -(-self.config.num_rounds // walk)

    @property
    def others(self) -> int:
        """Honest clients of a round beside the user that are sure to arrive.

        None where devices stop at an `epsilon-budget`: they do at different rounds, and the last ones are alone.
        """
        if self.config.epsilon_budget > 0:
            return 0
        failing = math.ceil(self.config.dropout_fraction * self.clients - 1e-9)
        return max(self.clients - 1 - failing - self.colluding, 0)


@dataclass(frozen=True)
class Line:
    """One guarantee: against whom, of what, over how long, and why.

    Attributes
    ----------
    adjacency : what may differ between two data sets that the observer cannot tell apart. epsilon : may be infinite.
    clip : what bounds an upload. assumed : what is taken for granted of whom. reason : the proof, or what is missing for one.
    """

    observer: str
    release: str
    scope: str
    adjacency: str
    epsilon: float
    delta: float
    clip: str
    assumed: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values; an infinite epsilon is the word."""
        return {**asdict(self), "epsilon": "infinity" if math.isinf(self.epsilon) else self.epsilon}


@dataclass(frozen=True)
class Ledger:
    """All lines of a setting; `notes` says what was considered and gives no figure."""

    setting: Setting
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = field(default=())

    def of(self, observer: str, release: str = "uploads", scope: str = "whole run") -> Line:
        """The line of an observer.

        Raises
        ------
        KeyError if there is none.
        """
        for line in self.lines:
            if line.observer == observer and line.release == release and line.scope.startswith(scope):
                return line
        raise KeyError(f"no line for {observer!r}, {release!r}, {scope!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"lines": [line.to_dict() for line in self.lines], "notes": list(self.notes)}

    def whole_run_line(self) -> str:
        """One sentence on the uploads over the whole run, for the log."""
        parts = []
        for line in self.lines:
            if line.release == "uploads" and line.scope.startswith("whole run") and line.adjacency in _USERS.values():
                parts.append(f"{line.observer} epsilon = {show(line.epsilon)}, delta = {line.delta:g}")
        without = [line.release for line in self.lines if line.observer == "server" and line.release.endswith("sums")]
        return (
            f"privacy over the whole run, at most {self.setting.uploads} uploads of a user: {'; '.join(parts)}; "
            f"without noise leave: {', '.join(without)}"
        )
