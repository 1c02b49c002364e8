"""Flower looks for the ClientApp here: `fastpfrec_flwr.client.app`, by way of `attacks.apps`, which adds liars if asked to."""

import os
import sys
from pathlib import Path

# Ray workers import from the simulation's working directory first: make that this bundle, not whatever clone (or `/`) the
# SuperLink happened to start in. Runs in the driver before `ray.init`, and nowhere else.
if Path(sys.argv[0]).name.startswith("flwr-simulation"):
    os.chdir(Path(__file__).resolve().parent)

from fastpfrec_flwr.attacks.apps import client_app as app

__all__ = ["app"]
