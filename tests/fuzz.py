"""Hostile inputs for everything that decodes: `python -m tests.fuzz --inputs 1000000`.

Each input is a real encoded message that somebody spoiled: bytes, sizes, types, keys and figures. It must be refused with a reason
or decode to something sound; any other error, an allocation beyond a gigabyte or a minute without progress is a finding. Input i of
a seed is the same always: `--only i` runs it alone.

`--engine atheris` lets libFuzzer look for inputs instead, by which lines of the decoders they reach (extra `fuzz`).
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fastpfrec_flwr import messages
from fastpfrec_flwr.evaluation.metrics import MetricSums
from fastpfrec_flwr.messages import Order, RefusedError
from tests.hostile import COVER, ITEMS, K, description, honest_content
from tests.spoiling import CLIENTS, spoil_array, spoil_bytes, spoil_content
from tests.wire import from_wire, to_wire, with_body

ROUND, SECONDS = 7, 60


def identity() -> None:
    """Flower builds messages inside a run only; this stands for one."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def honest_reply(server_round: int = ROUND) -> RecordDict:
    """The reply of a SuperNode with three clients."""
    parts = [honest_content(partition, server_round) for partition in range(CLIENTS)]
    found = [{name: each.numpy() for name, each in part["uploads"].items()} for part in parts]
    joined = {name: np.concatenate([each[name] for each in found]) for name in ("nonces", "rows", "values")}
    joined["pointer"] = np.cumsum([0, *(len(each["rows"]) for each in found)])
    parts[0]["uploads"] = ArrayRecord({name: Array(each) for name, each in joined.items()})
    return parts[0]


class Seeds:
    """Honest messages, encoded once."""

    def __init__(self) -> None:
        identity()
        order = Order("code", "state", "train", ROUND, CLIENTS)
        self.question = Message(messages.encode_query(order), dst_node_id=2, message_type="train")
        self.reply = honest_reply()
        table = np.zeros((ITEMS, K), np.float32)
        sums = MetricSums(3, 9, {10: 3, 20: 6}, {10: 3, 20: 3}, {10: 1 << 39, 20: 1 << 39}, {10: 7, 20: 5})
        self.others = [
            (messages.decode_metric_sums, messages.encode_metric_sums({"test": sums, "validation": sums}), True),
            (messages.decode_description, messages.encode_description(description(0)), True),
            (_catalogue, messages.encode_catalogue(["a", "b"], "{}"), True),
            (messages.decode_query, messages.encode_query(order), False),
            (_train, messages.encode_train(messages.encode_model(table), order), False),
            (_evaluate, messages.encode_evaluate(messages.encode_model(table), order, ["test"]), False),
        ]
        reply = Message(self.reply, reply_to=self.question)
        # The bytes of a message hold its time; input i is the same in every process.
        reply.metadata.created_at, reply.metadata.ttl = 0.0, 3600.0
        self.name, self.contents = to_wire(reply)
        self.array_bytes = [each.data for each in self.reply["uploads"].values()]

    def message(self, content: RecordDict) -> Message:
        """A reply with this content."""
        return Message(content, reply_to=self.question)


def _catalogue(reply: Message) -> None:
    messages.decode_catalogue(reply, 2)


def _train(content: RecordDict) -> None:
    messages.decode_train(content, K)


def _evaluate(content: RecordDict) -> None:
    messages.decode_evaluate(content, K)


# ---- what must hold --------------------------------------------------------------------------------------------------


def check_array(array: Array, shape: tuple[int | None, ...] = (None, K)) -> str:
    """Decode one array."""
    try:
        found = messages.decode_array(array, "it", "float32", shape)
    except RefusedError:
        return "array refused"
    assert found.dtype == np.float32
    assert found.shape == tuple(array.shape)
    assert found.nbytes <= len(array.data)
    assert found.flags.aligned
    return "array taken"


def check_reply(reply: Message) -> str:
    """Decode the reply of a SuperNode with three clients."""
    try:
        decoded = messages.decode_uploads(reply, ROUND, CLIENTS, ITEMS, K, COVER, 1, "float32", 0)
    except RefusedError as error:
        reason = str(error)
        assert 0 < len(reason) <= messages.LONGEST_REASON and reason.isprintable()  # noqa: PT018
        return "reply refused"
    uploads = decoded.uploads
    assert uploads.num_clients + len(decoded.refused) <= CLIENTS
    assert len(uploads.pointer) == uploads.num_clients + 1
    assert len(uploads.rows) == len(uploads.values) == uploads.pointer[-1]
    assert np.isfinite(uploads.values).all()
    assert (np.abs(uploads.values) <= messages.LARGEST_VALUE).all()
    assert ((uploads.rows >= 0) & (uploads.rows < ITEMS)).all()
    for start, stop in zip(uploads.pointer[:-1], uploads.pointer[1:], strict=True):
        assert stop > start
        assert (np.diff(uploads.rows[start:stop]) > 0).all()
    report = decoded.report
    assert 0 <= report.budget_spent <= report.skipped <= CLIENTS
    assert np.isfinite(report.loss_sum)
    return "reply taken, some clients refused" if decoded.refused else "reply taken"


