"""One line of health per round, and the same figures as a file that Prometheus reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.server.progress import duration
from fastpfrec_flwr.server.rounds import RoundOutcome

# Of a round; all of them gauges.
_GAUGES = {
    "round": "Last finished round of the phase",
    "rounds": "Rounds of the phase",
    "supernodes": "SuperNodes asked",
    "clients": "Clients whose uploads were used or looked at",
    "refused": "Uploads and replies refused",
    "isolated": "Clients isolated by a check",
    "isolated_nodes": "Trusted nodes left out whole",
    "skipped": "Clients drawn that had nothing to learn from or nothing left to spend",
    "moved": "1 if the model changed, 0 if nothing healthy arrived",
    "seconds": "Seconds of the round",
    "bytes_up": "Bytes of the uploads that arrived",
}


def round_health(
    phase: str,
    server_round: int,
    num_rounds: int,
    supernodes: int,
    outcome: RoundOutcome,
    seconds: float,
    row_bytes: int,
) -> dict[str, Any]:
    """The figures of a round.

    Parameters
    ----------
    row_bytes : of one uploaded row.
    """
    return {
        "phase": phase,
        "round": server_round,
        "rounds": num_rounds,
        "supernodes": supernodes,
        "clients": outcome.trained,
        "refused": len(outcome.refused),
        "isolated": outcome.isolated,
        "isolated_nodes": outcome.isolated_nodes,
        "skipped": outcome.skipped,
        "moved": int(outcome.moved),
        "seconds": round(seconds, 3),
        "bytes_up": outcome.uploaded_rows * row_bytes,
    }


def health_line(figures: dict[str, Any]) -> str:
    """A round's figures as people read them."""
    return (
        f"round {figures['round']}/{figures['rounds']} of {figures['phase']}: {figures['clients']} clients of "
        f"{figures['supernodes']} SuperNodes, {figures['refused']} refused, {figures['isolated']} isolated, "
        f"{figures['skipped']} skipped, {figures['bytes_up'] / 1e6:.1f} MB up, {duration(figures['seconds'])}"
        + ("" if figures["moved"] else "; the model stays as it was")
    )


class MetricsFile:
    """The last round's figures in the text format of Prometheus, for node_exporter's textfile collector.

    Parameters
    ----------
    path : ends in `.prom`; written anew, whole, after each round.

    Raises
    ------
    ConfigError if prometheus-client is not installed, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge
        except ImportError:
            raise ConfigError("metrics-file needs prometheus-client: pip install 'fastpfrec-flwr[metrics]'") from None
        if not path.is_absolute():
            raise ConfigError(f"metrics-file must be an absolute path, got {str(path)!r}")
        if not os.access(path.parent, os.W_OK):
            raise ConfigError(f"metrics-file must lie in a folder that can be written, got {str(path)!r}")
        self._path = path
        self._registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"fastpfrec_{name}", text, ["phase"], registry=self._registry) for name, text in _GAUGES.items()
        }
        self._totals = {
            name: Counter(f"fastpfrec_{name}", text, registry=self._registry)
            for name, text in (("uploads", "Uploads since the run began"), ("refusals", "Refusals since the run began"))
        }
        self._time = Gauge(
            "fastpfrec_last_round_timestamp_seconds", "When the last round ended", registry=self._registry
        )

    def write(self, figures: dict[str, Any]) -> None:
        """Take a round in and write the file."""
        from prometheus_client import write_to_textfile

        for name, gauge in self._gauges.items():
            gauge.labels(figures["phase"]).set(figures[name])
        self._totals["uploads"].inc(figures["clients"])
        self._totals["refusals"].inc(figures["refused"])
        self._time.set_to_current_time()
        write_to_textfile(str(self._path), self._registry)
