"""The named sets: where they are looked for, how they are checked, and what the published ones hold."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import pytest

from fastpfrec_flwr.data import DATA_SET_NAMES, DataError, SplitSettings, catalogue, fetching, prepare, sources
from fastpfrec_flwr.data.catalogue import NAMED_SETS, Archive, NamedSet, PinnedFile, WheelFile
from fastpfrec_flwr.data.commands import fetch, list_data_sets, report_of
from fastpfrec_flwr.data.storage import store_root
from fastpfrec_flwr.data.types import Progress

TRAIN, TEST = b"0 1 1\n0 2 1\n1 2 1\n1 3 1\n", b"0 3 1\n1 1 1\n"
SETTINGS = SplitSettings(validation_fraction=0)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> NamedSet:
    """A named set of two small files that "the network" has."""
    named = NamedSet(
        "tiny",
        "nowhere",
        (
            PinnedFile("train", "train.txt", len(TRAIN), sha(TRAIN), ("https://one.example/train.txt",)),
            PinnedFile(
                "test", "test.txt", len(TEST), sha(TEST), ("https://one.example/x", "https://two.example/test.txt")
            ),
        ),
    )
    monkeypatch.setitem(catalogue.NAMED_SETS, "tiny", named)
    return named


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    answers = {"https://one.example/train.txt": TRAIN, "https://two.example/test.txt": TEST}

    def download(url: str, size: int, progress: Progress) -> bytes:
        if url not in answers:
            raise fetching._SourceError("no answer (404)")
        progress(url.rsplit("/", 1)[-1], len(answers[url]), size)
        return answers[url]

    monkeypatch.setattr(fetching, "download", download)
    return answers


def test_fetched_once_and_found_by_every_later_run(tiny, network) -> None:
    told: list[tuple[str, int, int | None]] = []
    first = prepare("tiny", None, SETTINGS, progress=lambda *args: told.append(args))
    assert told == [("train.txt", 24, 24), ("test.txt", 12, 12)]
    assert first.report["origin"] == "fetched"
    network.clear()
    assert prepare("tiny", None, SETTINGS).fingerprint == first.fingerprint
    assert prepare("tiny", None, SETTINGS, offline=True).fingerprint == first.fingerprint
    assert sorted(path.name for path in (store_root() / "tiny").iterdir()) == ["test.txt", "train.txt"]


def test_wrong_content_from_the_network_is_refused(tiny, network) -> None:
    network["https://one.example/train.txt"] = b"<html>not the file</html>"
    with pytest.raises(
        DataError, match=rf"one\.example/train\.txt: wrong checksum: SHA-256 {sha(TRAIN)} expected, got"
    ):
        prepare("tiny", None, SETTINGS)
    assert not (store_root() / "tiny" / "train.txt").exists()


def test_a_broken_store_is_mended(tiny, network) -> None:
    first = prepare("tiny", None, SETTINGS)
    (store_root() / "tiny" / "train.txt").write_bytes(TRAIN[:-6])
    assert prepare("tiny", None, SETTINGS).fingerprint == first.fingerprint
    assert (store_root() / "tiny" / "train.txt").read_bytes() == TRAIN


def test_data_dir_comes_first_and_is_checked(tiny, tmp_path: Path, write) -> None:
    write(TRAIN, "tiny/train.txt")
    with pytest.raises(DataError, match=r"tiny: test\.txt of data set tiny is missing"):
        prepare("tiny", str(tmp_path), SETTINGS)
    write(TEST.replace(b"\n", b"\r\n"), "tiny/test.txt")
    report = prepare("tiny", str(tmp_path), SETTINGS).report
    assert (report["origin"], report["train_pairs"], report["test_pairs"]) == ("data-dir", 4, 2)
    write(b"\xef\xbb\xbf" + TRAIN, "tiny/train.txt")
    assert prepare("tiny", str(tmp_path), SETTINGS).report["train_pairs"] == 4
    write(TRAIN.replace(b"3", b"4"), "tiny/train.txt")
    with pytest.raises(
        DataError, match=rf"train\.txt: wrong checksum: SHA-256 {sha(TRAIN)} expected .*data-set = .*/tiny"
    ):
        prepare("tiny", str(tmp_path), SETTINGS)
    assert prepare(str(tmp_path / "tiny"), None, SETTINGS).report["train_pairs"] == 4


def test_no_network() -> None:
    with pytest.raises(DataError) as caught:
        prepare("ml-100k", None, SplitSettings())
    message = str(caught.value)
    for part in (
        'data-set = "synthetic"',
        "data-dir",
        "fastpfrec data fetch ml-100k --from DIR",
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip: no answer (Name or service not known)",
        "wheel recbole==1.2.1 on your package index: No matching distribution found",
    ):
        assert part in message
    with pytest.raises(DataError, match=r"fetching is off.*data-set = \"synthetic\""):
        prepare("ml-100k", None, SplitSettings(), offline=True)


def test_archive_and_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same rows from a zip's member or a wheel's `.inter` file end as the same stored file."""
    rows = b"1\t2\t3\t9\n1\t3\t3\t8\n2\t3\t1\t7\n"
    inter = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + rows

    def zipped(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, content)
        return buffer.getvalue()

    good = zipped("x/u.data", rows)
    archive = Archive("https://x.example/x.zip", "x/u.data", len(good), sha(good))
    pinned = PinnedFile("all", "u.data", len(rows), sha(rows), archives=(archive,))
    wheel = WheelFile("some==1", "some/x.inter", sha(inter))
    named = NamedSet("tiny", "nowhere", (pinned,), wheel)
    monkeypatch.setattr(fetching, "download", lambda *_: good)
    assert fetching._fetch(named, pinned, lambda *_: None) == rows
    monkeypatch.setattr(fetching, "download", lambda *_: good[:-1])
    monkeypatch.undo()  # the true from_wheel, with a stand-in for pip
    (tmp_path / "some-1-py3-none-any.whl").write_bytes(zipped("some/x.inter", inter))
    copy = f"import shutil, sys; shutil.copy({str(tmp_path / 'some-1-py3-none-any.whl')!r}, sys.argv[-1])"
    monkeypatch.setattr(fetching, "_pips", lambda: [["no-such-pip"], [sys.executable, "-c", copy]])
    assert fetching.from_wheel(wheel, lambda *_: None) == rows
    with pytest.raises(fetching._SourceError, match="wrong checksum"):
        fetching.from_wheel(dataclasses.replace(wheel, sha256="0" * 64), lambda *_: None)
    with pytest.raises(fetching._SourceError, match=r"no file some/y\.inter in it"):
        fetching.from_wheel(dataclasses.replace(wheel, member="some/y.inter"), lambda *_: None)
    monkeypatch.setattr(fetching, "_pips", lambda: [[sys.executable, "-c", "import sys; sys.exit('ERROR: no index')"]])
    with pytest.raises(fetching._SourceError, match="ERROR: no index"):
        fetching.from_wheel(wheel, lambda *_: None)


