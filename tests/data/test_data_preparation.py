"""Prepared once, opened often: cache, shards, own directories."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from fastpfrec_flwr.data import DataError, Split, SplitSettings, open_shard, preparation, prepare
from fastpfrec_flwr.data.cache import is_intact, save_split

SETTINGS = SplitSettings(seed=5)


def assert_same(one: Split, other: Split) -> None:
    assert one.fingerprint == other.fingerprint
    for part in ("train", "validation", "test"):
        for field in ("indptr", "items"):
            left, right = getattr(getattr(one, part), field), getattr(getattr(other, part), field)
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
    np.testing.assert_array_equal(one.user_ids, other.user_ids)
    np.testing.assert_array_equal(one.item_ids, other.item_ids)


def test_a_hit_is_the_same_and_reads_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepare("synthetic", None, SETTINGS)
    before = made.load()
    monkeypatch.setattr(preparation, "_make", lambda *_: pytest.fail("prepared a second time"))
    hit = prepare("synthetic", None, SETTINGS)
    assert (made.from_cache, hit.from_cache) == (False, True)
    assert hit.directory == made.directory
    assert hit.report == made.report == before.report
    assert_same(before, hit.load())
    assert before.split_settings == SplitSettings(method="random", seed=5)


def test_the_loaded_split_equals_the_one_that_was_saved(write) -> None:
    path = write("".join(f"user-{i % 7} item-{i % 11 + i % 3}\n" for i in range(60)))
    prepared = prepare(str(path), None, SETTINGS)
    split = prepared.load()
    assert prepared.name == split.name == "data"
    assert split.train.items.dtype == np.int32
    assert split.train.indptr.dtype == np.int64
    assert split.user_ids.tolist() == [f"user-{i}" for i in range(7)]
    assert isinstance(split.train.items, np.memmap)
    save_split(split, prepared.directory)  # over itself, while it is mapped
    assert is_intact(prepared.directory)
    assert_same(split, prepared.load())


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "manifest", "schema"])
def test_a_damaged_cache_is_made_again(damage: str) -> None:
    made = prepare("synthetic", None, SETTINGS)
    fingerprint = made.load().fingerprint
    target = made.directory / "train_items.npy"
    data = target.read_bytes()
    if damage == "cut":
        target.write_bytes(data[:-4])
    elif damage == "flip":
        target.write_bytes(data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])
    elif damage == "remove":
        target.unlink()
    else:
        manifest = made.directory / "manifest.json"
        content = json.loads(manifest.read_text()) | {"schema": 0}
        manifest.write_text("{" if damage == "manifest" else json.dumps(content))
    again = prepare("synthetic", None, SETTINGS)
    assert not again.from_cache
    assert again.load().fingerprint == fingerprint
    assert target.read_bytes() == data
    assert not list(made.directory.parent.glob("*.tmp")), "nothing is left lying about"


def test_changed_files_and_settings_are_prepared_anew(write) -> None:
    path = write("1 2\n1 3\n2 3\n2 2\n")
    first = prepare(str(path), None, SETTINGS)
    write("1 2\n1 3\n2 3\n2 4\n")
    second = prepare(str(path), None, SETTINGS)
    third = prepare(str(path), None, SplitSettings(seed=6))
    assert len({first.directory, second.directory, third.directory}) == 3
    assert second.load().item_ids.tolist() == ["2", "3", "4"] or second.report["test_items_unseen"]


@pytest.mark.parametrize("num_partitions", [1, 2, 7, 600, 601])
def test_shards_part_the_users(num_partitions: int) -> None:
    prepared = prepare("synthetic", None, SETTINGS)
    split = prepared.load()
    met = []
    for partition in range(num_partitions) if num_partitions < 100 else (0, 5, num_partitions - 1):
        shard = open_shard(prepared.directory, partition, num_partitions)
        assert shard.num_items == split.num_items
        assert shard.users.tolist() == list(range(partition, split.num_users, num_partitions))
        for part in ("train", "validation", "test"):
            rows, whole = getattr(shard, part), getattr(split, part)
            assert rows.lengths.tolist() == whole.lengths()[shard.users].tolist()
            for position, user in enumerate(shard.users):
                np.testing.assert_array_equal(rows.row(position), whole.row(user))
        met += shard.users.tolist()
    if num_partitions < 100:
        assert sorted(met) == list(range(split.num_users))


def test_a_shard_reads_nothing_of_other_users() -> None:
    """Spoil everybody else's rows on disk: the shard does not change."""
    prepared = prepare("synthetic", None, SETTINGS)
    shard = open_shard(prepared.directory, 1, 3)
    before = [shard.train.row(position).copy() for position in range(len(shard.users))]
    path = prepared.directory / "train_items.npy"
    poisoned = np.full_like(np.load(path), -7)
    for row, start in zip(before, shard.train.starts, strict=True):
        poisoned[start : start + len(row)] = row
    np.save(path, poisoned)
    shard = open_shard(prepared.directory, 1, 3)
    for position, row in enumerate(before):
        np.testing.assert_array_equal(shard.train.row(position), row)


