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

from tests.e2e.flower import BIN, ROOT, free_port
from tests.e2e.patience import patience
from tests.e2e.runs import Run
from tests.e2e.shop import write_catalogue

HOST = "127.0.0.1"


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
            with suppress(subprocess.TimeoutExpired):  # on a busy machine; the others must end all the same
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

    def run(self, output: Path, **changes: Any) -> Run:
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


@contextmanager
def federation(folder: Path, project: Path = ROOT, listen: str = HOST, reached_as: str = HOST) -> Iterator[Federation]:
    """A federation whose processes end with the block, whatever happens in it."""
    found = Federation(folder, project, listen, reached_as)
    try:
        yield found
    finally:
        found.end()
