"""A federation on loopback with real processes: SuperLink, SuperNodes, TLS, keys. All of them end with the test."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastpfrec_flwr.catalogue import Catalogue
from tests.e2e.flower import BIN, ROOT, free_port

HOST = "127.0.0.1"
NUM_ITEMS = 60


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


ITEMS = [f"item-{i}" for i in reversed(range(NUM_ITEMS))]  # in an order that is not the sorted one


def write_catalogue(path: Path, items: list[str] = ITEMS) -> None:
    """The catalogue that everybody gets."""
    Catalogue(tuple(items), name="shop").save(path)


def write_history(path: Path, users: int, seed: int, begin: int = 0) -> None:
    """Interactions of some users with two tastes: the first half of the items, or the second."""
    generator = np.random.default_rng(seed)
    lines = ["user,item,timestamp"]
    for user in range(begin, begin + users):
        taste = user % 2 * NUM_ITEMS // 2
        items = taste + generator.choice(NUM_ITEMS // 2, 12, replace=False)
        lines += [f"person-{user},item-{item},{1_000_000 + n}" for n, item in enumerate(items)]
    path.write_text("\n".join(lines) + "\n")


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs, the elder first; a SuperLink's own start sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        waiting = sorted(child for parent in waiting for child in children.get(parent, []))
        found += waiting
    return found


@dataclass
class Node:
    """A SuperNode and its places."""

    name: str
    home: Path
    process: subprocess.Popen[bytes] | None = None
    port: str = field(default_factory=free_port)

    @property
    def data(self) -> Path:
        return self.home / "me.csv"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def log(self) -> str:
        return (self.home / "out").read_text(errors="replace")


class Federation:
    """Everything of one federation, under one folder."""

    def __init__(self, folder: Path, project: Path = ROOT, listen: str = HOST, reached_as: str = HOST) -> None:
        self.folder = folder
        self.project = project
        self.port = free_port()
        self.listen = listen
        self.reached_as = reached_as
        self.keys = folder / "keys"
        self.catalogue = folder / "catalogue.json"
        self.nodes: dict[str, Node] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        write_catalogue(self.catalogue)
        home = self.home("operator")
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "field"\n\n[superlink.field]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )

    def home(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        env = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        # As on a device, which keeps its compiled modules: each message is a process that imports the app anew.
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        return env | more

    # ---- processes ---------------------------------------------------------------------------------------------------

    def make_keys(self, *names: str) -> None:
        command = [sys.executable, str(ROOT / "deploy" / "make_keys.py"), "--out", str(self.keys), "--host", HOST]
        command += ["--host", "localhost", "--host", self.reached_as]
        command += [*(part for name in names for part in ("--node", name))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def start_superlink(self) -> None:
        self.make_keys()
        home = self.home("superlink")
        keys = self.keys
        command = [
            "flower-superlink", "--host", self.listen, "--port", self.port,
            "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "superlink.crt"),
            "--ssl-keyfile", str(keys / "superlink.key"), "--enable-supernode-auth",
            "--database", str(home / "state.db"), "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self.superlink = self._start(command, home)
        self.wait_for(self.is_up, 60, "the SuperLink")

    def is_up(self) -> bool:
        import ssl

        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        with suppress(OSError):
            urllib.request.urlopen(f"https://{HOST}:{self.port}/health", timeout=1, context=context).close()
            return True
        return False

    def start_node(
        self, name: str, register: bool = True, address: str = HOST, within: Sequence[str] = (), **more: str
    ) -> Node:
        """Start a SuperNode; the first time with a new key pair.

        Parameters
        ----------
        address : under which it reaches the SuperLink. within : a command that runs it, as in a network of its own.
        more : its environment beside the usual.
        """
        if name not in self.nodes:
            self.nodes[name] = Node(name, self.home(name))
            self.make_keys(name)
            if register:
                self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "field")
        node = self.nodes[name]
        config = f"data-path='{node.data}' catalogue='{self.catalogue}' state-dir='{node.state}'"
        command = [
            "flower-supernode", "--superlink", f"{address}:{self.port}", "--port", node.port,
            "--root-certificates", str(self.keys / "ca.crt"),
            "--auth-supernode-private-key", str(self.keys / f"{name}.key"), "--node-config", config,
        ]  # fmt: skip
        node.process = self._start(command, node.home, within, **more)
        return node

    def _start(
        self, command: list[str], home: Path, within: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[bytes]:
        with (home / "out").open("ab") as out:
            process = subprocess.Popen(
                [*within, str(BIN / command[0]), *command[1:]],
                cwd=home, env=self.environment(home / "flower", **more), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes] | None, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process and all that it started: to the parents first, so that they start nothing new, and to what
        it left behind in its group when it ended."""
        assert process is not None
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait(timeout=20)

    def stop_node(self, name: str) -> None:
        """End a SuperNode as its owner does; it tells the SuperLink, which asks it no more."""
        node = self.nodes[name]
        assert node.process is not None
        node.process.terminate()
        node.process.wait(timeout=20)

    def end(self) -> None:
        for process in reversed(self._processes):
            self.kill(process)

    def children(self, process: subprocess.Popen[bytes] | None, name: str) -> list[int]:
        """Processes that a process started, they or theirs, by the name of their command."""
        assert process is not None
        found = []
        for pid in descendants(process.pid):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(part.decode().endswith(name) for part in line[:2]):
                    found.append(pid)
        return found

    # ---- flwr --------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str, timeout: float = 300) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment(self.home("operator")), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fastpfrec(self, *arguments: str) -> str:
        """`fastpfrec` as the owner of a device calls it."""
        done = subprocess.run(
            [sys.executable, "-m", "fastpfrec_flwr", *arguments],
            env=self.environment(self.home("operator"), PYTHONPATH=str(self.project)),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, output: Path, **changes: Any) -> "Run":
        """`flwr run . field`, and do not wait for its end."""
        values = {
            "output-dir": str(output),
            "catalogue": str(self.catalogue),
            "device": "cpu",
            "threads": 1,
            "embedding-dim": 8,
            "num-negatives": 16,
            "num-rounds": 2,
            "clients-per-round": 20,
            "num-trusted-nodes": 1,
            "evaluate-every": 0,
            "checkpoint-every": 1,
            "round-timeout": round(patience(40.0), 1),
            **{key.replace("_", "-"): value for key, value in changes.items()},
        }
        pairs = " ".join(
            f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in values.items()
        )
        printed = self.flwr("run", str(self.project), "field", "--format", "json", "-c", pairs)
        return Run(self, json.loads(printed)["run-id"], output)

    @staticmethod
    def wait_for(condition: Any, seconds: float, what: str, pause: float = 0.2) -> None:
        deadline = time.monotonic() + patience(seconds)
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            time.sleep(pause)


