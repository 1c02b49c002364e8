"""Flower builds messages inside a run only; this folder's tests stand in one."""

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True, scope="module")
def identity():
    """Flower builds messages inside a run only; this stands for one."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)