def one_input(rng: Random, seeds: Seeds) -> str:
    """Make one input, decode it, and say what became of it."""
    kind = rng.randrange(100)
    if kind < 35:
        array = spoil_array(rng, seeds.reply["uploads"]["values"], seeds.array_bytes)
        return check_array(array)
    if kind < 78:
        return check_reply(seeds.message(spoil_content(rng, seeds.reply, seeds.array_bytes)))
    if kind < 88:
        contents = dict(seeds.contents)
        name = rng.choice(sorted(contents))
        old = contents[name]
        within = rng.random() < 0.7
        contents[name] = with_body(old, lambda body: spoil_bytes(rng, body)) if within else spoil_bytes(rng, old)
        try:
            reply = from_wire(seeds.name, contents)
        except Exception:  # what Flower's grid raises, `server.nodes.Exchange` takes
            return "unreadable for Flower"
        return check_reply(reply)
    decode, content, is_reply = rng.choice(seeds.others)
    spoiled = spoil_content(rng, content, seeds.array_bytes)
    try:
        decode(seeds.message(spoiled) if is_reply else spoiled)
    except RefusedError:
        return "other message refused"
    return "other message taken"


def run(inputs: int, seed: int, only: int | None = None, tell: bool = True) -> Counter[str]:
    """Run `inputs` inputs, or the one numbered `only`; what became of them.

    Raises
    ------
    Whatever a decoder raises, with the input's number added.
    """
    seeds = Seeds()
    for each in (seeds.reply, honest_reply()):
        assert check_reply(seeds.message(each)) == "reply taken", "the honest message must be taken"
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(inputs) if only is None else [only]:
        if number % 1000 == 0:
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            if tell and number and number % 100_000 == 0:
                print(f"{number:,} inputs, {number / (time.monotonic() - began):,.0f} a second", flush=True)
        try:
            outcomes[one_input(Random(f"{seed}:{number}"), seeds)] += 1
        except BaseException as error:
            error.add_note(f"input {number} of seed {seed}: python -m tests.fuzz --seed {seed} --only {number}")
            raise
    faulthandler.cancel_dump_traceback_later()
    return outcomes


def bound_memory(gigabytes: float = 1.0) -> None:
    """No allocation may go that far beyond what the process has now (Linux)."""
    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_atheris(inputs: int, seed: int) -> None:
    """Let libFuzzer look for inputs; it ends the process itself."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install 'fastpfrec-flwr[fuzz]', or leave --engine out")
    # What decodes is instrumented in place: it has been imported already.
    for module in ("arrays", "records", "uploads"):
        source = sys.modules[f"fastpfrec_flwr.messages.{module}"]
        for value in list(vars(source).values()):
            if getattr(value, "__module__", "") == source.__name__ and type(value).__name__ == "function":
                atheris.instrument_func(value)
    seeds = Seeds()
    names = sorted(seeds.reply["uploads"])

    figures = sorted(seeds.reply["train"])

    def test_one_input(data: bytes) -> None:
        """Three bytes choose an array, its declared shape and a figure; a number for both; then the array's bytes."""
        if len(data) < 11:
            return
        name, shape_kind, figure = names[data[0] % len(names)], data[1] % 5, data[2]
        (number,) = struct.unpack("<q", data[3:11])
        old = seeds.reply["uploads"][name]
        honest = tuple(old.shape)
        shape = {0: honest, 1: (number,), 2: (number, K), 3: (), 4: (*honest, number)}[shape_kind]
        content = RecordDict(dict(seeds.reply.items()))
        if figure < 2 * len(figures):
            value = number if figure % 2 else struct.unpack("<d", data[3:11])[0]
            content["train"] = MetricRecord({**dict(seeds.reply["train"].items()), figures[figure // 2]: value})
        array = Array(dtype=old.dtype, shape=shape, stype=old.stype, data=data[11:])
        content["uploads"] = ArrayRecord({**dict(seeds.reply["uploads"].items()), name: array})
        check_array(array)
        check_reply(seeds.message(content))

    with tempfile.TemporaryDirectory() as corpus:
        for i, name in enumerate(names):
            Path(corpus, name).write_bytes(bytes([i, 0, 255]) + bytes(8) + seeds.reply["uploads"][name].data)
        options = ["-max_len=700", "-rss_limit_mb=4096", f"-timeout={SECONDS}", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", *options, corpus], test_one_input)
        atheris.Fuzz()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of one input")
    parser.add_argument("--engine", choices=["mutations", "atheris"], default="mutations")
    given = parser.parse_args()
    if given.engine == "atheris":
        run_atheris(given.inputs, given.seed)
        return
    run(1, 0, tell=False)  # compile before memory is bounded
    bound_memory()
    began = time.monotonic()
    outcomes = run(given.inputs, given.seed, given.only)
    seconds = time.monotonic() - began
    for outcome, count in outcomes.most_common():
        print(f"{count:>12,} {outcome}")
    print(f"{sum(outcomes.values()):,} inputs without a finding in {seconds:.0f} s")


if __name__ == "__main__":
    main()
