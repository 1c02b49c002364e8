"""What a server says to people when a run cannot go on."""

from fastpfrec_flwr.foreseen import Foreseen


class RunError(Foreseen, RuntimeError):
    """A run that cannot go on; the text says why and what to do."""