@dataclass
class Run:
    """A run of a federation."""

    federation: Federation
    run_id: str
    output: Path

    @property
    def status(self) -> str:
        printed = self.federation.flwr("ls", "field", "--run-id", self.run_id, "--format", "json")
        return str(json.loads(printed)["runs"][0]["status"])

    @property
    def log(self) -> str:
        path = self.output / "log.txt"
        return path.read_text() if path.exists() else ""

    def said(self, text: str) -> bool:
        return text in self.log

    def wait_until_said(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + patience(seconds)
        while not self.said(text):
            assert time.monotonic() < deadline, f"{text!r}: not within {seconds:g} s\n{self.everything()}"
            time.sleep(0.2)

    def stop(self, seconds: float) -> dict[str, Any]:
        """End the run after the round that runs; its summary.

        Not by `flwr stop`, which cuts the round off: a SuperNode that was fetching a message then sends each answer only with the
        next message, for as long as it lives (Flower 1.42).
        """
        (self.output / "stop").touch()
        return self._stopped(seconds)

    def cut_off(self, seconds: float) -> dict[str, Any]:
        """`flwr stop`: the run ends at once; its summary."""
        self.federation.flwr("stop", self.run_id, "field")
        return self._stopped(seconds)

    def _stopped(self, seconds: float) -> dict[str, Any]:
        summary = self._wait_for_summary(seconds)
        assert summary["stopped"] is True
        return summary

    def wait(self, seconds: float) -> dict[str, Any]:
        """Wait for the end of a run that must succeed; its summary."""
        summary = self._wait_for_summary(seconds)
        status = self.status
        assert status == "finished:completed", f"{status}\n{self.everything()}"
        return summary

    def _wait_for_summary(self, seconds: float) -> dict[str, Any]:
        path = self.output / "summary.json"
        deadline = time.monotonic() + patience(seconds)
        while not path.exists() or self.federation.children(self.federation.superlink, "flwr-serverapp"):
            assert time.monotonic() < deadline, f"no summary within {seconds:g} s\n{self.everything()}"
            time.sleep(0.2)
        return dict(json.loads(path.read_text()))

    def everything(self) -> str:
        """What everybody printed, for a test that fails."""
        logs = [f"== run\n{self.log}"]
        for path in sorted(self.federation.folder.glob("*/out")):
            logs.append(f"== {path.parent.name}\n{path.read_text(errors='replace')[-4000:]}")
        return "\n".join(logs)


@contextmanager
def federation(folder: Path, project: Path = ROOT, listen: str = HOST, reached_as: str = HOST) -> Iterator[Federation]:
    """A federation whose processes end with the block, whatever happens in it."""
    found = Federation(folder, project, listen, reached_as)
    try:
        yield found
    finally:
        found.end()
