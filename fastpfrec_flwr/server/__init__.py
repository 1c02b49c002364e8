"""Floor 3, the server: average of the nodes, server step, beta blend, strategy, checkpoints, ServerApp."""
