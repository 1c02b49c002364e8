"""Files that are whole or not there."""

import os
import threading

import pytest

from fastpfrec_flwr import files
from fastpfrec_flwr.files import source_fingerprint, write_atomically


def test_writes_new_replaces_old_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"old")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"")
    assert path.read_bytes() == b""
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files.os, broken, fail)
    with pytest.raises(OSError, match="file"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interruption_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    with pytest.raises(OSError, match="plain"):
        write_atomically(tmp_path / "plain" / "file", b"x")
    assert sorted(os.listdir(tmp_path)) == ["folder", "plain"]


def test_a_reader_sees_old_or_new_while_writers_write(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([letter]) * 50_000 for letter in b"abcd"]
    write_atomically(path, contents[0])
    done = threading.Event()
    seen = []

    def read():
        while not done.is_set():
            seen.append(path.read_bytes())

    def write(content):
        for _ in range(15):
            write_atomically(path, content)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert len(seen) > 1
    assert set(seen) <= set(contents)
    assert os.listdir(tmp_path) == ["file"]


def test_the_fingerprint_is_one_short_hash():
    assert len(source_fingerprint()) == 16
    assert int(source_fingerprint(), 16) >= 0
