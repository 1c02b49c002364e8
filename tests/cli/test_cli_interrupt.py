"""Ctrl-C: the first ends the run after its round and leaves a summary, the second ends the process at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = (
    "data-set=synthetic num-rounds=1000000 embedding-dim=8 clients-per-round=40 num-negatives=8 num-trusted-nodes=2"
)


@pytest.fixture
def endless(tmp_path):
    """A run that never ends by itself, after its first evaluation."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fastpfrec_flwr", "simulate", "-c", ENDLESS + " evaluate-every=1 threads=1"]
    with (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(
            [*command, "--output-dir", str(out)], cwd=ROOT, stdout=printed, stderr=printed, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists():
            assert process.poll() is None, (tmp_path / "printed").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, out, tmp_path / "printed"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_one_interrupt_leaves_a_summary(endless):
    process, out, printed = endless
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 0, printed.read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stopped"] is True
    assert 1 <= summary["rounds"] < 1_000_000
    assert "ending after this round" in printed.read_text()
    assert "Traceback" not in printed.read_text()
    assert (out / "item_table.npz").exists()


def test_two_interrupts_end_at_once(endless):
    process, _, printed = endless
    process.send_signal(signal.SIGSTOP)  # so that both wait when it wakes up
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 20
    while "ending after this round" not in printed.read_text() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) in (0, -signal.SIGINT)  # 0 where the round ended in between
    assert "Traceback" not in printed.read_text()