def test_empty_parts_open(write) -> None:
    path = write("1 2\n1 3\n2 3\n")
    prepared = prepare(str(path), None, SplitSettings("random", validation_fraction=0, test_fraction=0))
    assert prepared.load().test.nnz == 0
    assert open_shard(prepared.directory, 0, 1).test.lengths.tolist() == [0, 0]


def _prepare_in_child(path: str, queue: multiprocessing.Queue[str]) -> None:
    queue.put(prepare(path, None, SETTINGS).fingerprint)


def test_processes_at_once_agree(write) -> None:
    path = write("".join(f"{i % 97} {i % 89}\n" for i in range(3000)))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_prepare_in_child, args=(str(path), queue)) for _ in range(3)]
    for child in children:
        child.start()
    fingerprints = {queue.get(timeout=60) for _ in children}
    for child in children:
        child.join(timeout=60)
    assert fingerprints == {prepare(str(path), None, SETTINGS).fingerprint}


DIRECTORIES = {
    "lightgcn": {"train.txt": "0 1 2 3 4\n1 2 3\n", "test.txt": "0 5\n1 4\n", "user_list.txt": "org_id remap_id\n"},
    "mixed": {"train.csv": "user,item\n0,1\n0,2\n0,3\n0,4\n1,2\n1,3\n", "test.tsv": "0\t5\t1\n1\t4\t1\n"},
    "recbole": {
        "x.train.inter": "user_id:token\titem_id:token\n0\t1\n0\t2\n0\t3\n0\t4\n1\t2\n1\t3\n",
        "x.test.inter": "user_id:token\titem_id:token\n0\t5\n1\t4\n",
    },
}


@pytest.mark.parametrize("files", DIRECTORIES.values(), ids=DIRECTORIES)
def test_own_directories(files: dict[str, str], tmp_path: Path, write) -> None:
    for name, content in files.items():
        write(content, f"mine/{name}")
    prepared = prepare("mine", str(tmp_path), SplitSettings(validation_fraction=0))
    assert prepared.name == "mine"
    assert prepared.report["method"] == "released"
    split = prepared.load()
    assert [split.train.row(user).tolist() for user in range(2)] == [[0, 1, 2, 3], [1, 2]]
    assert [split.test.row(user).tolist() for user in range(2)] == [[], [3]]
    assert split.report["test_items_unseen"] == 1


@pytest.mark.parametrize("name", ["validation.txt", "valid.csv", "val.tsv", "dev.txt"])
def test_a_validation_file_is_used(name: str, tmp_path: Path, write) -> None:
    write("0 1\n0 2\n1 2\n", "train.txt")
    write("0 3\n", "test.txt")
    separator = {".csv": ",", ".tsv": "\t"}.get(Path(name).suffix, " ")
    write(f"1{separator}3\n", name)
    report = prepare(str(tmp_path), None, SplitSettings()).report
    assert (report["train_pairs"], report["validation_pairs"], report["test_pairs"]) == (3, 1, 1)


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ml.inter", "anything.tsv"])
def test_a_directory_with_one_file_of_interactions(name: str, tmp_path: Path, write) -> None:
    separator = "::" if name.endswith(".dat") else "\t"
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" if name.endswith(".inter") else ""
    rows = [separator.join(map(str, (user, item, 3, item))) for user in range(4) for item in range(5)]
    write(header + "\n".join(rows), name)
    write("not interactions\n", "README.txt")
    if name == "u.data":
        write("1|a\n", "u1.dat")
    report = prepare(str(tmp_path), None, SplitSettings()).report
    assert report["method"] == "chronological"
    assert report["users"] == 4


def test_min_weight(write) -> None:
    path = write("".join(f"{user} {item} {item - 2}\n" for user in range(6) for item in range(8)))
    with pytest.raises(DataError, match="line 1: weight -2 is not above zero"):
        prepare(str(path), None, SplitSettings())
    report = prepare(str(path), None, SplitSettings(min_weight=1)).report
    assert report["all_below_min_weight"] == 18
    assert report["train_pairs"] + report["validation_pairs"] + report["test_pairs"] == 30


def test_report_is_json_and_names_the_file(write) -> None:
    path = write("1 2\n1 3\n1 3\n2 3\n")
    report = json.loads(json.dumps(prepare(str(path), None, SETTINGS).report))
    assert report["files"][0] == {
        "role": "all",
        "file": str(path),
        "sha256": preparation.sha256_of(path),
        "format": "columns `user item` by blanks",
        "lines": 4,
        "interactions": 4,
        "users_without_items": 0,
    }
    assert report["duplicates"] == 1
    assert report["pairs_per_user_median"] > 0


def test_hashes_are_remembered_and_forgotten(write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("1 2\n")
    monkeypatch.setattr("fastpfrec_flwr.data.storage._SETTLED_SECONDS", -1.0)
    first = preparation.sha256_of(path)
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed a second time"))
        assert preparation.sha256_of(path) == first
    time.sleep(0.01)
    path.write_bytes(b"1 3\n")
    assert preparation.sha256_of(path) != first
