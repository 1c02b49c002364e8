"""A device's own file on the rows of a given catalogue."""

import numpy as np
import pytest

from fastpfrec_flwr.catalogue import Catalogue
from fastpfrec_flwr.data import DataError, SplitSettings
from fastpfrec_flwr.data.device import read_device

ITEMS = ("z", "m", "a", "7", "k", "b", "c", "d")  # in no sorted order: the catalogue's order is what counts
CATALOGUE = Catalogue(ITEMS, reserved=2)
TIMED = SplitSettings("auto", 0.2, 0.2)


def numbers(users):
    """As a device numbers them: ann 5, bea 2, others from 10."""
    known = {"ann": 5, "bea": 2}
    return np.array([known.get(user, 10 + i) for i, user in enumerate(users)], np.int64)


def write(path, *lines):
    path.write_text("user,item,timestamp\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_items_take_the_catalogues_rows_and_users_their_own_numbers(tmp_path):
    """ann: z m a 7 k b in time; the last (b) is her test item, the fifth (k) validation, the rest train."""
    file = write(
        tmp_path / "me.csv",
        "ann,z,1",
        "ann,m,2",
        "ann,a,3",
        "ann,7,4",
        "ann,k,5",
        "ann,b,6",
        "bea,d,1",
        "bea,c,2",
        "bea,z,3",
    )
    data = read_device(file, CATALOGUE, TIMED, numbers)
    shard = data.shard
    assert shard.users.tolist() == [2, 5]
    assert (shard.num_items, shard.num_reserved) == (10, 2)
    # bea: train d, validation c, test z; rows 7, 6, 0.
    assert [shard.train.row(0).tolist(), shard.validation.row(0).tolist(), shard.test.row(0).tolist()] == [
        [7],
        [6],
        [0],
    ]
    assert [shard.train.row(1).tolist(), shard.validation.row(1).tolist(), shard.test.row(1).tolist()] == [
        [0, 1, 2, 3], [4], [5],
    ]  # fmt: skip
    assert shard.train.row(1).dtype == np.int32


def test_one_users_test_items_count_though_nobody_else_here_has_them(tmp_path):
    """The catalogue is everybody's: an item that is in no train row of this device can still be recommended to it."""
    file = write(tmp_path / "me.csv", *(f"ann,{item},{time}" for time, item in enumerate(ITEMS)))
    shard = read_device(file, CATALOGUE, TIMED, numbers).shard
    assert len(shard.test.row(0)) == 2
    assert shard.test.row(0).tolist() == [6, 7]


def test_items_beyond_the_catalogue_are_left_out_and_counted(tmp_path):
    file = write(tmp_path / "me.csv", "ann,new,1", "ann,z,2", "ann,newer,3", "ann,m,4", "bea,new,1")
    data = read_device(file, CATALOGUE, TIMED, numbers)
    assert data.report["items_not_in_catalogue"] == 2
    assert data.report["interactions_not_in_catalogue"] == 3
    assert data.shard.users.tolist() == [5], "who has nothing that the catalogue knows takes no part"


def test_a_device_that_knows_nothing_of_the_catalogue_says_so(tmp_path):
    with pytest.raises(DataError, match="none of its 1 items"):
        read_device(write(tmp_path / "me.csv", "ann,new,1"), CATALOGUE, TIMED, numbers)


def test_a_folder_with_its_own_test_file(tmp_path):
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "train.txt").write_text("ann z 1\nann m 1\n")
    (tmp_path / "me" / "test.txt").write_text("ann d 1\n")
    shard = read_device(tmp_path / "me", CATALOGUE, SplitSettings("auto", 0.1, 0.2), numbers).shard
    assert shard.test.row(0).tolist() == [7]
    assert sorted([*shard.train.row(0), *shard.validation.row(0)]) == [0, 1]


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_device(tmp_path / "gone.csv", CATALOGUE, TIMED, numbers)
    half = tmp_path / "half.csv"
    half.write_text("user,item,timestamp\nann,z,1\nann,m")
    with pytest.raises(DataError, match=r"half\.csv"):
        read_device(half, CATALOGUE, TIMED, numbers)
