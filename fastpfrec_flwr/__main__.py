"""`python -m fastpfrec_flwr` is `fastpfrec`."""

from fastpfrec_flwr.cli import app

app()
