"""Replies as they come over a real wire: taken apart into bytes, maybe tampered with, and put together by Flower's own code."""

from collections.abc import Callable, Iterable

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fastpfrec_flwr.simulation.grid import InProcessGrid

Contents = dict[str, bytes]
_DIVIDER = b"\0"


def to_wire(message: Message) -> tuple[str, Contents]:
    """The id of the message's object, and the bytes of it and of every object inside."""
    objects = get_all_nested_objects(message)
    return message.object_id, {name: each.deflate() for name, each in objects.items()}


def from_wire(name: str, contents: Contents) -> Message:
    """Put a message together; raises whatever Flower raises on bytes that it cannot read."""
    return inflate_object_from_contents(name, dict(contents))


def with_body(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An object whose body is changed, with the head that a sender would write for it."""
    head, body = content.split(_DIVIDER, 1)
    kind, children, _ = head.decode().split(" ")
    body = change(body)
    return f"{kind} {children} {len(body)}".encode() + _DIVIDER + body


class WireGrid(InProcessGrid):
    """Delivers at once, and hands out replies as Flower's HTTP grid does.

    A reply that cannot be put together makes it raise, and what was pulled along with it is gone: asked for again, it is
    "unavailable". `tamper` changes a SuperNode's bytes, `silent` SuperNodes never answer.
    """

    tamper: Callable[[int, Contents], Contents] | None = None
    silent: frozenset[int] = frozenset()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid does, but for those who hang."""
        self._gone: set[str] = set()
        ids = []
        for message in messages:
            partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            if partition in self.silent:
                ids.append(f"never-{partition}")
            else:
                ids += super().push_messages([message])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, through bytes."""
        wanted = list(message_ids)
        found = [(i, self._replies.pop(i)) for i in wanted if i in self._replies]
        unavailable = [self._unavailable(i) for i in wanted if i in self._gone]
        self._gone -= set(wanted)
        self._gone |= {i for i, _ in found}
        arrived = [self._through_bytes(reply) for _, reply in found]
        self._gone -= {i for i, _ in found}
        return arrived + unavailable

    def _through_bytes(self, reply: Message) -> Message:
        name, contents = to_wire(reply)
        if self.tamper is not None:
            contents = self.tamper(self.contexts[reply.metadata.src_node_id].node_config["partition-id"], contents)
        message = from_wire(name, contents)
        message.metadata.__dict__["_message_id"] = name
        return message

    def _unavailable(self, message_id: str) -> Message:
        question = next(iter(self.contexts))
        message = Message(
            Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason="Message Unavailable"),
            reply_to=Message(_empty(), question, "train"),
        )
        message.metadata.__dict__["_reply_to_message_id"] = message_id
        return message


def _empty():
    from flwr.app import RecordDict

    return RecordDict()
