"""What the owner of a device has said, and the file that is read anew when it changes."""

import math
import os

import numpy as np
import pytest

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.client.device import Device
from fastpfrec_flwr.client.opening import place_of
from fastpfrec_flwr.client.own_data import parse_node_config, read_own_data
from fastpfrec_flwr.config import ConfigError, default_values, parse_run_config
from fastpfrec_flwr.data import SplitSettings

GOOD = {"data-path": "/data/me.csv", "catalogue": "/data/catalogue.json", "state-dir": "/data/state"}


def test_all_of_it():
    own = parse_node_config({**GOOD, "epsilon-limit": 100}, "/a/path/of/the/server")
    assert (str(own.data_path), str(own.catalogue), str(own.state_dir)) == tuple(GOOD.values())
    assert own.epsilon_limit == 100.0
    assert parse_node_config(GOOD, "ml-100k").epsilon_limit == math.inf


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data-path": ""}, "has no data-path"),
        ({"catalogue": ""}, "needs catalogue"),
        ({"data-path": "me.csv"}, "data-path must be an absolute path, got 'me.csv'"),
        ({"data-path": 7}, "data-path must be a path in quotes, got 7"),
        ({"epsilon-limit": 0}, "epsilon-limit must be a number > 0, got 0"),
        ({"epsilon-limit": True}, "epsilon-limit must be a number > 0"),
        ({"epsilon-limit": "8"}, "epsilon-limit must be a number > 0"),
        ({"epsilon-limit": math.nan}, "epsilon-limit must be a number > 0"),
        ({"data_path": "/x"}, "unknown key 'data_path'"),
        ({"data-path": "", "epsilon-limit": 8}, "epsilon-limit = 8 needs data-path"),
    ],
)
def test_what_cannot_be_used_is_told(changes, match):
    with pytest.raises(ConfigError, match=match):
        parse_node_config({**GOOD, **changes}, "synthetic" if "needs data-path" in match else "/etc/passwd")


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (
            {"num-partitions": 2, "data-path": "/data/me.csv"},
            "data-path is for real devices and partition-id for simulations",
        ),
        ({"num-partitions": 2, "epsilon-limit": 8}, "epsilon-limit is for real devices"),
        ({}, "partition-id needs num-partitions"),
    ],
)
def test_a_device_that_says_a_partition_is_not_taken_for_simulated_in_silence(node, match):
    """Its noise would be the server's to subtract, its file and its limit would not be looked at."""
    with pytest.raises(ConfigError, match=match):
        place_of({"partition-id": 0, **node}, parse_run_config(default_values()))


def test_a_server_names_no_file_on_a_device_but_may_name_a_public_data_set():
    with pytest.raises(ConfigError, match="has no data-path"):
        parse_node_config({}, "/home/somebody/private.csv")
    assert parse_node_config({}, "synthetic").data_path is None


def test_a_changed_file_is_read_again_and_people_keep_their_numbers(tmp_path):
    items, me = tmp_path / "catalogue.json", tmp_path / "me.csv"
    Catalogue(tuple(f"i{n}" for n in range(9))).save(items)
    own = parse_node_config({"data-path": str(me), "catalogue": str(items)}, "x")
    device, settings = Device(tmp_path / "state"), SplitSettings("auto", 0.1, 0.2)

    def read(*lines):
        me.write_text("user,item,timestamp\n" + "".join(f"{line}\n" for line in lines))
        os.utime(me, ns=(1, len(lines)))
        return read_own_data(own, settings, device)

    bea = [f"bea,i{n},{n}" for n in range(4)]
    first = read(*bea)
    assert first.shard.users.tolist() == [0]
    assert read_own_data(own, settings, device) is first
    both = read("ann,i5,1", "ann,i6,2", *bea)
    assert both.shard.users.tolist() == [0, 1], "ann is new and comes first in the file; bea keeps her number"
    assert np.array_equal(both.shard.train.row(0), first.shard.train.row(0))
    assert read("ann,i5,1", "ann,i6,2").shard.users.tolist() == [1]
    Catalogue(tuple(f"i{n}" for n in range(10))).save(items)
    assert read_own_data(own, settings, device).shard.num_items == 10


def test_a_catalogue_beside_the_state_is_found(tmp_path):
    config = {"data-path": "/data/me.csv", "state-dir": str(tmp_path)}
    with pytest.raises(ConfigError, match="needs catalogue"):
        parse_node_config(config, "x")
    Catalogue(("a",)).save(tmp_path / "catalogue.json")
    assert parse_node_config(config, "x").catalogue == tmp_path / "catalogue.json"
