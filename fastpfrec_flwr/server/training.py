"""The loop around the rounds: evaluation, early stop, refit, checkpoints, and the files of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.server.beginning import Beginning
from fastpfrec_flwr.server.checkpoint import Checkpoint, save_checkpoint
from fastpfrec_flwr.server.device_strategy import DeviceStrategy
from fastpfrec_flwr.server.health import round_health
from fastpfrec_flwr.server.logbook import Logbook
from fastpfrec_flwr.server.progress import header
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.server.summary import summarise

# What rounds are chosen by.
CRITERION = "ndcg@20"


class Training:
    """The rounds of one run, from its beginning to the summary.

    Parameters
    ----------
    strategy : what runs a round. stop : set it to stop after the round that runs.
    evaluate_fn : called after each evaluated round with round and arrays, for metrics of one's own.
    """

    def __init__(
        self,
        strategy: DeviceStrategy,
        grid: Grid,
        beginning: Beginning,
        log: Logbook,
        stop: Event,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self._beginning = beginning
        self._config = beginning.subject.config
        self._log = log
        self._stop = stop
        self._evaluate_fn = evaluate_fn
        self._progress = beginning.progress()
        # As if what came before a checkpoint had been run just now.
        self._began = beginning.began - self._progress.total_seconds
        self._restore = self._progress.server_round
        self._num_supernodes = beginning.num_supernodes
        self._best_table: NDArray[np.float32] | None = None
        if beginning.checkpoint is not None:
            self._best_table = beginning.checkpoint.best_table
        self._best_counts: NDArray[np.float64] | None = None
        self._result = Result()

    def run(self) -> Result:
        """Train, refit if asked to, and leave the files.

        With real devices `flwr stop` is the end of the process (`SystemExit`, and five seconds to leave): nothing can be asked or
        sent any more, the round that runs is lost, and what the rounds before it came to is written.
        """
        state = self._beginning.state()
        ending: KeyboardInterrupt | SystemExit | None = None
        try:
            if self._progress.phase == "train":
                self._phase("train", state, self._config.num_rounds)
                if not self._stop.is_set():
                    self._after_train()
                if self._config.refit:
                    state = self._beginning.first_state()
            if self._progress.phase == "refit" and not self._stop.is_set():
                self._phase("refit", state, self._progress.best_round)
                self._finish_refit()
        except (KeyboardInterrupt, SystemExit) as interruption:
            ending = interruption
        self._progress.total_seconds = self._elapsed
        stopped = ending is not None or self._stop.is_set()
        if isinstance(ending, SystemExit):
            self._leave(stopped)
            raise ending
        if stopped:
            self._release()
        self._leave(stopped)
        return self._result

    @property
    def _elapsed(self) -> float:
        """Seconds since the training began, those before a checkpoint included."""
        return time.monotonic() - self._began

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _phase(self, phase: str, state: ServerState, num_rounds: int) -> None:
        """Run the rounds of a phase that are left."""
        progress, config = self._progress, self._config
        self._strategy.begin(phase, state)
        if phase == "train":
            self._log.say(header())
            if self._out_of_patience():  # a run that died after this round's checkpoint
                return
        elif self._beginning.checkpoint is not None and progress.server_round == 0:
            # The run that is gone on from may have died in this phase: what its devices kept of it is none of this one's.
            self._strategy.release(self._grid)
        for server_round in range(progress.server_round + 1, num_rounds + 1):
            if self._log.folder is not None and self._log.folder.take_stop():
                self._stop.set()
            if self._stop.is_set():
                return
            self._gather()
            shown = _is_due(server_round, config.evaluate_every) or server_round == num_rounds
            evaluated = phase == "train" and shown
            checkpoint = _is_due(server_round, config.checkpoint_every)
            outcome = self._round(server_round, evaluated and config.report_loss, checkpoint)
            self._log.round(
                outcome,
                round_health(
                    phase, server_round, num_rounds, self._num_supernodes, outcome, progress.round_seconds[-1],
                    messages.row_bytes(config.upload_precision, config.upload_width),
                ),
            )  # fmt: skip
            if evaluated:
                self._evaluate(server_round, outcome, num_rounds)
            elif phase == "refit" and config.evaluate_every and shown:
                self._log.say(f"refit on train + validation: round {server_round}/{num_rounds}")
            if checkpoint:
                progress.total_seconds = self._elapsed
                self._save_checkpoint()
            if evaluated and self._out_of_patience():
                return

    def _out_of_patience(self) -> bool:
        stale = self._progress.stale
        if 0 < self._config.early_stop_patience <= stale:
            self._log.say(f"no better validation {CRITERION} for {stale} evaluations: stopped early")
            return True
        return False

    def _gather(self) -> None:
        """On real devices: who is on line now takes part in the next round."""
        if self._beginning.presence is not None:
            nodes = self._beginning.presence.update()
            self._strategy.attach(nodes, self._beginning.state_id)
            self._num_supernodes = len(nodes.ids)

    def _round(self, server_round: int, report_loss: bool, snapshot: bool) -> RoundOutcome:
        """Run a round and count it in."""
        progress = self._progress
        tick = time.perf_counter()
        outcome = self._strategy.run_round(
            self._grid, server_round, report_loss=report_loss, snapshot=snapshot, restore=self._restore
        )
        self._restore = 0
        progress.server_round = server_round
        progress.tally.add(outcome)
        progress.round_seconds.append(time.perf_counter() - tick)
        self._result.train_metrics_clientapp[len(progress.round_seconds)] = MetricRecord(
            {"clients": outcome.trained, "refused": len(outcome.refused), "isolated": outcome.isolated}
        )
        return outcome

    def _evaluate(self, server_round: int, outcome: RoundOutcome, num_rounds: int) -> None:
        """Rank on validation; where that is better than before, this round is the best so far."""
        progress, elapsed = self._progress, self._elapsed
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
        self._say_refused(f"round {server_round}")
        self._result.evaluate_metrics_clientapp[server_round] = MetricRecord(
            {key: value for key, value in validation.items() if math.isfinite(value)}
        )
        line = progress.line(outcome, validation, elapsed)
        progress.lines.append(line)
        self._log.evaluation(line, num_rounds)
        if self._evaluate_fn is not None:
            own = self._evaluate_fn(server_round, messages.encode_model(self._strategy.state.item_table))
            if own is not None:
                self._result.evaluate_metrics_serverapp[server_round] = own

    def _say_refused(self, when: str) -> None:
        """Whose figures are missing from an evaluation, and why."""
        for reason in dict.fromkeys(self._strategy.evaluation_refused):
            self._log.say(f"{when}: evaluation refused: {reason}")
        self._strategy.evaluation_refused.clear()

    def _after_train(self) -> None:
        progress = self._progress
        self._release()
        if not self._config.refit:
            progress.phase = "done"
            return
        progress.phase, progress.server_round = "refit", 0
        self._restore = 0  # devices begin anew, also where no round of this phase was left to restore them in
        self._log.say(f"refit: training anew on train + validation for {progress.best_round} rounds")

    def _finish_refit(self) -> None:
        if self._stop.is_set() or self._progress.server_round < self._progress.best_round:
            return
        self._progress.test = self._strategy.evaluate(self._grid, self._progress.server_round, ["test"])["test"]
        self._say_refused("refit, test figures")
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

    # ---- files -------------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        if self._log.folder is None:
            return
        save_checkpoint(
            self._log.folder.checkpoint,
            Checkpoint(
                self._strategy.state,
                self._best_table,
                self._progress.to_dict(),
                self._beginning.state_id,
                self._beginning.subject.data,
                self._config.to_flat_dict(),
            ),
        )

    def _leave(self, stopped: bool) -> None:
        progress, item_ids = self._progress, self._beginning.item_ids
        table = self._best_table if self._best_table is not None else self._strategy.state.item_table
        # Counts of the best round are in no checkpoint; after a resume without a better round the newest are as good.
        counts = self._best_counts if self._best_counts is not None else self._strategy.state.item_counts
        self._result.arrays = messages.encode_model(table)
        summary = summarise(
            self._beginning.subject, progress, self._strategy.evaluated_users, stopped, self._num_supernodes
        )
        if stopped:
            self._log.say(f"stopped after round {progress.server_round} of phase {progress.phase}")
        if self._log.folder is not None:
            items = len(item_ids)
            self._log.folder.write_item_table(table[:items], item_ids, counts, table[items:])
        self._log.end(summary)


def _is_due(server_round: int, every: int) -> bool:
    """Whether something is done in this round that is done every so many rounds; 0 is never."""
    return every > 0 and server_round % every == 0
