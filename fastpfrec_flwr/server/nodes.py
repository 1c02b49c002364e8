"""The SuperNodes of a run: who is there, what they hold, and that they agree with each other."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, Order, RefusedError, one_line
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.server.errors import RunError

_LOG = logging.getLogger(__name__)
# SuperNodes register while the ServerApp already runs: their number must hold still this long before round 1.
STABLE_SECONDS = 1.0
DISCOVERY_TIMEOUT = 120.0
# Longest time between two looks for replies. Real devices take seconds each: looking ten times a second kept a quarter of a
# processor busy, the ServerApp's side and the SuperLink's together.
_PAUSE, _DEVICE_PAUSE = 0.1, 0.5


@dataclass(frozen=True)
class SuperNodes:
    """Those that take part, ordered by partition so that nothing depends on Flower's random node ids.

    Attributes
    ----------
    ids : Flower's. descriptions : of each. refused : why others do not take part.
    """

    ids: list[int]
    descriptions: list[Description]
    refused: list[str]

    @property
    def num_users(self) -> int:
        """Users that they hold together."""
        return sum(description.users for description in self.descriptions)

    @property
    def deployed(self) -> bool:
        """Whether these are real devices."""
        return any(description.partition < 0 for description in self.descriptions)

    def shares(self, clients: int, seed: int, server_round: int) -> list[int]:
        """Clients asked of each node in a round.

        In a simulation all of them are told the total and take their own of its users. Real devices are asked in proportion to the
        users that they hold, as many in all as are wanted; who gets what is left over is drawn by the seed in each round
        (systematic sampling in a random order), so that each user's chance is the same: of a thousand devices with one user each, a
        hundred others every time.
        """
        if not self.deployed:
            return [clients] * len(self.ids)
        generator = derive_generator(seed, "shares", server_round)
        order = generator.permutation(len(self.ids))
        users = np.array([each.users for each in self.descriptions], np.int64)
        share = min(clients, self.num_users) / max(self.num_users, 1)
        ends = np.floor(np.cumsum(users[order]) * share + generator.random())
        ends[-1:] = min(clients, self.num_users)  # whatever the sums' rounding
        counts = np.zeros(len(self.ids), np.int64)
        counts[order] = np.minimum(np.diff(ends, prepend=0.0).astype(np.int64), users[order])
        return [int(count) for count in counts]

    def most_uploads(self, clients: int, seed: int, server_round: int) -> dict[int, int]:
        """Node id -> most uploads that its reply may bring: what it was asked for, and no more than the users that it has.

        Without this one SuperNode could stand in for all clients of a round.
        """
        shares = self.shares(clients, seed, server_round)
        return {
            node: min(share, each.users) for node, share, each in zip(self.ids, shares, self.descriptions, strict=True)
        }

    def users_of(self, node: int) -> int:
        """Users that a SuperNode says it has; 0 of one that does not take part."""
        return self.descriptions[self.ids.index(node)].users if node in self.ids else 0


class Exchange:
    """Sends messages and yields the replies as they arrive, until all are there or the time is over.

    Nobody is left out in silence: for each message without a usable reply comes a reply that says so. Flower's grid raises where
    it cannot read a reply, and what it has pulled together with it is gone. Pulled one by one, a SuperNode that sends such a thing
    costs itself and nobody else.

    Parameters
    ----------
    one_by_one : pull so from the start, as with real devices, whose bytes are their own; else after the first such reply.
    """

    def __init__(self, one_by_one: bool = False) -> None:
        self._one_by_one = one_by_one

    def __call__(self, grid: Grid, outgoing: Iterable[Message], timeout: float) -> Iterator[Message]:
        """Send `outgoing`; `timeout` in seconds from when it is sent."""
        sent = list(outgoing)
        waiting = dict(zip(grid.push_messages(sent), sent, strict=True))
        errors: dict[str, str] = {}
        deadline = time.monotonic() + timeout
        pause = 0.005
        while waiting:
            asked = time.monotonic()
            arrived = self._pull(grid, waiting, errors)
            yield from arrived
            if time.monotonic() >= deadline:
                break
            if waiting and not arrived:
                # As long as asking took: a thousand devices are a thousand questions.
                time.sleep(max(pause, time.monotonic() - asked))
                pause = min(pause * 1.5, _DEVICE_PAUSE if self._one_by_one else _PAUSE)
        for message_id, message in waiting.items():
            yield _failed(message, errors.get(message_id, f"no answer within {timeout:g} s"))

    def _pull(self, grid: Grid, waiting: dict[str, Message], errors: dict[str, str]) -> list[Message]:
        """Take what has arrived out of `waiting`; `errors` keeps what Flower said of single messages."""
        if not self._one_by_one:
            try:
                arrived = list(grid.pull_messages(list(waiting)))
            except Exception as error:
                # Whoever sent it cannot be told apart from those whose replies it took along: Flower says which are gone.
                self._one_by_one = True
                _LOG.warning(
                    "a reply could not be read (%s); from here on they are pulled one by one", one_line(str(error))
                )
            else:
                for reply in arrived:
                    _signed(reply, waiting.pop(reply.metadata.reply_to_message_id, None))
                return arrived
        arrived = []
        for message_id, message in list(waiting.items()):
            try:
                replies = list(grid.pull_messages([message_id]))
            except Exception as error:
                # Gone, or only late, as when the SuperLink cannot be reached: asked again, Flower says which.
                errors.setdefault(message_id, f"reply cannot be read: {type(error).__name__}: {error}")
                continue
            if not replies:
                continue
            unreadable = message_id in errors and replies[0].has_error()
            arrived += [_failed(message, errors[message_id]) if unreadable else _signed(replies[0], message)]
            del waiting[message_id]
        return arrived


def _signed(reply: Message, message: Message | None) -> Message:
    """A reply that names as its sender whoever was asked: what a device writes there itself proves nothing."""
    if message is not None:
        reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def _failed(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason=reason), reply_to=message)


def exchange(grid: Grid, outgoing: Iterable[Message], timeout: float) -> Iterator[Message]:
    """One `Exchange`, before it is known whether these are real devices."""
    return Exchange(one_by_one=not getattr(grid, "in_process", False))(grid, outgoing, timeout)


def query(node: int, action: str, order: Order) -> Message:
    """A query message; `action` is one of the ClientApp's."""
    kind = "query" if action == "default" else f"query.{action}"
    return Message(messages.encode_query(order), node, kind)


