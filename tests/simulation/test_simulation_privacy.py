"""The ledger of a whole run, in its files and its log, and a budget that ends the training of everybody."""

import pytest

from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import Setting
from fastpfrec_flwr.privacy.upload_costs import upload_epsilons


def test_ledger_in_summary_and_log(finished):
    run = finished(num_rounds=2, evaluate_every=2)
    privacy = run.summary["privacy"]
    from fastpfrec_flwr.config import parse_run_config

    config = parse_run_config(run.json("config.json")["config"])
    expected = build_ledger(Setting(config, 600, 400)).to_dict()
    assert privacy["lines"] == expected["lines"]
    assert privacy["notes"] == expected["notes"]
    assert privacy["uploads_per_user"] == 1
    each, _ = upload_epsilons(config, 400)
    assert privacy["epsilon_per_upload"] == each == privacy["lines"][0]["epsilon"]
    log = run.log
    assert log.index("privacy over the whole run, at most 1 uploads of a user") < log.index("round   loss")
    assert "without noise leave: metric sums, train loss sums" in log


def test_a_budget_ends_the_training_of_everybody(finished):
    """Six rounds walk through all 600 users; with a budget for one upload nobody trains in the six rounds after them."""
    from whole_runs import settings_of

    from fastpfrec_flwr.config import parse_run_config

    each, _ = upload_epsilons(parse_run_config(settings_of({})), 400)
    run = finished(epsilon_budget=each, evaluate_every=12)
    clients = run.summary["clients"]
    assert (clients["trained"], clients["skipped"], clients["refused"]) == (600, 600, 0)
    assert run.summary["rounds_without_update"] == 6
    line = next(line for line in run.summary["privacy"]["lines"] if line["scope"].startswith("whole run"))
    assert line["epsilon"] == pytest.approx(each)
    assert "epsilon-budget" in line["reason"]
