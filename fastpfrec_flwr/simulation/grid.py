"""An in-process Grid: the real ServerApp and the real ClientApp, without Ray, SuperLink or serialisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import count

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fastpfrec_flwr.parallel import in_parallel, one_thread_products, side_by_side

# Flower's node ids take all 64 bits: what would count them in fewer fails here too.
FIRST_NODE = (1 << 63) + 1_000


class InProcessGrid(Grid):
    """Calls `client_app` directly for `num_nodes` simulated SuperNodes.

    Parameters
    ----------
    threads : where there are at least as many messages, SuperNodes work side by side, one thread each: what they do between
        their kernels then overlaps too; who is done first helps the others. With fewer messages each has all threads to itself.
    """

    in_process = True  # its nodes are there from the start: nobody needs to wait for them

    def __init__(
        self, client_app: ClientApp, num_nodes: int, run_config: UserConfig, run_id: int = 1, threads: int = 1
    ) -> None:
        TaskIdentity.run_id = run_id  # `Message(...)` reads these three
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1
        self._run = Run.create_empty(run_id=run_id)
        self._client_app = client_app
        self._threads = threads
        self._ids = count(1)
        self._replies: dict[str, Message] = {}
        self._stops: list[Callable[[], None]] = []
        self.contexts = {
            node: Context(
                run_id=run_id,
                node_id=node,
                node_config={"partition-id": i, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i, node in enumerate(range(FIRST_NODE, FIRST_NODE + num_nodes))
        }

    def on_interrupt(self, stop: Callable[[], None]) -> None:
        """Have `stop` called when somebody wants the run to end after the round that runs."""
        self._stops.append(stop)

    def interrupt(self) -> None:
        """Ask the ServerApp to end after the round that runs; nothing happens before it has said how."""
        for stop in self._stops:
            stop()

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message (deprecated in Flower, abstract in `Grid`)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, in a fixed order."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message at once and keep its reply."""
        outgoing = [(str(next(self._ids)), message) for message in messages]

        def run(sent: tuple[str, Message]) -> None:
            message_id, message = sent
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._deliver(message)

        # Queries open and prepare files for the first time; they come one after the other.
        together = 1 < self._threads <= len(outgoing) and all(
            message.metadata.message_type in ("train", "evaluate") for _, message in outgoing
        )
        if together:
            with one_thread_products():
                side_by_side(run, outgoing, self._threads)
        else:
            in_parallel(run, outgoing, 1)
        return [message_id for message_id, _ in outgoing]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies that are there, once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        inbound = copy(message)  # the receiver may add or drop records; the arrays (bytes) are shared, not copied
        inbound.content = RecordDict(dict(message.content))
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply = self._client_app(inbound, context)
        except Exception as ex:  # as flwr/server/superlink/fleet/vce/vce_api.py does
            reason = f"{type(ex)}:<'{ex}'>"
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=inbound)
        reply.metadata.__dict__["_message_id"] = f"r{message.metadata.message_id}"
        return reply


def run_in_process(server_app: ServerApp, grid: InProcessGrid, run_config: UserConfig, run_id: int = 1) -> RecordDict:
    """Drive a whole run; exceptions of the ServerApp reach the caller. Returns the state that the ServerApp leaves."""
    context = Context(
        run_id=run_id, node_id=SUPERLINK_NODE_ID, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )
    server_app(grid, context)
    return context.state
