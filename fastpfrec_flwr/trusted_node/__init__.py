"""Floor 2, the trusted nodes: who sends where, what is suspicious, one mean per node. Arrays only; could run on an edge box."""
