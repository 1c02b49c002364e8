"""Two hosts: a SuperNode in a network of its own, whose link goes down and comes back."""

import os
import shutil
import subprocess

import pytest

from tests.e2e.deployment import federation
from tests.e2e.patience import short_deadline
from tests.e2e.shop import write_history

pytestmark = pytest.mark.nightly

SERVER, DEVICE = "10.77.13.1", "10.77.13.2"


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def network():
    """A network namespace that sees this machine as `SERVER` over a pair of virtual cards; the name of ours."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    name, ours, theirs = "fastpfrec-test", "fpfr0", "fpfr1"
    steps = [
        ("netns", "add", name),
        ("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name),
        ("addr", "add", f"{SERVER}/24", "dev", ours),
        ("link", "set", ours, "up"),
        ("-n", name, "addr", "add", f"{DEVICE}/24", "dev", theirs),
        ("-n", name, "link", "set", theirs, "up"),
        ("-n", name, "link", "set", "lo", "up"),
    ]
    try:
        for step in steps:
            done = ip(*step)
            if done.returncode:
                pytest.skip(f"no network namespaces here: ip {' '.join(step)}: {done.stderr.strip()}")
        # A poor link where the kernel can make one; a good one that goes down is the same test.
        netem = ["tc", "qdisc", "add", "dev", ours, "root", "netem", "delay", "80ms", "20ms", "loss", "1%"]
        if shutil.which("tc") is not None:
            subprocess.run(netem, capture_output=True, check=False)
        yield name, ours
    finally:
        ip("link", "del", ours)
        ip("netns", "del", name)


def test_a_link_that_goes_down_for_a_while_costs_its_rounds(network, tmp_path, warm_kernels):
    name, card = network
    with federation(tmp_path / "field", listen="0.0.0.0", reached_as=SERVER) as field:
        field.start_superlink()
        for node, users, begin in (("near", 4, 0), ("far", 4, 100)):
            write_history(field.home(node) / "me.csv", users, seed=begin, begin=begin)
        field.start_node("near")
        field.start_node("far", address=SERVER, within=["ip", "netns", "exec", name])
        run = field.run(tmp_path / "out", num_rounds=30, round_timeout=short_deadline())
        run.wait_until_said("8 clients of 2 SuperNodes", 90)
        assert ip("link", "set", card, "down").returncode == 0
        run.wait_until_said("4 clients of", 40)
        assert ip("link", "set", card, "up").returncode == 0
        field.wait_for(lambda: "8 clients of 2" in run.log.rsplit("4 clients of", 1)[1], 90, "a round with both again")
        summary = run.stop(60)
        assert all("no answer within" in reason for reason in summary["clients"]["reasons"])
        assert field.nodes["far"].process.poll() is None, "it got over it by itself"
