"""What processes hold: memory, files, ports, folders on the disk. Linux only, because it reads /proc."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def processes_of(home: str) -> list[int]:
    """Processes whose environment names this Flower home."""
    wanted, found = f"FLWR_HOME={home}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def resident_mb(process: int | str = "self") -> float:
    """Resident memory of a process now; 0 where there is none any more."""
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found.group(1)) / 1024 if found else 0.0
    return 0.0


def entries(folder: Path) -> int:
    """How many entries a folder has."""
    with suppress(OSError):
        return len(os.listdir(folder))
    return 0


def listening(processes: list[int]) -> int:
    """TCP ports on which these processes listen."""
    sockets = set()
    for process in processes:
        with suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(os.readlink(link))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                # State 0A is LISTEN; the tenth field is the socket's inode.
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(fields[1].rsplit(":", 1)[1])
    return len(ports)


def size_mb(folder: Path) -> float:
    """What a folder takes on the disk."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else []:
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total / 2**20
