"""A strategy whose devices upload: its round of one exchange, and the whole run. What becomes of the uploads is a subclass's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from threading import Event

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fastpfrec_flwr import messages
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.assignment import assignment_key
from fastpfrec_flwr.server.beginning import begin_run
from fastpfrec_flwr.server.device_strategy import DeviceStrategy
from fastpfrec_flwr.server.logbook import Logbook
from fastpfrec_flwr.server.receiving import Expected, Received, Receiver
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.server.training import Training


class UploadStrategy(DeviceStrategy):
    """What our tier and other strategies share: one message per SuperNode, uploads decoded as they arrive.

    Parameters
    ----------
    config : the run's. folder : where the run leaves its files; None leaves none. threads : of the server's own arithmetic.

    Attributes
    ----------
    stop : set it to stop after the round that runs. outcome : of the last round.
    """

    def __init__(self, config: RunConfig, folder: RunFolder | None = None, threads: int = 1) -> None:
        super().__init__(config)
        self._threads = threads
        self.folder = folder
        self.stop = Event()
        self._receiver = Receiver(config, threads)
        self.outcome: RoundOutcome | None = None

    @abstractmethod
    def _aggregate(self, server_round: int, received: Received) -> RoundOutcome:
        """Move the model (`_state`) by what was received."""

    def begin(self, phase: str, state: ServerState) -> None:
        """Begin a phase (`train`, `refit`) from a state."""
        super().begin(phase, state)
        self._receiver.forget()

    # ---- one round ---------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per SuperNode; the table in `arrays` is encoded once and shared by them.

        `config` may hold `report-loss`, `snapshot` (bool) and `restore` (int), see `messages.Order`.
        """
        flags = {
            "report_loss": bool(config.get("report-loss", False)),
            "snapshot": bool(config.get("snapshot", False)),
            "restore": int(config.get("restore", 0)),  # type: ignore[arg-type]
        }
        return [
            Message(messages.encode_train(arrays, self.order(server_round, clients, **flags)), node, "train")  # type: ignore[arg-type]
            for node, clients in self._shares(server_round).items()
        ]

    def _shares(self, server_round: int) -> dict[int, int]:
        """SuperNode -> clients that it is asked for."""
        shares = self._nodes.shares(self._clients_wanted, self._config.seed, server_round)
        return dict(zip(self._nodes.ids, shares, strict=True))

    @property
    def _clients_wanted(self) -> int:
        """Clients that this round asks for."""
        return self._config.clients_per_round

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, average and step. Replies are decoded as the iterable yields them; a bad one costs its clients only.

        Returns
        -------
        The new table, or None where nothing healthy arrived (the model then stays); counts of the round. `self.outcome` has
        the details.
        """
        deployed = self._nodes.deployed
        expected = Expected(
            server_round,
            self.order(server_round).table_version,
            len(self.state.item_table),
            self._nodes.most_uploads(self._clients_wanted, self._config.seed, server_round),
            deployed,
            assignment_key(self._config, deployed, self._phase, server_round),
        )
        self.outcome = self._aggregate(server_round, self._receiver.receive(replies, expected))
        counts = MetricRecord(
            {
                "clients": self.outcome.trained,
                "refused": len(self.outcome.refused),
                "isolated": self.outcome.isolated,
                "isolated-nodes": self.outcome.isolated_nodes,
            }
        )
        return (self.encode_model() if self.outcome.moved else None), counts

    def run_round(self, grid: Grid, server_round: int, **flags: bool | int) -> RoundOutcome:
        """Run one whole round, see `DeviceStrategy`."""
        config = ConfigRecord({key.replace("_", "-"): value for key, value in flags.items()})
        outgoing = self.configure_train(server_round, self.encode_model(), config, grid)
        self.aggregate_train(server_round, self._exchange(grid, outgoing, self._config.round_timeout))
        assert self.outcome is not None
        return self.outcome

    # ---- the whole run -----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the whole training: `begin_run`, and the rounds of `Training`.

        Parameters
        ----------
        initial_arrays : `item-table` to begin with; None draws it from the seed.
        evaluate_fn : called after each evaluated round with round and arrays, for metrics of one's own.

        The number of rounds, time-outs and what is evaluated come from the run configuration; anything else here is refused.

        Raises
        ------
        ValueError if `num_rounds`, `timeout`, `train_config` or `evaluate_config` is given.
        """
        if num_rounds or timeout or train_config or evaluate_config:
            raise ValueError(
                "num_rounds, timeout, train_config and evaluate_config come from the run configuration: "
                "set num-rounds, round-timeout and evaluate-every there"
            )
        log = Logbook(self._config, self.folder)
        beginning = begin_run(self, grid, self._config, log, initial_arrays)
        return Training(self, grid, beginning, log, self.stop, evaluate_fn).run()
