"""Small contents of messages, and the way back."""

import dataclasses
import struct

import numpy as np
from flwr.app import Message

from fastpfrec_flwr import messages
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.messages import Order, TrainReport
from fastpfrec_flwr.privacy.mechanism import Clip, LaplaceMechanism

ITEMS, K, ROUND, CLIENTS = 12, 4, 7, 3
COVER = 0.1
BODY = np.zeros((6, K), np.float32).tobytes()
ORDER = Order("code", "state", "train", ROUND, CLIENTS)


def answer(content):
    """A reply as the server gets it."""
    question = Message(messages.encode_query(ORDER), dst_node_id=2, message_type="train")
    return Message(content, reply_to=question)


@dataclasses.dataclass
class Changes:
    rows: np.ndarray
    pointer: np.ndarray
    changes: np.ndarray


def changes():
    """Three clients with 3, 1 and 2 rows."""
    rows = np.array([1, 4, 7, 0, 10, 11], np.int32)
    values = np.arange(6 * K, dtype=np.float32).reshape(6, K) / 64
    return Changes(rows, np.array([0, 3, 4, 6]), values)


def privatized(mechanism=None, keys=(1, 2, 3)):
    mechanism = mechanism or LaplaceMechanism(Clip(0, 0), COVER, dense=True)
    chosen = None if keys is None else np.array(keys, np.uint64)
    return mechanism.privatize(changes(), np.array([11, 22, 33], np.uint64), chosen, ITEMS)


def good_content():
    return messages.encode_uploads(privatized(), TrainReport(ROUND, 0, 1.5, 9))


def decode(content, server_round=ROUND, clients=CLIENTS, cover=COVER):
    return messages.decode_uploads(answer(content), server_round, clients, ITEMS, K, cover)


def arrays_of(content):
    return {name: array.numpy().copy() for name, array in content["uploads"].items()}


def npy(header, body=b""):
    """A version-1 npy file with any header, padded as NumPy does."""
    text = header if isinstance(header, bytes) else repr(header).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def sums_of(users):
    half = 1 << 39
    return MetricSums(
        users, 3 * users, {10: users, 20: 2 * users}, {10: users, 20: users},
        {10: half * users, 20: half * users + users}, {10: 7 * users, 20: 5 * users},
    )  # fmt: skip
