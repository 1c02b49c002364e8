"""Flower looks for the ServerApp here: `fastpfrec_flwr.server.app`, by way of `attacks.apps`, which adds liars if asked to."""

from fastpfrec_flwr.attacks.apps import server_app as app

__all__ = ["app"]
