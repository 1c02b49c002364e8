from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastpfrec_flwr.data import fetching
from fastpfrec_flwr.data.interactions import Ids, Interactions
from fastpfrec_flwr.data.reading import read_files

Pairs = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own store and cache, and no way to the network."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))

    def unreachable(url: str, size: int, progress: object) -> bytes:
        raise fetching._SourceError("no answer (Name or service not known)")

    def no_wheel(wheel: object, progress: object) -> bytes:
        raise fetching._SourceError("No matching distribution found")

    monkeypatch.setattr(fetching, "download", unreachable)
    monkeypatch.setattr(fetching, "from_wheel", no_wheel)
    return home


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file with exactly these bytes."""

    def write(content: str | bytes, name: str = "data.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def read() -> Callable[..., Interactions]:
    """Read one file; the result also carries its pairs as ids."""

    def read(path: Path, min_weight: float | None = None, role: str = "all") -> tuple[Pairs, Interactions]:
        ids = Ids()
        found = read_files({role: path}, ids, min_weight)[role]
        users, items = np.array(ids.users.ids()), np.array(ids.items.ids())
        return list(zip(users[found.users].tolist(), items[found.items].tolist(), strict=True)), found

    return read


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Directory of the published files, for tests that count them."""
    default = Path(__file__).parents[2].parent / "shared" / "data"
    directory = Path(os.environ.get("FASTPFREC_TEST_DATA", default))
    if not (directory / "gowalla-1m" / "train.txt").is_file():
        pytest.skip(
            f"published data sets are not in {directory}; set FASTPFREC_TEST_DATA to a directory that holds them"
        )
    return directory