def test_download_of_a_local_url_and_its_errors(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    url = write(TRAIN, "file.txt").as_uri()
    told: list[int] = []
    assert fetching.download(url, len(TRAIN), lambda what, done, total: told.append(done)) == TRAIN
    assert told == [len(TRAIN)]
    with pytest.raises(fetching._SourceError, match="more than the expected 3 bytes"):
        fetching.download(url, 3, lambda *_: None)
    with pytest.raises(fetching._SourceError, match="no answer"):
        fetching.download(url + ".missing", 3, lambda *_: None)


def test_list_fetch_and_show(tiny, network, tmp_path: Path, write) -> None:
    found = {row["name"]: row["found"] for row in list_data_sets(str(tmp_path))}
    assert found["tiny"] == found["ml-100k"] == "not fetched"
    assert found["synthetic"] == "generated"
    write(TRAIN, "from/tiny/train.txt")
    with pytest.raises(DataError, match=r"test\.txt of data set tiny is missing"):
        fetch("tiny", tmp_path / "from")
    write(TEST, "from/tiny/test.txt")
    network.clear()
    assert fetch("tiny", tmp_path / "from") == store_root() / "tiny"
    assert {row["name"]: row["found"] for row in list_data_sets(None)}["tiny"] == str(store_root() / "tiny")
    shown = report_of(prepare("tiny", None, SplitSettings()))
    assert (shown["users"], shown["origin"], shown["split"]["method"]) == (2, "store", "released")
    assert len(shown["fingerprint"]) == 64
    write(b"9 9 9\n", "tiny/train.txt")
    assert {row["name"]: row["found"] for row in list_data_sets(tmp_path)}["tiny"].startswith("unusable: ")
    with pytest.raises(DataError, match=r"holds neither tiny/ with train\.txt, test\.txt nor those files themselves"):
        fetch("tiny", store_root().parent)
    with pytest.raises(DataError, match=r"data set 'synthetic' cannot be fetched; known are ml-100k"):
        fetch("synthetic")


def test_import_from_the_files_own_directory(tiny, write, tmp_path: Path) -> None:
    write(TRAIN, "train.txt")
    write(TEST, "test.txt")
    fetch("tiny", tmp_path)
    assert prepare("tiny", None, SETTINGS).report["origin"] == "store"


def test_the_catalogue_is_sound() -> None:
    assert DATA_SET_NAMES == ("ml-100k", "gowalla-1m", "gowalla-100k", "yelp", "kindle", "synthetic")
    for named in NAMED_SETS.values():
        for pinned in named.files:
            assert all(len(digest) == 64 and int(digest, 16) for _, digest in pinned.accepted)
            assert all(url.startswith("https://") for url in pinned.urls)
            assert pinned.urls


# What a correct reader makes of the published files.
PUBLISHED = {
    "gowalla-1m": {
        "users": 29_858, "items": 40_981, "train+validation": 810_128, "test_pairs_in_source": 217_242,
        "test_pairs_left_out": 0, "duplicates": 0,
    },
    "gowalla-100k": {
        "users": 3_917, "items": 7_000, "train+validation": 85_442, "test_pairs_in_source": 19_733,
        "test_users_without_train": 87, "test_pairs_without_train_user": 124, "test_pairs": 19_609, "duplicates": 0,
    },
    "yelp": {
        "users": 5_224, "train_pairs": 112_576, "train_items": 7_597, "validation_pairs": 5_224,
        "test_pairs_in_source": 5_224, "test_items_not_in_train": 62, "items": 7_646, "test_items_unseen": 44,
    },
    "kindle": {
        "users": 6_785, "items": 6_696, "train+validation": 27_673, "train_duplicates": 28_858 - 27_673,
        "test_duplicates": 7_326 - 7_253, "test_pairs_in_source": 7_253, "test_pairs_in_train": 566,
        "test_users_without_train": 376, "test_items_unseen": 506,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str, real_data: Path) -> None:
    prepared = prepare(name, real_data, SplitSettings(), offline=True)
    report = prepared.report | {
        "train+validation": prepared.report["train_pairs"] + prepared.report["validation_pairs"]
    }
    if name == "yelp":
        report["train_items"] = len(set(prepared.load().train.items.tolist()))
    else:
        assert report["validation_pairs"] / report["train+validation"] == pytest.approx(0.1, abs=0.01)
    assert {key: report[key] for key in PUBLISHED[name]} == PUBLISHED[name]


def test_gowalla_100k_is_cut_out_of_gowalla_1m(real_data: Path, tmp_path: Path) -> None:
    released = prepare("gowalla-100k", real_data, SplitSettings(), offline=True)
    (tmp_path / "gowalla-1m").symlink_to(real_data / "gowalla-1m")
    derived = prepare("gowalla-100k", tmp_path, SplitSettings(), offline=True)
    assert derived.report["origin"] == "cut out of gowalla-1m"
    assert derived.fingerprint == released.fingerprint
    assert prepare("gowalla-100k", None, SplitSettings(), offline=True).report["origin"] == "cut out of gowalla-1m"


def test_a_changed_copy_is_noticed(real_data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "yelp"
    copy.mkdir()
    for path in (real_data / "yelp").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "valid.txt").write_bytes((copy / "test.txt").read_bytes())
    with pytest.raises(DataError, match=r"valid\.txt: wrong checksum"):
        sources.resolve("yelp", tmp_path, None, offline=True)
