"""FastPFRec as a Flower application: federated recommendation with truly isolated clients."""

__version__ = "0.1.0"
