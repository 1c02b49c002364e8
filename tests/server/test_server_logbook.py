"""The log of a run: what it says of a round, how often, and where else that goes."""

import json
from dataclasses import replace

import pytest

from fastpfrec_flwr.config import parse_run_config
from fastpfrec_flwr.server.health import round_health
from fastpfrec_flwr.server.logbook import MOST_WARNINGS, Logbook
from fastpfrec_flwr.server.rounds import RoundOutcome
from fastpfrec_flwr.server.run_folder import RunFolder
from tests.whole_runs import settings_of

GOOD = RoundOutcome(40, [], 0, 0, 0, 0.5, 1000, True)


def config_of(**changes):
    return parse_run_config(settings_of(changes))


def tell(log, outcome, server_round=3):
    log.round(outcome, round_health("train", server_round, 10, 4, outcome, 12.0, 65))


@pytest.fixture
def said(capsys):
    """`said(outcome, ...)`: the lines of rounds 1, 2, ... with these outcomes."""

    def lines(*outcomes, deployed=False, **changes):
        log = Logbook(config_of(**changes), None)
        log.begin({"deployed": deployed}, None)
        for server_round, outcome in enumerate(outcomes, 1):
            tell(log, outcome, server_round)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_round_of_a_simulation_in_which_nothing_happens_says_nothing(said):
    assert said(GOOD, GOOD) == []


def test_a_round_of_a_deployment_is_a_line(said):
    assert [line.split(":")[0] for line in said(GOOD, GOOD, deployed=True)] == [
        "round 1/10 of train",
        "round 2/10 of train",
    ]


def test_equal_reasons_are_one_line(said):
    assert said(replace(GOOD, refused=["late", "torn", "late"])) == [
        "round 1: 2 refused: late",
        "round 1: 1 refused: torn",
    ]


def test_a_liar_cannot_fill_the_log(said):
    reasons = [f"reason {i}" for i in range(MOST_WARNINGS)]
    assert len(said(replace(GOOD, refused=reasons))) == MOST_WARNINGS
    lines = said(replace(GOOD, refused=[*reasons, *reasons, "one", "two"]))
    assert len(lines) == MOST_WARNINGS + 1
    assert lines[0] == "round 1: 2 refused: reason 0"
    assert lines[-1] == "round 1: refused for 2 more reasons"


def test_why_users_did_not_train_is_said_once(said):
    spent = replace(GOOD, skips={"privacy budget spent": 2})
    both = replace(GOOD, skips={"privacy budget spent": 3, "nothing to learn from": 1})
    assert said(spent, spent, both, both) == [
        "round 1: clients that did not train: 2 privacy budget spent",
        "round 3: clients that did not train: 1 nothing to learn from",
    ]


def test_events_and_a_model_that_stays(said):
    outcome = replace(
        GOOD, events=["node 1 failed", "node 2 is away"], moved=False, why_unmoved="no trusted node is there"
    )
    assert said(outcome) == [
        "round 1: node 1 failed, node 2 is away",
        "round 1: no trusted node is there; the model stays as it was",
    ]
    assert said(replace(GOOD, moved=False), model="local-only") == [], "it never moves"


def test_a_log_for_machines_has_every_round(tmp_path):
    config = config_of(log_format="json")
    log = Logbook(config, RunFolder(tmp_path / "run", "json"))
    tell(log, replace(GOOD, refused=["late"]))
    first, second = map(json.loads, (tmp_path / "run" / "log.txt").read_text().splitlines())
    assert (first["event"], first["message"]) == ("message", "round 3: 1 refused: late")
    assert (second["event"], second["round"], second["clients"], second["refused"]) == ("round", 3, 40, 1)


def test_prometheus_is_told_of_rounds_that_the_log_is_silent_on(tmp_path, capsys):
    log = Logbook(config_of(metrics_file=str(tmp_path / "fastpfrec.prom")), None)
    tell(log, GOOD)
    assert capsys.readouterr().out == ""
    assert 'fastpfrec_round{phase="train"} 3.0' in (tmp_path / "fastpfrec.prom").read_text()
