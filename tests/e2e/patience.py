"""How long to wait on this machine."""

import os


def crowding() -> float:
    """Processes that want to run for each processor, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def patience(seconds: float) -> float:
    """A bound on time for a machine with nothing else to do, stretched where others share its processors."""
    return seconds * crowding()


def short_deadline() -> float:
    """Seconds until a round goes on without somebody, for tests that wait for that. A round takes 5 s on an idle machine, most of
    it waiting, and 15 s on one where five processes want each processor."""
    return round(10 + 2 * crowding(), 1)
