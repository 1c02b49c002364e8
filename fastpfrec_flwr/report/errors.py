"""What the report says to people when there is nothing to report on."""

from fastpfrec_flwr.foreseen import Foreseen


class ReportError(Foreseen, ValueError):
    """Input of which no report can be made; the text names the file or folder and says what to do."""
