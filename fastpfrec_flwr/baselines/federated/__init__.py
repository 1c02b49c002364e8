"""The paper's other federated models on the same footing: isolated users, one kind of message, noise and check."""
