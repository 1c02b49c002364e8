"""What the tests of the central models share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Two threads on products this small wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
