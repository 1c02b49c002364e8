"""Which trusted nodes are there in a round, and which of them an upload goes to: failures, reassignment, quarantine.

Every draw is a function of the seed, the round and the upload's nonce, so neither the order of arrival nor the number of
SuperNodes decides anything, and a resumed run meets the same failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.randomness import derive_generator, stream_key, user_stream_keys

Moment = Literal["before", "during", "after"]
Reassignment = Literal["retry", "next-round", "none"]
LOST = -1


def assign_nodes(nonces: NDArray[np.uint64], num_nodes: int) -> NDArray[np.int64]:
    """(clients,) the node of each upload, uniform: a function of the nonce alone, which an honest client draws at random.

    A client that lies can pick its nonce. So that it cannot pick its node, the server mixes a key of the round into all nonces
    before they come here (`server.assignment`).
    """
    mixed = user_stream_keys(0, nonces.view(np.int64)) >> np.uint64(32)
    return ((mixed * np.uint64(num_nodes)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class Attendance:
    """Who of the nodes was there in a round, and what became of the uploads.

    Attributes
    ----------
    server_round : the round. failing : nodes that failed in it. away : that had failed before. back : that had, and have returned.
    quarantined : left out because their means stood out before. released : back from that.
    lost : uploads that no node could use. reassigned : uploads that went to another node than the one drawn first.
    nobody : no node could take uploads, or none of those that took some lived to report.
    """

    server_round: int = 0
    failing: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    lost: int = 0
    reassigned: int = 0
    nobody: bool = False

    def sentences(self, moment: str) -> list[str]:
        """What the log should say of this round; nothing where nothing changed and nothing was lost."""
        said = [f"{_nodes(self.failing)} failed {moment} collecting"] if self.failing else []
        said += [f"{_nodes(self.back)} back"] if self.back else []
        said += [f"{_nodes(self.released)} back from quarantine"] if self.released else []
        if said or self.lost or self.nobody:
            said += [f"{self.lost} uploads lost"] if self.lost else []
            said += [f"{self.reassigned} sent to another node"] if self.reassigned else []
            said += ["no trusted node is there"] if self.nobody else []
        return said


def _nodes(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    return f"trusted node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


class Roster(Protocol):
    """Decides where uploads go."""

    @property
    def attendance(self) -> Attendance:
        """Of the round that was assigned last."""

    @property
    def quarantine(self) -> dict[int, int]:
        """Node -> last round that it is left out of."""

    def restore(self, quarantine: dict[int, int]) -> None:
        """Take up what `quarantine` was, as when a phase begins or a run is resumed."""

    def assign(self, nonces: list[NDArray[np.uint64]], num_nodes: int, server_round: int) -> list[NDArray[np.int64]]:
        """For each message, (clients,) the node whose mean has each upload; `LOST` where none has.

        Parameters
        ----------
        nonces : of each message, one for each client.
        """

    def isolated(self, nodes: list[int], server_round: int) -> None:
        """Hear which nodes the server left out of the round because of what they sent."""

    def sentences(self) -> list[str]:
        """What the log should say of the last round."""


@dataclass(frozen=True)
class AllThere:
    """Every node is there, always; an isolated one too in the next round."""

    @property
    def attendance(self) -> Attendance:
        """Nobody is missing."""
        return Attendance()

    @property
    def quarantine(self) -> dict[int, int]:
        """Nobody is left out."""
        return {}

    def restore(self, quarantine: dict[int, int]) -> None:
        """Nothing to take up."""

    def assign(self, nonces: list[NDArray[np.uint64]], num_nodes: int, server_round: int) -> list[NDArray[np.int64]]:
        """See `Roster`."""
        return [assign_nodes(each, num_nodes) for each in nonces]

    def isolated(self, nodes: list[int], server_round: int) -> None:
        """Nothing comes of it."""

    def sentences(self) -> list[str]:
        """Nothing to say."""
        return []


@dataclass(frozen=True)
class Failures:
    """When nodes fail, for how long, and at which moment of the round; a pure function of the seed.

    Attributes
    ----------
    num_nodes : T. fixed : nodes, drawn from the seed, that fail in round `start`. probability : of every node in every round, on
        its own. rounds : that a failed node stays away, the one in which it fails included; 0 is for good.
    moment : `before` collecting: uploads do not get through to it; `during`: half of them do, and are lost with it; `after`: all
        do, and it ends without a report.
    """

    num_nodes: int
    seed: int
    fixed: int = 0
    start: int = 1
    probability: float = 0.0
    rounds: int = 0
    moment: Moment = "before"

    def down(self, server_round: int) -> frozenset[int]:
        """Nodes that are not there at the end of a round (from 1)."""
        return self._gone(server_round, server_round)

    def away(self, server_round: int) -> frozenset[int]:
        """Nodes that are not there from its beginning, because they failed in an earlier round."""
        return self._gone(server_round, server_round - 1)

    def _gone(self, server_round: int, newest: int) -> frozenset[int]:
        """Nodes that a failure up to round `newest` keeps out of a round."""
        if newest < 1:
            return frozenset()
        gone: set[int] = set()
        if self.fixed and self.start <= newest and (not self.rounds or server_round < self.start + self.rounds):
            order = derive_generator(self.seed, "failed-nodes").permutation(self.num_nodes)
            gone.update(order[: self.fixed].tolist())
        if self.probability > 0:
            first = max(server_round - self.rounds + 1, 1) if self.rounds else 1
            rounds = np.arange(first, newest + 1, dtype=np.int64)
            for node in range(self.num_nodes):
                # The upper 53 bits as a number in [0, 1).
                draws = user_stream_keys(stream_key(self.seed, "node-failure", node), rounds) >> np.uint64(11)
                if (draws * 2.0**-53 < self.probability).any():
                    gone.add(node)
        return frozenset(gone)


class Attendances:
    """A roster with failures and quarantine.

    A node in quarantine costs no upload: those that were drawn to it go to the others. So that nobody who makes honest nodes
    stand out can empty the tier, at most half of the nodes are in quarantine at a time, and three are always left, which is the
    least that can be compared. Where there would be more, those whose time ends first come back early.

    Parameters
    ----------
    failures : when nodes are gone. reassignment : `retry`: an upload that did not get through goes to another node in the same
        round; `next-round`: it is lost, and from the next round on nobody is sent to a node that is away; `none`: clients keep
        sending to it. quarantine_rounds : for how many rounds an isolated node is left out; 0 is none.
    """

    def __init__(self, failures: Failures, reassignment: Reassignment = "retry", quarantine_rounds: int = 0) -> None:
        self._failures = failures
        self._reassignment = reassignment
        self._quarantine_rounds = quarantine_rounds
        self._most_quarantined = max(min(failures.num_nodes // 2, failures.num_nodes - 3), 0)
        self._until: dict[int, int] = {}
        self._sent: list[str] = []
        self._attendance = Attendance()

    def __repr__(self) -> str:
        return f"Attendances({self._failures}, {self._reassignment!r}, {self._quarantine_rounds})"

    @property
    def attendance(self) -> Attendance:
        """See `Roster`."""
        return self._attendance

    @property
    def quarantine(self) -> dict[int, int]:
        """See `Roster`."""
        return dict(self._until)

    def restore(self, quarantine: dict[int, int]) -> None:
        """See `Roster`."""
        self._until = dict(quarantine)

    def assign(self, nonces: list[NDArray[np.uint64]], num_nodes: int, server_round: int) -> list[NDArray[np.int64]]:
        """See `Roster`."""
        before, now = self._failures.down(server_round - 1), self._failures.down(server_round)
        away = self._failures.away(server_round)
        failing = now - away
        quarantined = {node for node, last in self._until.items() if last >= server_round}
        released = set(self._until) - quarantined
        # A node that fails in this round is among those that uploads are sent to; only then does anybody notice.
        avoided = quarantined | (away if self._reassignment != "none" else set())
        living = np.array(sorted(set(range(num_nodes)) - now - quarantined), np.int64)
        nodes, lost, reassigned = [], 0, 0
        for each in nonces:
            of_client = assign_nodes(each, num_nodes)
            elsewhere = _among(of_client, avoided)
            open_nodes = sorted(set(range(num_nodes)) - avoided)
            if open_nodes:
                of_client[elsewhere] = np.array(open_nodes)[_second_draw(each[elsewhere], len(open_nodes), "elsewhere")]
            else:
                of_client[elsewhere] = LOST
            unreached = self._unreached(each, of_client, failing, server_round)
            if self._reassignment == "retry" and len(living):
                of_client[unreached] = living[_second_draw(each[unreached], len(living), "retry")]
                elsewhere |= unreached
            of_client[_among(of_client, now)] = LOST
            lost += int((of_client == LOST).sum())
            reassigned += int((elsewhere & (of_client != LOST)).sum())
            nodes.append(of_client)
        self._attendance = Attendance(
            server_round,
            tuple(sorted(failing)),
            tuple(sorted(away)),
            tuple(sorted(before - now)),
            tuple(sorted(quarantined)),
            tuple(sorted(released)),
            lost,
            reassigned,
            not len(living),
        )
        return nodes

    def _unreached(
        self, nonces: NDArray[np.uint64], of_client: NDArray[np.int64], failing: frozenset[int], server_round: int
    ) -> NDArray[np.bool_]:
        """Uploads that a node which fails in this round has not taken, so that their clients know."""
        drawn = _among(of_client, failing)
        if self._failures.moment == "before":
            return drawn
        if self._failures.moment == "after":
            return np.zeros(len(nonces), np.bool_)
        coin = user_stream_keys(
            stream_key(self._failures.seed, "taken-before-failing", server_round), nonces.view(np.int64)
        ) >> np.uint64(63)
        unreached: NDArray[np.bool_] = drawn & (coin == 0)
        return unreached

    def isolated(self, nodes: list[int], server_round: int) -> None:
        """See `Roster`."""
        # Those whose last round this was are kept until the next one has said that they are back.
        self._until = {node: last for node, last in self._until.items() if last >= server_round}
        self._sent = []
        if not self._quarantine_rounds or not nodes:
            return
        last = server_round + self._quarantine_rounds
        sent = sorted(nodes)[: self._most_quarantined]
        held = sorted((node for node, end in self._until.items() if end > server_round), key=lambda n: -self._until[n])
        for node in held[self._most_quarantined - len(sent) :]:
            self._until[node] = server_round
        self._until |= dict.fromkeys(sent, last)
        self._sent = [f"{_nodes(sent)} isolated, in quarantine up to round {last}"] if sent else []

    def sentences(self) -> list[str]:
        """See `Roster`."""
        return [*self._attendance.sentences(self._failures.moment), *self._sent]


def _among(of_client: NDArray[np.int64], nodes: Set[int]) -> NDArray[np.bool_]:
    """(clients,) whether each was sent to one of `nodes`; in most rounds there are none."""
    found: NDArray[np.bool_] = np.isin(of_client, list(nodes)) if nodes else np.zeros(len(of_client), np.bool_)
    return found


def _second_draw(nonces: NDArray[np.uint64], num_nodes: int, purpose: str) -> NDArray[np.int64]:
    """Where an upload goes whose first node is not there: a draw that the first one says nothing about."""
    return assign_nodes(user_stream_keys(stream_key(0, purpose), nonces.view(np.int64)), num_nodes)
