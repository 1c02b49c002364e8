"""How good a ranking is: the top items of every user and the metrics over them. Knows arrays, not Flower."""
