"""Who is on line between the rounds of a deployment: late joiners come in, who has left is not asked, nobody is waited for.

A newcomer is asked what it holds while the round that runs goes on; it takes part from the first round that begins after its
answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.app import Message
from flwr.serverapp import Grid

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, Order, RefusedError
from fastpfrec_flwr.server.nodes import SuperNodes, query

# Who was refused is asked again after this time: its owner may have put right what was wrong.
ASK_AGAIN_SECONDS = 120.0
# With nobody on line a round waits this long for somebody before it is held without anybody.
PATIENCE_SECONDS = 120.0


class Presence:
    """The SuperNodes of a run, brought up to date before each round.

    Parameters
    ----------
    nodes : who was there at the start. order : what a newcomer is asked with. say : takes a line for the log.
    clock : seconds, rising.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: SuperNodes,
        order: Order,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid = grid
        self._order = order
        self._say = say
        self._clock = clock
        self._known: dict[int, Description] = dict(zip(nodes.ids, nodes.descriptions, strict=True))
        self._agreed = (nodes.descriptions[0].catalogue, nodes.descriptions[0].num_items)
        self._present = set(nodes.ids)
        self._asked: dict[str, int] = {}
        self._not_before: dict[int, float] = {}

    def update(self, patience: float = PATIENCE_SECONDS, pause: float = 1.0) -> SuperNodes:
        """Who takes part in the round that begins now.

        Parameters
        ----------
        patience : seconds to wait for somebody where nobody is on line. pause : seconds between two looks.
        """
        deadline = self._clock() + patience
        waiting = False
        while True:
            nodes = self._look()
            if nodes.ids or self._clock() >= deadline:
                return nodes
            if not waiting:
                self._say(f"no SuperNode is on line: waiting up to {patience:g} s for one")
                waiting = True
            time.sleep(pause)

    def _look(self) -> SuperNodes:
        online = set(self._grid.get_node_ids())
        self._take_answers()
        self._ask(online)
        present = sorted(node for node in self._known if node in online)
        for node in sorted(self._present - set(present)):
            self._say(f"SuperNode {node} is off line: it is not asked until it comes back")
        for node in sorted(set(present) - self._present):
            self._say(f"SuperNode {node} takes part from now on ({self._known[node].users} users)")
        self._present = set(present)
        return SuperNodes(present, [self._known[node] for node in present], [])

    def _take_answers(self) -> None:
        for message_id, node in list(self._asked.items()):
            try:
                replies = list(self._grid.pull_messages([message_id]))
                if replies:
                    self._known[node] = self._checked(replies[0])
            except RefusedError as error:
                self._turn_away(message_id, str(error))
            except Exception as error:  # Flower's grid raises where it cannot read a reply
                self._turn_away(message_id, f"its answer cannot be read ({type(error).__name__}: {error})")
            else:
                if replies:
                    del self._asked[message_id]

    def _turn_away(self, message_id: str, reason: str) -> None:
        node = self._asked.pop(message_id)
        self._say(f"SuperNode {node} does not take part: {messages.one_line(reason)}")
        self._not_before[node] = self._clock() + ASK_AGAIN_SECONDS

    def _checked(self, reply: Message) -> Description:
        description = messages.decode_description(reply)
        catalogue = (description.catalogue, description.num_items)
        if catalogue != self._agreed:
            raise RefusedError(
                f"it has another catalogue ({catalogue[0]}, {catalogue[1]} items) than this run ({self._agreed[0]}, "
                f"{self._agreed[1]} items): give it this run's items"
            )
        return description

    def _ask(self, online: set[int]) -> None:
        pending = set(self._asked.values())
        now = self._clock()
        for node in sorted(online - set(self._known) - pending):
            if self._not_before.get(node, now) <= now:
                (message_id,) = self._grid.push_messages([query(node, "default", self._order)])
                self._asked[message_id] = node
