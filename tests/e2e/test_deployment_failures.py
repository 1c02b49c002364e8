"""What goes wrong in the field, each with real processes and a bound on time. `.ci/nightly` runs them; `pytest -m nightly` too."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from tests.e2e.deployment import Federation, federation, patience, write_history
from tests.e2e.flower import copy_project
from tests.whole_runs import Finished

pytestmark = pytest.mark.nightly

# A SuperNode that stops answering is off line for Flower after a minute (two heartbeats of 30 s).
OFFLINE_SECONDS = 60


@pytest.fixture(scope="module")
def field(tmp_path_factory, warm_kernels):
    """A SuperLink and three SuperNodes of 4 users each, for run after run; who joins in a test comes last in this file."""
    with federation(tmp_path_factory.mktemp("field")) as found:
        found.start_superlink()
        for number, name in enumerate(("alice", "bob", "carol")):
            begin = 100 * number
            write_history(found.home(name) / "me.csv", 4, seed=number, begin=begin)
            found.start_node(name)
        yield found


def uploads_of(field: Federation, name: str) -> int:
    """Uploads that a device has in its book."""
    path = field.nodes[name].state / "device.sqlite3"
    if not path.exists():
        return 0
    with sqlite3.connect(path) as book:
        return int(book.execute("SELECT COALESCE(SUM(uploads), 0) FROM uploads").fetchone()[0])


def test_a_straggler_is_not_waited_for_and_its_late_answer_does_no_harm(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=6, round_timeout=round(patience(12.0), 1))
    run.wait_until_said("round 1/6", 60)
    carol = field.nodes["carol"]
    field.kill(carol.process, signal.SIGSTOP)
    began = time.monotonic()
    run.wait_until_said("8 clients of 3 SuperNodes", 40)
    assert time.monotonic() - began < patience(40)
    field.kill(carol.process, signal.SIGCONT)
    summary = run.wait(150)
    assert "12 clients of 3 SuperNodes" in run.log.rsplit("8 clients of 3", 1)[1], "it takes part again"
    late = [reason for reason in summary["clients"]["reasons"] if "round" in reason]
    assert not late, "an answer to a round that is over is never looked at"
    assert summary["rounds"] == 6


def test_a_data_file_that_changes_or_breaks_between_rounds(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=7)
    run.wait_until_said("round 1/7", 60)
    file = field.nodes["alice"].data
    whole = file.read_text()
    file.write_text(whole + "person-0,ite")
    run.wait_until_said("1 refused", 60)
    assert "me.csv" in run.log
    file.write_text(whole + "".join(f"a-newcomer,item-{i},{i}\n" for i in range(8)))
    refused = run.log.count(", 1 refused")
    summary = run.wait(120)
    assert summary["clients"]["trained"] >= 12 * 7 - 4 * (refused + 1)
    with sqlite3.connect(field.nodes["alice"].state / "device.sqlite3") as book:
        assert book.execute("SELECT number FROM people WHERE user = 'a-newcomer'").fetchone() == (4,)
    file.write_text(whole)


def test_a_supernode_killed_in_mid_round_costs_itself_and_comes_back_with_its_key(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=60, round_timeout=round(patience(15.0), 1))
    run.wait_until_said("round 1/60", 60)
    bob = field.nodes["bob"]
    field.wait_for(lambda: field.children(bob.process, "flwr-clientapp"), 30, "a ClientApp of bob")
    field.kill(bob.process)
    before = uploads_of(field, "bob")
    run.wait_until_said("8 clients of 3 SuperNodes", OFFLINE_SECONDS + 40)
    field.start_node("bob")
    # Flower takes a key back when its node has been off line for a while.
    field.wait_for(lambda: uploads_of(field, "bob") >= before + 8, 3 * OFFLINE_SECONDS, "bob's uploads")
    field.wait_for(
        lambda: "12 clients of 3 SuperNodes" in run.log.rsplit("8 clients of ", 1)[1], 60, "a round with all of them"
    )
    field.flwr("stop", run.run_id, "field")
    # The state of before is the state of after: its users were numbered once.
    with sqlite3.connect(bob.state / "device.sqlite3") as book:
        assert book.execute("SELECT COUNT(*) FROM people").fetchone() == (4,)


def test_a_serverapp_that_is_killed_ends_its_run_and_another_goes_on(field, tmp_path):
    run = field.run(tmp_path / "first", num_rounds=30)
    run.wait_until_said("round 2/30", 90)
    (pid,) = field.children(field.superlink, "flwr-serverapp")[:1]
    os.kill(pid, signal.SIGKILL)
    field.wait_for(lambda: run.status == "finished:failed", 120, "the run's end")
    checkpoint = tmp_path / "first" / "checkpoints" / "latest.npz"
    again = field.run(tmp_path / "second", num_rounds=30, resume_from=str(checkpoint))
    again.wait_until_said("going on after round", 90)
    went_on = int(again.log.split("going on after round ")[1].split()[0])
    assert went_on >= 2
    again.wait_until_said(f"round {went_on + 1}/30", 60)
    field.flwr("stop", again.run_id, "field")


def test_a_superlink_that_dies_costs_the_round_and_the_run_goes_on_from_its_checkpoint(field, tmp_path):
    run = field.run(tmp_path / "first", num_rounds=30)
    run.wait_until_said("round 2/30", 90)
    field.kill(field.superlink)
    done = run.log.count("clients of 3 SuperNodes")
    field.start_superlink()
    checkpoint = tmp_path / "first" / "checkpoints" / "latest.npz"
    with np.load(checkpoint) as arrays:
        assert arrays["item_table"].shape == (60, 8)
    again = field.run(tmp_path / "second", num_rounds=30, server_schedule="cosine", resume_from=str(checkpoint))
    again.wait_until_said("going on after round", 120)
    went_on = int(again.log.split("going on after round ")[1].split()[0])
    assert went_on >= done - 1, "nothing but the round that ran is lost"
    again.wait_until_said(f"round {went_on + 2}/30", 90)
    assert "12 clients of 3 SuperNodes, 0 refused" in again.log
    field.flwr("stop", again.run_id, "field")


def test_a_device_with_an_older_version_is_told_to_update_and_costs_itself(field, tmp_path):
    """Flower delivers the run's app to the devices; what is imported before it, as from a site's own start-up file, wins."""
    old = copy_project(tmp_path / "old")
    with (old / "fastpfrec_flwr" / "__init__.py").open("a") as file:
        file.write("\n# an older version\n")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
            import sys
            if any("flwr-clientapp" in part for part in sys.orig_argv):
                sys.path.insert(0, {str(old)!r})
                import fastpfrec_flwr
                sys.path.remove({str(old)!r})
        """)
    )
    write_history(field.home("dora") / "me.csv", 3, seed=8, begin=800)
    field.start_node("dora", PYTHONPATH=str(site))
    time.sleep(3)
    summary = field.run(tmp_path / "out", num_rounds=2).wait(90)
    log = Finished(tmp_path / "out").log
    assert "runs other code than the server" in log
    assert "update the app on the device" in log
    assert summary["clients"]["trained"] == 24


