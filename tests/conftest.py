"""For all tests: homes of their own, and whole runs in this process that take half a second."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.whole_runs import Finished, settings_of

# Runs, stores and device state land in a folder of this session. The cache stays the user's: it holds the compiled kernels, which
# are named by their content and take most of a minute to make anew.
_HOMES = ("XDG_DATA_HOME", "XDG_STATE_HOME")


def pytest_configure(config):
    config.own_home = tempfile.mkdtemp(prefix="fastpfrec-tests-")
    config.homes_before = {name: os.environ.get(name) for name in _HOMES}
    for name in _HOMES:
        os.environ[name] = str(Path(config.own_home) / name.split("_")[1].lower())
    # A shell that runs the tests in the background has them ignore Ctrl-C, and all processes that they start and interrupt with it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config):
    for name, value in config.homes_before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    shutil.rmtree(config.own_home, ignore_errors=True)


@pytest.fixture
def finished(tmp_path):
    """`finished(num_supernodes=2, client_app=None, **settings)`: a whole run in this process."""
    count = 0

    def run(num_supernodes=2, client_app=None, **changes):
        from fastpfrec_flwr.simulation.run import simulate

        nonlocal count
        count += 1
        values = settings_of({"output_dir": str(tmp_path / f"run-{count}"), **changes})
        simulate(values, num_supernodes, **({} if client_app is None else {"client_app": client_app}))
        return Finished(Path(values["output-dir"]))

    return run


@pytest.fixture(scope="module")
def inside_a_run():
    """Flower builds messages inside a run only; this stands for one."""
    from flwr.supercore.task_identity import TaskIdentity

    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)
