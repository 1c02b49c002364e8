"""A run of the user-level setting in small: what its record says of privacy, recomputed, and what it learns."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

CONF = Path(__file__).parents[2] / "conf" / "privacy" / "user-level.toml"
# 600 users cannot hide in the noise that hides one of 29,858; a tenth of it shows that the run learns.
SMALL = {"data-set": "synthetic", "clients-per-round": 600, "validation-fraction": 0.1, "embedding-dim": 9}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    from whole_runs import Finished

    from fastpfrec_flwr.config import default_values
    from fastpfrec_flwr.simulation.run import simulate

    def run(**changes):
        place = tmp_path_factory.mktemp("user-level")
        values = {**default_values(), **tomllib.loads(CONF.read_text()), **SMALL, "threads": 1}
        values |= {key.replace("_", "-"): value for key, value in changes.items()}
        return Finished(simulate({**values, "output-dir": str(place / "out"), "state-dir": str(place / "state")}))

    return run


def whole_run_line(run, observer):
    lines = run.summary["privacy"]["lines"]
    return next(
        line
        for line in lines
        if line["observer"] == observer and line["release"] == "uploads" and line["scope"].startswith("whole run")
    )


def test_epsilon_from_the_runs_own_record(small):
    """Noise, clip and rounds as the run kept them, through another accountant of dp-accounting than the ledger's."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    run = small()
    config = run.json("config.json")["config"]
    assert run.summary["clients"]["trained"] == config["num-rounds"] * config["clients-per-round"]
    assert config["noise-placement"] == "distributed"
    assert config["num-trusted-nodes"] == 1
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(config["noise-scale"] / config["clip-norm"]), config["num-rounds"])
    epsilon = accountant.get_epsilon(1e-5)
    line = whole_run_line(run, "server")
    assert line["epsilon"] == pytest.approx(epsilon, rel=2e-3)
    assert line["epsilon"] <= 8
    assert line["delta"] == 1e-5
    assert "zero change" in line["adjacency"]
    assert "honest" in line["assumed"]
    assert whole_run_line(run, "final model")["epsilon"] == pytest.approx(line["epsilon"])
    assert whole_run_line(run, "trusted node")["epsilon"] > 100, "a single upload has a share of the noise alone"


def test_it_learns(small):
    quiet = small(noise="none", noise_scale=0.0, noise_placement="client")
    some = small(noise_scale=12.1)
    chance = 20 / 400
    for run in (quiet, some):
        assert run.summary["test"]["recall@20"] > 4 * chance
    assert not np.array_equal(quiet.table, some.table)


def test_replacing_a_user_costs_more_than_leaving_it_out(small):
    left_out = whole_run_line(small(), "server")["epsilon"]
    replaced = whole_run_line(small(adjacency="replace"), "server")
    assert replaced["epsilon"] > 2 * left_out
    assert replaced["adjacency"].startswith("replace")
