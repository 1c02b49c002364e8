"""What a server says to people when a run cannot go on."""


class RunError(RuntimeError):
    """A run that cannot go on; the text says why and what to do."""
