"""All tests of this folder build messages."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _identity(inside_a_run):
    """See `inside_a_run`."""
