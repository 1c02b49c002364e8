"""Flower looks for the ServerApp here; it lives in `fastpfrec_flwr.server.app`."""

from fastpfrec_flwr.server.app import app

__all__ = ["app"]
