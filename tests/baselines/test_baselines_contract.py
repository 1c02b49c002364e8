"""Every federated model keeps one contract: it learns, is isolated, is deterministic and survives bad uploads."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # as a user's folder would stand on PYTHONPATH

from fastpfrec_flwr.config import BASELINES, ConfigError
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.testing import ModelContractError, check_model

# What each needs to learn in twelve rounds; FedMF and FedNCF have no sum of items to begin with.
SETTINGS = {
    "fedmf": {"num-rounds": 40, "evaluate-every": 20, "user-learning-rate": 1.0},
    "fedncf": {"num-rounds": 40, "evaluate-every": 20, "user-learning-rate": 1.0},
    "perfedrec++": {"pretrain-rounds": 4},
}


@pytest.mark.parametrize("model", [each for each in BASELINES if each != "local-only"])
def test_a_federated_model_keeps_the_contract(model):
    report = check_model(model, settings=SETTINGS.get(model))
    assert report.sends
    assert report.refused >= 2 * 12


def test_ours_keeps_the_contract():
    assert check_model("fastpfrec").ndcg > 0.2


def test_local_only_sends_nothing_and_stays_near_chance():
    report = check_model("local-only", learns=False)
    assert not report.sends
    # Random lists reach 0.05, popularity 0.22.
    assert report.ndcg < 0.10


def test_a_model_of_ones_own_keeps_the_contract():
    assert check_model("own_models:MeanOfItems").ndcg > 0.1


def test_a_model_that_reads_other_users_breaks_it():
    with pytest.raises(ModelContractError, match="is isolated"):
        check_model("own_models:Peeping", learns=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Model", "cannot be imported"),
        ("own_models:Nothing", "has no 'Nothing'"),
        ("own_models:not_a_class", "must be a subclass"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name, words):
    with pytest.raises((ConfigError, RunError), match=words):
        check_model(name)


def test_the_example_of_the_docs_keeps_the_contract(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text()
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if block.startswith("# my_model.py")
    )
    assert len(code.splitlines()) < 100
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"num-rounds": 40, "evaluate-every": 20, "user-learning-rate": 1.0, "num-negatives": 32}
    assert check_model("my_model:BiasedMF", settings=settings).sends
