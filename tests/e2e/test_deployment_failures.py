"""What goes wrong in the field, each with real processes and a bound on time. `.ci/nightly` runs them; `pytest -m nightly` too."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.deployment import Federation, federation
from tests.e2e.flower import copy_project
from tests.e2e.patience import patience, short_deadline
from tests.e2e.runs import Run
from tests.e2e.shop import write_history

pytestmark = pytest.mark.nightly

# A SuperNode that stops answering is off line for Flower after a minute (two heartbeats of 30 s), and so is a task.
OFFLINE_SECONDS = 60
CHECKPOINT = Path("checkpoints", "latest.npz")
ALL, ONE = "8 clients of 2 SuperNodes", "4 clients of 2 SuperNodes"


@pytest.fixture(scope="module")
def field(tmp_path_factory, warm_kernels):
    """A SuperLink and two SuperNodes of 4 users each, for run after run; who joins in a test leaves with it."""
    with federation(tmp_path_factory.mktemp("field")) as found:
        found.start_superlink()
        for number, name in enumerate(("alice", "bob")):
            write_history(found.home(name) / "me.csv", 4, seed=number, begin=100 * number)
            found.start_node(name)
        yield found


def uploads_of(field: Federation, name: str) -> int:
    """Uploads that a device has in its book."""
    path = field.nodes[name].state / "device.sqlite3"
    if not path.exists():
        return 0
    with sqlite3.connect(path) as book:
        return int(book.execute("SELECT COALESCE(SUM(uploads), 0) FROM uploads").fetchone()[0])


def people_of(field: Federation, name: str) -> list[tuple[str, int]]:
    """Who has trained on a device, and under which number."""
    with sqlite3.connect(field.nodes[name].state / "device.sqlite3") as book:
        return book.execute("SELECT user, number FROM people ORDER BY number").fetchall()


def newest_book_of(field: Federation, name: str) -> list[tuple[int, int]]:
    """(uploads, last round) of each user in the training that a device took part in last."""
    with sqlite3.connect(field.nodes[name].state / "device.sqlite3") as book:
        return book.execute(
            "SELECT uploads, round FROM uploads WHERE training = (SELECT training FROM uploads ORDER BY at DESC LIMIT 1)"
        ).fetchall()


def wait_for_an_app(field: Federation, name: str) -> None:
    """Until a device is at work on a message."""
    process = field.nodes[name].process
    field.wait_for(lambda: field.children(process, "flwr-clientapp"), 30, f"a ClientApp of {name}")


def test_a_straggler_is_not_waited_for_and_its_late_answer_does_no_harm(field, tmp_path):
    deadline = short_deadline()
    run = field.run(tmp_path / "out", num_rounds=30, round_timeout=deadline)
    run.wait_until_said("round 1/30", 60)
    wait_for_an_app(field, "bob")
    bob = field.nodes["bob"].process
    field.kill(bob, signal.SIGSTOP)
    began = time.monotonic()
    run.wait_until_said(ONE, deadline + 8)
    assert time.monotonic() - began < deadline + patience(8), "not waited for beyond the deadline"
    field.kill(bob, signal.SIGCONT)
    field.wait_for(lambda: ALL in run.log.rsplit(ONE, 1)[1], 60, "a round with both")
    summary = run.stop(60)
    missed = run.log.count(ONE)
    assert summary["clients"]["trained"] == 8 * summary["rounds"] - 4 * missed
    assert summary["clients"]["refused"] == missed
    assert all(reason.endswith(f"no answer within {deadline:g} s") for reason in summary["clients"]["reasons"])
    book = newest_book_of(field, "bob")
    assert len(book) == 4
    assert all(uploads == last for uploads, last in book), "the late upload was never looked at, and stands in the book"


def test_a_data_file_that_changes_or_breaks_between_rounds(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=30)
    run.wait_until_said("round 1/30", 60)
    file = field.nodes["alice"].data
    whole = file.read_text()
    file.write_text(whole + "person-0,ite")
    run.wait_until_said("1 refused", 40)
    file.write_text(whole + "".join(f"a-newcomer,item-{i},{i}\n" for i in range(8)))
    field.wait_for(lambda: ALL in run.log.rsplit(ONE, 1)[1], 40, "a round with both")
    summary = run.stop(60)
    file.write_text(whole)
    (reason,) = summary["clients"]["reasons"]
    assert "me.csv, line 50" in reason, "which file, and where in it"
    refused = summary["clients"]["refused"]
    assert refused <= 2
    assert summary["clients"]["trained"] == 8 * summary["rounds"] - 4 * refused, (
        "it cost its owner alone, and while it lasted"
    )
    assert ("a-newcomer", 4) in people_of(field, "alice")


def test_a_supernode_killed_in_mid_round_costs_itself_and_comes_back_with_its_key(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=60, round_timeout=short_deadline())
    run.wait_until_said("round 1/60", 60)
    wait_for_an_app(field, "bob")
    people = people_of(field, "bob")
    field.kill(field.nodes["bob"].process)
    before = uploads_of(field, "bob")
    run.wait_until_said(ONE, 30)
    early = field.start_node("bob")
    assert early.process is not None
    field.wait_for(lambda: early.process.poll() is not None, 30, "the end of a SuperNode whose key seems to be in use")
    assert "Failed to activate SuperNode" in early.log, "Flower takes a key back when its node is off line"
    run.wait_until_said("is off line: it is not asked until it comes back", OFFLINE_SECONDS + 40)
    field.start_node("bob")
    run.wait_until_said("takes part from now on (4 users)", OFFLINE_SECONDS)
    field.wait_for(lambda: ALL in run.log.rsplit("takes part from now on", 1)[1], 40, "a round with both")
    run.stop(60)
    assert uploads_of(field, "bob") >= before + 4
    assert people_of(field, "bob") == people, "the state of before is the state of after"
    assert "4 clients of 1 SuperNodes, 0 refused" in run.log, "while it was off line nobody waited for it"


def test_a_serverapp_that_is_killed_ends_its_run_and_another_goes_on(field, tmp_path):
    run = field.run(tmp_path / "first", num_rounds=30)
    field.wait_for((tmp_path / "first" / CHECKPOINT).exists, 60, "a checkpoint")
    (pid,) = field.children(field.superlink, "flwr-serverapp")
    os.kill(pid, signal.SIGKILL)
    goes_on_from_its_checkpoint(field, run, tmp_path)


def test_a_superlink_that_dies_costs_the_round_and_the_run_goes_on_from_its_checkpoint(field, tmp_path):
    run = field.run(tmp_path / "first", num_rounds=30)
    field.wait_for((tmp_path / "first" / CHECKPOINT).exists, 60, "a checkpoint")
    field.kill(field.superlink)
    field.start_superlink()
    goes_on_from_its_checkpoint(field, run, tmp_path)


def goes_on_from_its_checkpoint(field: Federation, run: Run, folder: Path) -> None:
    """Another run takes up a killed one after its last finished round, with everybody; Flower marks the killed one as failed."""
    done = run.log.count(" of train: ")
    checkpoint = folder / "first" / CHECKPOINT
    with np.load(checkpoint) as arrays:
        assert arrays["item_table"].shape == (60, 8)
    # A SuperNode that was fetching a message when its sender was killed waits for the rest until Flower calls that run failed.
    patient = OFFLINE_SECONDS + 40
    again = field.run(folder / "second", num_rounds=30, round_timeout=patient, resume_from=str(checkpoint))
    again.wait_until_said("going on after round", patient)
    went_on = int(again.log.split("going on after round ")[1].split()[0])
    assert went_on >= done - 1, "nothing but the round that ran is lost"
    again.wait_until_said(f"round {went_on + 1}/30 of train: {ALL}, 0 refused", 60)
    summary = again.stop(60)
    assert summary["rounds"] >= went_on + 1
    assert summary["clients"]["refused"] == 0
    field.wait_for(lambda: run.status == "finished:failed", OFFLINE_SECONDS + 40, "the killed run's end", pause=3.0)


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
    dora = field.start_node("dora", PYTHONPATH=str(site))
    field.wait_for(lambda: "SuperNode ID" in dora.log, 30, "dora")
    run = field.run(tmp_path / "out", num_rounds=30)
    run.wait_until_said(f"round 1/30 of train: {ALL}, 0 refused", 60)
    summary = run.stop(60)
    field.stop_node("dora")
    assert "runs other code than the server" in run.log
    assert "update the app on the device" in run.log
    assert summary["clients"]["trained"] == 8 * summary["rounds"]
    assert not dora.state.exists(), "it has opened nothing"


def test_a_late_joiner_takes_part_from_the_next_rounds(field, tmp_path):
    run = field.run(tmp_path / "out", num_rounds=30)
    run.wait_until_said("round 1/30", 60)
    write_history(field.home("dave") / "me.csv", 3, seed=9, begin=900)
    field.start_node("dave")
    run.wait_until_said("takes part from now on (3 users)", 60)
    run.wait_until_said("11 clients of 3 SuperNodes", 40)
    summary = run.stop(60)
    field.stop_node("dave")
    assert summary["clients"]["refused"] == 0, "nobody lost anything by it"
    assert "does not take part" not in run.log, "dora, of the test before, has signed off: nobody asks her"
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


def test_clocks_may_be_minutes_slow_and_hours_are_turned_away(field, tmp_path, skewed_clock):
    """Flower signs what a SuperNode sends with its time, and takes nothing that is 5 s early or 5 minutes and 5 s late."""
    for number, (name, seconds) in enumerate((("slow", -240), ("wrong", 3600)), 5):
        write_history(field.home(name) / "me.csv", 4, seed=number, begin=100 * number)
        field.start_node(name, LD_PRELOAD=skewed_clock, SKEW_SECONDS=str(seconds))
    wrong = field.nodes["wrong"]
    assert wrong.process is not None
    field.wait_for(lambda: wrong.process.poll() is not None, 30, "the end of a SuperNode that is an hour fast")
    assert 'activate-node HTTP/1.1" 401' in (field.home("superlink") / "out").read_text()
    assert "SuperNode ID" not in wrong.log
    run = field.run(tmp_path / "out", num_rounds=30)
    run.wait_until_said("12 clients of 3 SuperNodes, 0 refused", 90)
    summary = run.cut_off(30)  # nothing may follow it with these SuperNodes, see `Run.stop`
    assert run.log.count(" of train: ") == summary["rounds"], "what came of the rounds before is there"
    assert summary["clients"]["refused"] == 0
    assert uploads_of(field, "slow") >= 4
    assert not wrong.state.exists()