def test_a_late_joiner_takes_part_from_the_next_rounds(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=8)
    run.wait_until_said("round 1/8", 60)
    write_history(field.home("dave") / "me.csv", 3, seed=9, begin=900)
    field.start_node("dave")
    run.wait_until_said("takes part from now on (3 users)", 60)
    summary = run.wait(150)
    assert summary["clients"]["refused"] == 0
    assert "15 clients of 4 SuperNodes" in run.log
    assert uploads_of(field, "dave") >= 3


SKEWED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long skew(void) { const char *s = getenv("SKEW_SECONDS"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec += skew();
    return rc;
}
time_t time(time_t *out) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (out) *out = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *t, void *z) {
    struct timespec s; clock_gettime(CLOCK_REALTIME, &s); t->tv_sec = s.tv_sec; t->tv_usec = s.tv_nsec / 1000; return 0;
}
"""


@pytest.fixture(scope="module")
def skewed_clock(tmp_path_factory):
    """A library that moves a process's wall clock by `SKEW_SECONDS`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a wrong clock with")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "skew.c").write_text(SKEWED)
    library = folder / "skew.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "skew.c", "-ldl"], check=True)
    seen = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=os.environ | {"LD_PRELOAD": str(library), "SKEW_SECONDS": "7200"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 7100 < float(seen.stdout) - time.time() < 7300
    return str(library)


def test_clocks_may_be_hours_apart(tmp_path, skewed_clock, warm_kernels):
    with federation(tmp_path / "field") as field:
        field.start_superlink()
        for name, hours in (("early", -3), ("late", 3)):
            write_history(field.home(name) / "me.csv", 4, seed=hours + 5, begin=100 * (hours + 5))
            field.start_node(name, LD_PRELOAD=skewed_clock, SKEW_SECONDS=str(3600 * hours))
        summary = field.run(tmp_path / "out", num_rounds=2).wait(90)
    assert summary["clients"]["trained"] == 16
    assert summary["clients"]["refused"] == 0