def stable_node_ids(
    grid: Grid, stable_seconds: float = STABLE_SECONDS, timeout: float = DISCOVERY_TIMEOUT
) -> list[int]:
    """Node ids once their number has held still.

    Raises
    ------
    RunError if there is none within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    known: list[int] = []
    since = time.monotonic()
    while True:
        found = sorted(grid.get_node_ids())
        if found != known:
            known, since = found, time.monotonic()
        if known and time.monotonic() - since >= stable_seconds:
            return known
        if time.monotonic() >= deadline:
            raise RunError(f"no SuperNode registered within {timeout:g} s: start some, or look at their logs")
        time.sleep(0.05 if stable_seconds else 0.0)


def discover(grid: Grid, order: Order, stable_seconds: float, timeout: float) -> SuperNodes:
    """Ask all SuperNodes what they hold; keep those that agree with the majority on catalogue and data.

    Raises
    ------
    RunError if nobody can take part, with all reasons.
    """
    ids = stable_node_ids(grid, stable_seconds)
    found: list[tuple[int, Description]] = []
    refused = []
    for reply in exchange(grid, [query(node, "default", order) for node in ids], timeout):
        try:
            found.append((reply.metadata.src_node_id, messages.decode_description(reply)))
        except RefusedError as error:
            refused.append(str(error))
    if not found:
        reasons = list(dict.fromkeys(refused)) or ["none answered"]
        raise RunError("no SuperNode can take part: " + "; ".join(reasons))
    # Sorted before anything is decided, so that the order of arrival decides nothing.
    found.sort(key=lambda pair: (pair[1].partition, pair[0]))
    catalogues = [(each.catalogue, each.num_items) for _, each in found]
    agreed = max(set(catalogues), key=lambda each: (catalogues.count(each), each))
    for node, each in found:
        if (each.catalogue, each.num_items) != agreed:
            refused.append(
                f"SuperNode {node} has another catalogue ({each.catalogue}, {each.num_items} items) than the others "
                f"({agreed[0]}, {agreed[1]} items): give it the same data set"
            )
    kept = [(node, each) for node, each in found if (each.catalogue, each.num_items) == agreed]
    nodes = SuperNodes([node for node, _ in kept], [each for _, each in kept], refused)
    if nodes.num_users == 0:
        raise RunError("the SuperNodes hold no users: look at data-set and data-dir")
    return nodes


def fetch_catalogue(grid: Grid, nodes: SuperNodes, order: Order, timeout: float) -> tuple[list[str], str]:
    """Public item ids in row order and the data set's report (JSON), from the first SuperNode that hands them out.

    Raises
    ------
    RunError if none does.
    """
    reasons = []
    for node in nodes.ids:
        for reply in exchange(grid, [query(node, "catalogue", order)], timeout):
            try:
                return messages.decode_catalogue(reply, nodes.descriptions[0].num_items)
            except RefusedError as error:
                reasons.append(str(error))
    raise RunError("no SuperNode handed out the catalogue: " + "; ".join(reasons or ["none answered"]))
