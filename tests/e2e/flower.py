"""Real `flwr run`s with a SuperLink, a home and ports of their own; nothing is left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]


class FlowerRun(NamedTuple):
    """How a run ended (`finished:completed`, `finished:failed`), Flower's word on it, and what it printed."""

    status: str
    details: str
    log: str


def copy_project(target: Path) -> Path:
    """Copy what `flwr run` needs, as a clone of the project that a test may edit."""
    target.mkdir()
    for name in ("client_app.py", "server_app.py", "pyproject.toml", "uv.toml", "README.md", ".gitignore"):
        shutil.copy2(ROOT / name, target / name)
    shutil.copytree(ROOT / "fastpfrec_flwr", target / "fastpfrec_flwr", ignore=shutil.ignore_patterns("__pycache__"))
    return target


@contextmanager
def local_superlink(home: Path) -> Iterator[dict[str, str]]:
    """Start a SuperLink as `flwr run` would, and yield the environment in which `flwr` finds it."""
    port, control = free_port(), free_port()
    env = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": control,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    env.pop("PYTHONPATH", None)
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1"]
    command += ["--port", port, "--control-api-address", f"127.0.0.1:{control}"]
    home.mkdir(parents=True, exist_ok=True)
    printed = home / "superlink.out"
    with printed.open("w") as out:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]], cwd=home, env=env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no SuperLink: {printed.read_text()}")
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            time.sleep(0.1)
        yield env
    finally:
        process.terminate()  # its simulation processes watch it and end themselves
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def flwr_run(project: Path, env: dict[str, str], *options: str, timeout: float = 240) -> FlowerRun:
    """Run a project to its end and tell how it ended, which the exit status of `flwr run` does not."""

    def flwr(*arguments: str) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments], env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run_id = json.loads(flwr("run", str(project), "--format", "json", *options))["run-id"]
    log = flwr("log", run_id, "--stream")  # returns when the run has finished
    run = json.loads(flwr("ls", "--run-id", run_id, "--format", "json"))["runs"][0]
    return FlowerRun(run["status"], run["status-details"], log)


def free_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])
