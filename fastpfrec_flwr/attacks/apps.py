"""The ClientApp of a simulation with liars: the honest one with the attack around it. Without one it hands everything through.

What attacks take to compute is imported where one runs: this module stands in front of every message of a real device, where it
would double the seconds of the start and add a third to the memory.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.client.app import app as honest_client_app
from fastpfrec_flwr.client.opening import node_of, place_of, prepared_split
from fastpfrec_flwr.config import ConfigError, RunConfig, parse_run_config

if TYPE_CHECKING:
    from fastpfrec_flwr.attacks.claims import Claims
    from fastpfrec_flwr.attacks.clients import LyingClients


class AttackedClientApp(ClientApp):
    """A ClientApp whose lying users have their uploads rewritten; any other ClientApp's answers pass as they are.

    Parameters
    ----------
    honest : the ClientApp to wrap.
    """

    def __init__(self, honest: ClientApp = honest_client_app) -> None:
        super().__init__()
        self._honest = honest

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        config = _attacking(context)
        kind = message.metadata.message_type
        if config is None or kind not in ("train", "evaluate"):
            return self._honest(message, context)
        if "partition-id" not in context.node_config:
            content = messages.encode_refusal("attacks are for simulations: set attack = 'none' on real devices")
            return Message(content, reply_to=message)
        return self._train(message, context, config) if kind == "train" else self._evaluate(message, context, config)

    def _train(self, message: Message, context: Context, config: RunConfig) -> Message:
        from fastpfrec_flwr.attacks.replies import Sent

        table, order = messages.decode_train(message.content, config.embedding_dim)
        liars = self._liars(context, config, order)
        trained = liars.train_beside(table, order)
        reply = self._honest(message, context)
        if reply.has_error() or "uploads" not in reply.content:
            return reply
        uploads = cast(ArrayRecord, reply.content["uploads"])
        cover = cast(float, cast(ConfigRecord, reply.content["cover"])["cover-scale"])
        pointer = _array(uploads["pointer"], "int64", (None,))
        rows = _array(uploads["rows"], "int32", (None,))
        if not len(rows):  # whole tables come without row numbers
            rows = np.tile(np.arange(len(table), dtype=np.int32), len(pointer) - 1)
        sent = Sent(_array(uploads["nonces"], "uint64", (None,)), pointer, rows, _values(uploads, config))
        forged = liars.forge(sent, table, order, cover, trained)
        if forged is not sent:
            reply.content["uploads"] = ArrayRecord(
                {
                    "nonces": messages.encode_array(forged.nonces),
                    "pointer": messages.encode_array(forged.pointer),
                    "rows": messages.encode_array(forged.rows),
                    **_encoded(forged.values, config.upload_precision),
                }
            )
        return reply

    def _evaluate(self, message: Message, context: Context, config: RunConfig) -> Message:
        if config.attack in ("promotion", "shilling"):
            table, order, parts = messages.decode_evaluate(message.content, config.embedding_dim)
            if "test" in parts:
                place = place_of(context.node_config, config)
                self._liars(context, config, order).measure_exposure(
                    table, order, place.state_root, place.partition, place.num_partitions
                )
        return self._honest(message, context)

    @cached_property
    def _claims(self) -> Claims:
        """What the liars of all its messages have claimed."""
        from fastpfrec_flwr.attacks.claims import Claims

        return Claims()

    def _liars(self, context: Context, config: RunConfig, order: messages.Order) -> LyingClients:
        from fastpfrec_flwr.attacks.clients import LyingClients

        place = place_of(context.node_config, config)
        node = node_of(config, order, place)
        return LyingClients(node, prepared_split(config, order, place).directory, self._claims)


def _attacking(context: Context) -> RunConfig | None:
    """The configuration, if clients lie in it; what is wrong with it the honest app says."""
    if context.run_config.get("attack", "none") == "none":
        return None
    try:
        return parse_run_config(context.run_config)
    except ConfigError:
        return None


def _values(uploads: ArrayRecord, config: RunConfig) -> NDArray[np.float32]:
    values = _array(uploads["values"], config.upload_precision, (None, config.upload_width))
    if config.upload_precision == "int8":
        from fastpfrec_flwr.privacy.eight_bits import from_eight_bits

        return from_eight_bits(values, _array(uploads["exponents"], "int8", (None,)))
    found: NDArray[np.float32] = values
    return found


def _encoded(values: NDArray[np.float32], precision: str) -> dict[str, Array]:
    if precision == "int8":
        from fastpfrec_flwr.privacy.eight_bits import to_eight_bits

        multiples, exponents = to_eight_bits(values)
        return {"values": messages.encode_array(multiples), "exponents": messages.encode_array(exponents)}
    return {"values": messages.encode_array(values.astype(precision, copy=False))}


def _array(array: Array, dtype: str, shape: tuple[int | None, ...]):  # type: ignore[no-untyped-def]
    return messages.decode_array(array, "uploads", dtype, shape)


client_app = AttackedClientApp()
