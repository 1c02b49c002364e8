"""Contracts for what others plug in: strategies that aggregate for our clients, and models that train on them.

Run the one that fits on your own before you trust a figure.

from fastpfrec_flwr.testing import check_model, check_strategy

def test_my_strategy():
    check_strategy("mypackage.module:MyStrategy", options="eta=0.1")

def test_my_model():
    check_model("mypackage.module:MyModel")
"""

from fastpfrec_flwr.testing.models import ModelContractError, ModelReport, check_model
from fastpfrec_flwr.testing.strategies import StrategyContractError, StrategyReport, check_strategy

__all__ = [
    "ModelContractError",
    "ModelReport",
    "StrategyContractError",
    "StrategyReport",
    "check_model",
    "check_strategy",
]
