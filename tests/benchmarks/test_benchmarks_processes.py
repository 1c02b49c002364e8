"""What the benchmark of repeated runs says of processes: memory, files, ports and folders, held against a process that is known."""

import os
import subprocess
import sys

from benchmarks.processes import entries, listening, processes_of, resident_mb, size_mb

LISTENS = """
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
held = bytearray(b"x" * (64 << 20))
print("there", flush=True)
sys.stdin.readline()
"""


def test_a_process_is_found_by_its_home_with_what_it_holds(tmp_path):
    env = {**os.environ, "FLWR_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "there\n"
        assert processes_of(str(tmp_path / "home")) == [process.pid]
        assert processes_of(str(tmp_path)) == []  # a name that the other begins with
        assert listening([process.pid]) == 2
        assert resident_mb(process.pid) > 64
        assert entries(tmp_path / "nowhere") == 0
    finally:
        process.communicate("\n")
    assert processes_of(str(tmp_path / "home")) == []
    assert listening([process.pid]) == resident_mb(process.pid) == 0


def test_a_folders_size_is_that_of_its_files(tmp_path):
    assert size_mb(tmp_path / "nowhere") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(os.urandom(3 << 20))
    assert 3 <= size_mb(tmp_path) < 3.2
