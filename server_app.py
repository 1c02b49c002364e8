"""Flower looks for the ServerApp here: `fastpfrec_flwr.server.app`, by way of `attacks.server_app`, which measures attacks."""

from fastpfrec_flwr.attacks.server_app import server_app as app

__all__ = ["app"]
