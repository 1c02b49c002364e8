"""A round's health in words, as JSON, and as Prometheus reads it."""

import json

import pytest

from fastpfrec_flwr.config import ConfigError
from fastpfrec_flwr.server.health import MetricsFile, health_line, round_health
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.run_folder import RunFolder

OUTCOME = RoundOutcome(40, ["late", "late"], 3, 1, 2, 0.5, 1000, True)
FIGURES = round_health("train", 3, 10, 4, OUTCOME, 12.3456, 65)


def test_the_line():
    assert health_line(FIGURES) == (
        "round 3/10 of train: 40 clients of 4 SuperNodes, 2 refused, 3 isolated, 2 skipped, 0.1 MB up, 12 s"
    )
    still = {**FIGURES, "moved": 0}
    assert health_line(still).endswith("; the model stays as it was")
    assert FIGURES["bytes_up"] == 65_000


def test_the_file_for_prometheus(tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    file = MetricsFile(tmp_path / "fastpfrec.prom")
    file.write(FIGURES)
    file.write({**FIGURES, "round": 4, "clients": 5})
    text = (tmp_path / "fastpfrec.prom").read_text()
    found = {
        (sample.name, sample.labels.get("phase")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["fastpfrec_round", "train"] == 4
    assert found["fastpfrec_clients", "train"] == 5
    assert found["fastpfrec_uploads_total", None] == 45
    assert found["fastpfrec_refusals_total", None] == 4
    assert found["fastpfrec_last_round_timestamp_seconds", None] > 1e9
    assert [path.name for path in tmp_path.iterdir()] == ["fastpfrec.prom"]


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path):
    from pathlib import Path

    with pytest.raises(ConfigError, match=r"absolute path, got 'x\.prom'"):
        MetricsFile(Path("x.prom"))
    with pytest.raises(ConfigError, match="can be written"):
        MetricsFile(tmp_path / "nowhere" / "x.prom")


def test_the_log_as_json(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run", "json")
    folder.log("two\nlines")
    folder.log(health_line(FIGURES), "round", **FIGURES, loss=float("nan"))
    printed = capsys.readouterr().out.splitlines()
    assert printed == (tmp_path / "run" / "log.txt").read_text().splitlines()
    first, second = map(json.loads, printed)
    assert first["event"] == "message"
    assert first["message"] == "two\nlines"
    assert first["time"].endswith("+00:00")
    assert second["event"] == "round"
    assert second["clients"] == 40
    assert second["loss"] is None, "strict JSON has no NaN"
