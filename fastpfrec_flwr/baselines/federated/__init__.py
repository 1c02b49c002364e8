"""The paper's other federated models on FastPFRec's footing: isolated users, the same messages, noise and checks; docs/baselines.md."""
