"""What a run tells people while it runs: lines of the log, the trackers, and the file that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.server.health import MetricsFile, health_line
from fastpfrec_flwr.server.progress import final_table, progress_line
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.run_folder import RunFolder
from fastpfrec_flwr.server.trackers import Trackers

# Lines of one round about refusals: whoever lies may give a new reason with every message.
MOST_WARNINGS = 10


class Logbook:
    """The log of a run, and whatever else is told what is in it.

    Parameters
    ----------
    folder : where the run leaves its files; None prints only.

    Raises
    ------
    ConfigError if a tracker's package is missing, or `metrics-file` cannot be written.
    """

    def __init__(self, config: RunConfig, folder: RunFolder | None) -> None:
        self.folder = folder
        self._config = config
        self._trackers = Trackers(config, None if folder is None else folder.path, self.say)
        self._metrics_file = MetricsFile(Path(config.metrics_file)) if config.metrics_file else None
        # A line for each round of a deployment and wherever the log is for machines; simulations have too many of them.
        self._every_round = config.log_format == "json"
        self._told_skips: set[str] = set()

    def say(self, line: str, event: str = "message", **figures: Any) -> None:
        """Log a line; `event` and `figures` as in `RunFolder.log`."""
        if self.folder is not None:
            self.folder.log(line, event, **figures)
        else:
            print(line, flush=True)

    def begin(self, facts: dict[str, Any], catalogue: Catalogue | None) -> None:
        """Keep the configuration, what the run found (`facts`) and the server's own catalogue, if it has one."""
        if self.folder is not None:
            self.folder.write_config(self._config, facts)
            if catalogue is not None:
                catalogue.save(self.folder.path / "catalogue.json")
        self._trackers.begin(self._config.to_flat_dict())
        self._every_round = self._every_round or bool(facts["deployed"])

    def go_on(self, lines: list[dict[str, Any]]) -> None:
        """Take the evaluated rounds of a run that is resumed."""
        if self.folder is not None:
            self.folder.start_metrics(lines)

    def round(self, outcome: RoundOutcome, figures: dict[str, Any]) -> None:
        """Take a round and its `health.round_health`."""
        self._warn(f"round {figures['round']}", outcome)
        if self._every_round:
            self.say(health_line(figures), "round", **figures)
        if self._metrics_file is not None:
            self._metrics_file.write(figures)

    def _warn(self, where: str, outcome: RoundOutcome) -> None:
        if outcome.events:
            self.say(f"{where}: {', '.join(outcome.events)}")
        counts = Counter(outcome.refused)
        for reason, count in list(counts.items())[:MOST_WARNINGS]:
            self.say(f"{where}: {count} refused: {reason}")
        if len(counts) > MOST_WARNINGS:
            self.say(f"{where}: refused for {len(counts) - MOST_WARNINGS} more reasons")
        if new := set(outcome.skips) - self._told_skips:
            # Once: with a budget that is spent it would be said in every round from then on. The counts are in metrics.jsonl.
            self._told_skips |= new
            told = ", ".join(f"{outcome.skips[reason]} {reason}" for reason in sorted(new))
            self.say(f"{where}: clients that did not train: {told}")
        if not outcome.moved and self._config.model != "local-only":
            self.say(f"{where}: {outcome.why_unmoved}; the model stays as it was")

    def evaluation(self, line: dict[str, Any], num_rounds: int) -> None:
        """Take an evaluated round, as `Progress.line` has it."""
        if self.folder is not None:
            self.folder.add_metrics(line)
        self._trackers.round(line)
        self.say(progress_line(line, num_rounds), "evaluation", **line)

    def end(self, summary: dict[str, Any]) -> None:
        """Take the summary, after which nothing comes."""
        if self.folder is not None:
            self.folder.write_summary(summary)
            self.folder.plot_learning_curve()
        self._trackers.end(summary)
        self.say(final_table(summary), "summary", **summary)
        if self.folder is not None:
            self.say(f"run folder: {self.folder.path}")
