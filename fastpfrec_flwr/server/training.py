"""The loop around the rounds: discovery, evaluation, early stop, refit, checkpoints, resume, and the files of the run."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.catalogue import Catalogue, CatalogueError, hash_of
from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.server.beginning import known_rows, starting_table
from fastpfrec_flwr.server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fastpfrec_flwr.server.device_strategy import DeviceStrategy
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.health import MetricsFile, health_line, round_health
from fastpfrec_flwr.server.nodes import STABLE_SECONDS, SuperNodes, discover, fetch_catalogue
from fastpfrec_flwr.server.presence import Presence
from fastpfrec_flwr.server.progress import final_table, header, progress_line
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.run_folder import STOP, RunFolder
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.server.summary import Progress, Subject, summarise
from fastpfrec_flwr.server.trackers import Trackers

# Lines of one round about refusals: whoever lies may give a new reason with every message.
_MOST_WARNINGS = 10
# What rounds are chosen by.
CRITERION = "ndcg@20"


class Training:
    """One run, from discovery to the summary.

    Parameters
    ----------
    strategy : what runs a round. folder : where files go, or None. stop : set it to stop after the round that runs.
    """

    def __init__(
        self, strategy: DeviceStrategy, grid: Grid, config: RunConfig, folder: RunFolder | None, stop: Event
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self._config = config
        self._folder = folder
        self._stop = stop
        self._progress = Progress()
        self._best_table: NDArray[np.float32] | None = None
        self._best_counts: NDArray[np.float64] | None = None
        self._state_id = uuid.uuid4().hex[:12]
        self._item_ids: list[str] = []
        self._layout = build_layout(config)
        self._facts: dict[str, Any] = {}
        self._restore = 0
        self._data = ""
        self._users = 0
        self._told_skips: set[str] = set()
        self._result = Result()
        self._trackers = Trackers(config, None if folder is None else folder.path, self._say)
        self._presence: Presence | None = None
        self._supernodes = 0
        self._metrics_file = MetricsFile(Path(config.metrics_file)) if config.metrics_file else None

    def run(
        self,
        initial_arrays: ArrayRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train, refit if asked to, and leave the files.

        With real devices `flwr stop` is the end of the process (`SystemExit`, and five seconds to leave): nothing can be asked or
        sent any more, the round that runs is lost, and what the rounds before it came to is written.

        Raises
        ------
        RunError, ConfigError with a message for the user.
        """
        began = time.monotonic()
        checkpoint = load_checkpoint(Path(self._config.resume_from), self._config) if self._config.resume_from else None
        if checkpoint is not None:
            self._state_id = checkpoint.state_id
        state = self._meet(initial_arrays, checkpoint)
        earlier = self._progress.total_seconds
        ending: KeyboardInterrupt | SystemExit | None = None
        try:
            if self._progress.phase == "train":
                self._phase("train", state, self._config.num_rounds, evaluate_fn, began - earlier)
                if not self._stop.is_set():
                    self._after_train()
                state = self._first_state()
            if self._progress.phase == "refit" and not self._stop.is_set():
                self._phase("refit", state, self._progress.best_round, evaluate_fn, began - earlier)
                self._finish_refit()
        except (KeyboardInterrupt, SystemExit) as interruption:
            ending = interruption
        self._progress.total_seconds = earlier + time.monotonic() - began
        stopped = ending is not None or self._stop.is_set()
        if isinstance(ending, SystemExit):
            self._leave(stopped)
            raise ending
        if stopped:
            self._release()
        self._leave(stopped)
        return self._result

    # ---- beginning ---------------------------------------------------------------------------------------------------

    def _meet(self, initial_arrays: ArrayRecord | None, checkpoint: Checkpoint | None) -> ServerState:
        """Find the SuperNodes and agree on the catalogue; the state to go on from."""
        simulated = getattr(self._grid, "in_process", False)
        catalogue = self._own_catalogue()
        order = self._strategy.order(0)
        nodes = discover(self._grid, order, 0.0 if simulated else STABLE_SECONDS, self._config.round_timeout)
        for reason in dict.fromkeys(nodes.refused):
            self._say(f"a SuperNode does not take part: {reason}")
        self._strategy.attach(nodes, self._state_id)
        self._supernodes = len(nodes.ids)
        if nodes.deployed:
            self._presence = Presence(self._grid, nodes, order, self._say)
        first = nodes.descriptions[0]
        self._strategy.use_catalogue(first.catalogue, 0 if catalogue is None else catalogue.version)
        self._item_ids, report = self._items(nodes, order, catalogue)
        self._data, self._users = first.data, nodes.num_users
        if self._config.strategy == "fastpfrec" and self._config.num_trusted_nodes > nodes.num_users:
            raise RunError(
                f"num-trusted-nodes must be <= the users of the data set ({nodes.num_users}), "
                f"got {self._config.num_trusted_nodes}; lower num-trusted-nodes"
            )
        self._facts = {
            "data": {
                "name": first.data_set,
                "fingerprint": first.data,
                "catalogue": first.catalogue,
                "users": nodes.num_users,
                "items": first.num_items,
                "report": json.loads(report),
            },
            "super_nodes": len(nodes.ids),
            "deployed": nodes.deployed,
            "state_id": self._state_id,
        }
        if self._folder is not None:
            self._folder.write_config(self._config, self._facts)
            if catalogue is not None:
                catalogue.save(self._folder.path / "catalogue.json")
        self._trackers.begin(self._config.to_flat_dict())
        self._say(
            f"{first.data_set}: {nodes.num_users} users, {first.num_items} items on {len(nodes.ids)} SuperNodes; "
            f"{min(self._config.clients_per_round, nodes.num_users)} clients a round to "
            f"{self._strategy.route}"
        )
        self._say(self._subject.privacy_line())
        self._say(self._subject.ledger().whole_run_line())
        for note in self._strategy.notes():
            self._say(note)
        if nodes.deployed and self._folder is not None:
            self._say(f"run folder: {self._folder.path}; a file named {STOP} in it ends the run after a round")
        if self._config.user_metrics and nodes.deployed:
            self._say("user-metrics is ignored: on real devices nobody's metrics are kept apart")
        if self._config.train_items == "new":
            fixed = known_rows(self._item_ids, self._config)
            self._say(
                f"only rows that the initial model does not have are trained: {int((~fixed).sum())} of {len(fixed)}"
            )
            self._strategy.fix_rows(fixed)
        if checkpoint is None:
            if initial_arrays is None:
                return self._first_state()
            shape = (self._rows, self._config.embedding_dim)
            table = messages.decode_array(initial_arrays["item-table"], "item-table", "float32", shape)
            return ServerState.start(table.copy())
        if checkpoint.data != first.data or len(checkpoint.state.item_table) != self._rows:
            raise ConfigError(
                f"resume-from: {self._config.resume_from} was trained on other data than {first.data_set}"
            )
        self._progress = Progress.from_dict(checkpoint.progress)
        self._best_table = checkpoint.best_table
        self._restore = self._progress.server_round
        if self._folder is not None:
            self._folder.start_metrics(self._progress.lines)
        self._say(f"going on after round {self._progress.server_round} of phase {self._progress.phase}")
        if self._config.strategy != "fastpfrec":
            self._say("what the strategy itself remembers (moments, momentum) is in no checkpoint and starts anew")
        return checkpoint.state

    def _items(self, nodes: SuperNodes, order: Order, own: Catalogue | None) -> tuple[list[str], str]:
        """Item ids in row order, and what was said of the data (JSON). Real devices say nothing, so where the server has the
        catalogue itself nobody is asked: a message is seconds there."""
        agreed = nodes.descriptions[0].catalogue
        if own is not None and nodes.deployed and own.hash == agreed:
            return own.row_names, "{}"
        item_ids, report = fetch_catalogue(self._grid, nodes, order, self._config.round_timeout)
        if hash_of(item_ids) != agreed:
            raise RunError("a SuperNode handed out other item ids than it said it has: its app is broken, leave it out")
        return item_ids, report

    def _own_catalogue(self) -> Catalogue | None:
        """The server's catalogue file, if it has one; devices with another one then say so when they are asked."""
        if not self._config.catalogue:
            return None
        try:
            catalogue = Catalogue.load(Path(self._config.catalogue))
        except CatalogueError as error:
            raise ConfigError(f"catalogue: {error}") from error
        self._strategy.use_catalogue(catalogue.hash, catalogue.version)
        return catalogue

    @property
    def _rows(self) -> int:
        """Rows of the shared table."""
        return self._layout.rows(len(self._item_ids))

    def _first_state(self) -> ServerState:
        items = starting_table(self._item_ids, self._config)
        return ServerState.start(self._layout.start(items, self._config.seed))

    @property
    def _subject(self) -> Subject:
        config, facts = self._config, self._facts
        name = facts["data"]["name"] if facts["deployed"] else config.data_set
        return Subject(config, name, self._data, self._users, self._rows, bool(facts["deployed"]))

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _phase(
        self,
        phase: str,
        state: ServerState,
        num_rounds: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        began: float,
    ) -> None:
        """Run the rounds of a phase that are left."""
        progress = self._progress
        self._strategy.begin(phase, state)
        if phase == "train":
            self._say(header())
        for server_round in range(progress.server_round + 1, num_rounds + 1):
            if self._folder is not None and self._folder.take_stop():
                self._stop.set()
            if self._stop.is_set():
                return
            self._gather()
            tick = time.perf_counter()
            every = self._config.evaluate_every
            due = phase == "train" and ((every and server_round % every == 0) or server_round == num_rounds)
            keep = self._config.checkpoint_every
            checkpoint = bool(keep) and server_round % keep == 0
            outcome = self._strategy.run_round(
                self._grid,
                server_round,
                report_loss=bool(due) and self._config.report_loss,
                snapshot=checkpoint,
                restore=self._restore,
            )
            self._restore = 0
            progress.server_round = server_round
            progress.tally.add(outcome)
            progress.round_seconds.append(time.perf_counter() - tick)
            self._result.train_metrics_clientapp[len(progress.round_seconds)] = MetricRecord(
                {"clients": outcome.trained, "refused": len(outcome.refused), "isolated": outcome.isolated}
            )
            self._warn(server_round, outcome)
            self._tell_health(phase, server_round, num_rounds, outcome)
            if due:
                self._evaluate(server_round, outcome, num_rounds, time.monotonic() - began)
                if evaluate_fn is not None:
                    own = evaluate_fn(server_round, messages.encode_model(self._strategy.state.item_table))
                    if own is not None:
                        self._result.evaluate_metrics_serverapp[server_round] = own
            elif phase == "refit" and every and (server_round % every == 0 or server_round == num_rounds):
                self._say(f"refit on train + validation: round {server_round}/{num_rounds}")
            if checkpoint:
                progress.total_seconds = time.monotonic() - began
                self._save_checkpoint()
            if due and 0 < self._config.early_stop_patience <= progress.stale:
                self._say(f"no better validation {CRITERION} for {progress.stale} evaluations: stopped early")
                return

    def _gather(self) -> None:
        """On real devices: who is on line now takes part in the next round."""
        if self._presence is not None:
            nodes = self._presence.update()
            self._strategy.attach(nodes, self._state_id)
            self._supernodes = len(nodes.ids)

    def _tell_health(self, phase: str, server_round: int, num_rounds: int, outcome: RoundOutcome) -> None:
        """A line for each round of a deployment and wherever the log is for machines; simulations have too many of them."""
        config = self._config
        figures = round_health(
            phase, server_round, num_rounds, self._supernodes, outcome, self._progress.round_seconds[-1],
            messages.row_bytes(config.upload_precision, config.upload_width),
        )  # fmt: skip
        if self._presence is not None or config.log_format == "json":
            self._say(health_line(figures), "round", **figures)
        if self._metrics_file is not None:
            self._metrics_file.write(figures)

    def _warn(self, server_round: int, outcome: RoundOutcome) -> None:
        if outcome.events:
            self._say(f"round {server_round}: {', '.join(outcome.events)}")
        counts = Counter(outcome.refused)
        for reason, count in list(counts.items())[:_MOST_WARNINGS]:
            self._say(f"round {server_round}: {count} refused: {reason}")
        if len(counts) > _MOST_WARNINGS:
            self._say(f"round {server_round}: refused for {len(counts) - _MOST_WARNINGS} more reasons")
        if new := set(outcome.skips) - self._told_skips:
            # Once: with a budget that is spent it would be said in every round from then on. The counts are in metrics.jsonl.
            self._told_skips |= new
            told = ", ".join(f"{outcome.skips[reason]} {reason}" for reason in sorted(new))
            self._say(f"round {server_round}: clients that did not train: {told}")
        if not outcome.moved and self._config.model != "local-only":
            self._say(f"round {server_round}: {outcome.why_unmoved}; the model stays as it was")

    def _evaluate(self, server_round: int, outcome: RoundOutcome, num_rounds: int, elapsed: float) -> None:
        progress = self._progress
        validation = self._strategy.evaluate(self._grid, server_round, ["validation"])["validation"]
        before = progress.best.get(CRITERION, math.nan)
        better = not progress.best or validation[CRITERION] > before or math.isnan(before)
        if better:
            progress.best_round, progress.best, progress.stale = server_round, validation, 0
            if not self._config.refit:
                # The devices' own vectors move on, so the test figures of a round can only be had now; chosen by is validation.
                progress.test = self._strategy.evaluate(self._grid, server_round, ["test"])["test"]
                self._keep_best()
        else:
            progress.stale += 1
        for reason in dict.fromkeys(self._strategy.evaluation_refused):
            self._say(f"round {server_round}: evaluation refused: {reason}")
        self._strategy.evaluation_refused.clear()
        self._result.evaluate_metrics_clientapp[server_round] = MetricRecord(
            {key: value for key, value in validation.items() if math.isfinite(value)}
        )
        line = {
            "phase": "train",
            "round": server_round,
            "loss": outcome.loss,
            "validation": validation,
            "clients": outcome.trained,
            "refused": progress.tally.refused,
            "isolated": progress.tally.isolated,
            "isolated_nodes": progress.tally.isolated_nodes,
            "lost": progress.tally.lost,
            "skipped": dict(progress.tally.skips),
            "nodes_away": progress.tally.nodes_away,
            "nodes_quarantined": progress.tally.nodes_quarantined,
            "seconds": elapsed,
            "round_seconds": float(np.median(progress.round_seconds)),
        }
        progress.lines.append(line)
        if self._folder is not None:
            self._folder.add_metrics(line)
        self._trackers.round(line)
        self._say(progress_line(line, num_rounds), "evaluation", **line)

    def _after_train(self) -> None:
        progress = self._progress
        self._release()
        if not self._config.refit:
            progress.phase = "done"
            return
        progress.phase, progress.server_round = "refit", 0
        self._say(f"refit: training anew on train + validation for {progress.best_round} rounds")

    def _finish_refit(self) -> None:
        if self._stop.is_set() or self._progress.server_round < self._progress.best_round:
            return
        self._progress.test = self._strategy.evaluate(self._grid, self._progress.server_round, ["test"])["test"]
        self._keep_best()
        self._progress.phase = "done"
        self._release()

    def _keep_best(self) -> None:
        """The tables that the test figures belong to."""
        self._best_table = self._strategy.state.item_table
        self._best_counts = self._strategy.state.item_counts

    def _release(self) -> None:
        """Let simulated devices drop their state, unless a checkpoint may still be gone on from."""
        if not self._config.checkpoint_every:
            self._strategy.release(self._grid)

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        if self._folder is None:
            return
        save_checkpoint(
            self._folder.checkpoint,
            Checkpoint(
                self._strategy.state,
                self._best_table,
                self._progress.to_dict(),
                self._state_id,
                self._data,
                self._config.to_flat_dict(),
            ),
        )

    def _leave(self, stopped: bool) -> None:
        progress = self._progress
        table = self._best_table if self._best_table is not None else self._strategy.state.item_table
        # Counts of the best round are in no checkpoint; after a resume without a better round the newest are as good.
        counts = self._best_counts if self._best_counts is not None else self._strategy.state.item_counts
        self._result.arrays = messages.encode_model(table)
        summary = summarise(self._subject, progress, self._strategy.evaluated_users, stopped, self._supernodes)
        if stopped:
            self._say(f"stopped after round {progress.server_round} of phase {progress.phase}")
        if self._folder is not None:
            items = len(self._item_ids)
            self._folder.write_item_table(table[:items], self._item_ids, counts, table[items:])
            self._folder.write_summary(summary)
            self._folder.plot_learning_curve()
        self._trackers.end(summary)
        self._say(final_table(summary), "summary", **summary)
        if self._folder is not None:
            self._say(f"run folder: {self._folder.path}")

    def _say(self, line: str, event: str = "message", **figures: Any) -> None:
        if self._folder is not None:
            self._folder.log(line, event, **figures)
        else:
            print(line, flush=True)
