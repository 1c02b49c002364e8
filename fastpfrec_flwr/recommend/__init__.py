"""Recommendations from a trained table: load a run or an exported model, give a history, get items. NumPy alone.

>>> from fastpfrec_flwr.recommend import Recommender
>>> recommender = Recommender.load("run-folder")
>>> recommender.recommend(["50", "181"], k=10)
"""

from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel
from fastpfrec_flwr.recommend.recommender import Recommendation, Recommendations, Recommender

__all__ = ["LocalModel", "ModelError", "Recommendation", "Recommendations", "Recommender"]
