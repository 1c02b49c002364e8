"""Strategies as a user would write them, good and bad, for the tests of foreign strategies."""

import random
from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy


class FromScratch(Strategy):
    """No base of Flower's: the mean of the clients' tables, a share of the way."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.table = None

    def configure_train(self, server_round, arrays, config, grid) -> Iterable[Message]:
        from flwr.app import RecordDict

        self.table = arrays["item-table"].numpy()
        return [
            Message(RecordDict({"arrays": arrays, "config": config}), node, "train") for node in grid.get_node_ids()
        ]

    def aggregate_train(self, server_round, replies) -> tuple[ArrayRecord | None, MetricRecord | None]:
        tables = [reply.content["arrays"]["item-table"].numpy() for reply in replies]
        if not tables:
            return None, None
        mean = np.mean(tables, axis=0)
        return ArrayRecord({"item-table": Array(self.table + self.share * (mean - self.table))}), None

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self) -> None:
        print(f"FromScratch, share {self.share}")


class Restless(FedAvg):
    """Draws from the global generator."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            table = arrays["item-table"].numpy()
            arrays = ArrayRecord({"item-table": Array(table + random.random() * 1e-3)})
        return arrays, metrics


class Answers(FedAvg):
    """Returns what `answer` says."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    def aggregate_train(self, server_round, replies):
        table = next(iter(replies)).content["arrays"]["item-table"].numpy()
        answers = {
            "nothing": None,
            "random": ArrayRecord({"item-table": Array(np.random.default_rng(server_round).normal(size=table.shape))}),
            "other key": ArrayRecord({"table": Array(table)}),
            "other shape": ArrayRecord({"item-table": Array(table[1:])}),
            "infinity": ArrayRecord({"item-table": Array(table + np.inf)}),
        }
        return answers[self.answer], None


class Sends(FedAvg):
    """Wants to talk to clients itself."""

    def configure_train(self, server_round, arrays, config, grid):
        grid.send_and_receive(super().configure_train(server_round, arrays, config, grid))
        return []


NOT_A_CLASS = 3


class NoStrategy:
    """Not a subclass of Strategy."""
