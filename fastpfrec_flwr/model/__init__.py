"""The recommender's mathematics: local star graphs, FastGNN propagation, losses, scoring. Knows neither Flower nor files."""
