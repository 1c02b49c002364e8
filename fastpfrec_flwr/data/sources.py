"""Where is the data set? A name or a path becomes the files to read, each with its role.

A named set is looked for in `data-dir`, then in the store of what was fetched or imported before, and is fetched then.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastpfrec_flwr.data.catalogue import DATA_SET_NAMES, NAMED_SETS, SYNTHETIC, NamedSet
from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.storage import one_at_a_time, sha256_of, store_root, write_atomically
from fastpfrec_flwr.data.types import Progress

if TYPE_CHECKING:
    from fastpfrec_flwr.data.generated import Size

SUFFIXES = (".txt", ".csv", ".tsv", ".inter", ".parquet", ".pq", ".data", ".dat")
ROLE_NAMES = {
    "train": ("train", "training"),
    "validation": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
SINGLE_FILE_NAMES = ("u.data", "ratings.csv", "ratings.dat", "interactions.csv")


@dataclass(frozen=True)
class Source:
    """The files of a data set: role ("all", or "train" with "validation" and "test") -> file.

    None: generated, and where `size` is given, of that size.
    """

    name: str
    origin: str
    files: dict[str, Path] | None
    size: Size | None = None


def resolve(data_set: str, data_dir: str | Path | None, progress: Progress | None, offline: bool) -> Source:
    """Find a data set, fetching it if need be.

    Raises
    ------
    DataError if there is no such set or path, a file lacks, or a checksum is wrong.
    """
    directory = None if not data_dir else Path(data_dir).expanduser()
    if directory is not None and not directory.is_dir():
        raise DataError(
            f"data-dir {directory}: no such directory. Give an absolute path of one, or leave data-dir empty"
        )
    if not data_set.strip():
        raise DataError(f"data-set is empty. Give one of {', '.join(DATA_SET_NAMES)}, or an absolute path")
    if data_set == SYNTHETIC:
        return Source(SYNTHETIC, "generated", None)
    if data_set.startswith(f"{SYNTHETIC}-") and not Path(data_set).exists():
        from fastpfrec_flwr.data.generated import size_of  # compiled code, which few runs need

        if (size := size_of(data_set)) is not None:
            return Source(data_set, "generated", None, size)
    if data_set in NAMED_SETS:
        named = NAMED_SETS[data_set]
        found = locate(named, directory)
        if found is not None:
            return found
        if offline:
            raise DataError(
                f"data set {data_set} is neither in data-dir nor in {store_root()}, and fetching is off. Import it "
                f'once (fastpfrec data fetch {data_set} --from DIR), set data-dir, or set data-set = "{SYNTHETIC}"'
            )
        from fastpfrec_flwr.data.fetching import fetch_into_store  # most runs fetch nothing

        fetched = fetch_into_store(named, progress)
        return Source(data_set, "fetched", {file.role: fetched / file.name for file in named.files})
    path = _own_path(data_set, directory)
    if path.is_dir():
        return Source(path.name, "own directory", files_of_directory(path))
    return Source(path.stem, "own file", {"all": path})


def locate(named: NamedSet, data_dir: Path | None) -> Source | None:
    """Find a named set in `data-dir` or in the store, or cut it out of a larger one found there."""
    if data_dir is not None and (files := named_files(named, data_dir / named.name, strict=True)):
        return Source(named.name, "data-dir", files)
    # What lies broken in our own store is no fault of the user: it counts as missing and is fetched again.
    if files := named_files(named, store_root() / named.name, strict=False):
        return Source(named.name, "store", files)
    if named.subset_of is not None:
        whole_name, users, items = named.subset_of
        whole = locate(NAMED_SETS[whole_name], data_dir)
        if whole is not None and whole.files is not None:
            return Source(named.name, f"cut out of {whole_name}", _cut_out(named, whole.files, users, items))
    return None


def named_files(named: NamedSet, directory: Path, strict: bool) -> dict[str, Path] | None:
    """Return the files of a named set in a directory, checked by SHA-256; None if it holds none of them.

    Parameters
    ----------
    strict : raise `DataError` for a missing file or a wrong checksum, instead of returning None.
    """
    if not directory.is_dir():
        return None
    found: dict[str, Path] = {}
    for pinned in named.files:
        names = dict.fromkeys(name for name, _ in pinned.accepted)
        path = next((directory / name for name in names if (directory / name).is_file()), None)
        if path is None:
            continue
        expected = [digest for name, digest in pinned.accepted if name == path.name]
        got = sha256_of(path)
        if got not in expected and _sha256_of_plain_text(path) not in expected:
            if not strict:
                return None
            raise DataError(
                f"{path}: wrong checksum: SHA-256 {expected[0]} expected for data set {named.name}, got {got}. Put the "
                f"published file there, or use your own version under its own name: data-set = {directory}"
            )
        found[pinned.role] = path
    missing = [pinned.name for pinned in named.files if pinned.role not in found]
    if found and missing and strict:
        raise DataError(f"{directory}: {', '.join(missing)} of data set {named.name} is missing. Put it there")
    return None if missing else found


def _sha256_of_plain_text(path: Path) -> str:
    """Hash without byte-order mark and Windows line ends, which a copy may have gained on its way."""
    return hashlib.sha256(path.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")).hexdigest()


def _cut_out(named: NamedSet, whole: dict[str, Path], users: int, items: int) -> dict[str, Path]:
    """Write the corner of a set of user lines into the store, in the format `user item 1`."""
    files = {}
    with one_at_a_time(store_root() / f".{named.name}.lock"):
        for pinned in named.files:
            target = store_root() / named.name / pinned.name
            lines = []
            for line in whole[pinned.role].read_text(encoding="utf-8-sig").splitlines():
                user, *its_items = map(int, line.split())
                if user < users:
                    lines += [f"{user} {item} 1\n" for item in its_items if item < items]
            data = "".join(lines).encode()
            if hashlib.sha256(data).hexdigest() not in {digest for _, digest in pinned.accepted}:
                raise DataError(f"{whole[pinned.role]}: does not yield {named.name}. Fetch or import it instead")
            write_atomically(target, data)
            files[pinned.role] = target
    return files


def _own_path(data_set: str, data_dir: Path | None) -> Path:
    path = Path(data_set).expanduser()
    if not path.exists() and data_dir is not None and (data_dir / path).exists():
        path = data_dir / path
    if path.exists():
        return path.resolve()
    close = difflib.get_close_matches(data_set, DATA_SET_NAMES, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise DataError(
        f"data-set {data_set!r}: no named data set ({', '.join(DATA_SET_NAMES)}) and no file or directory "
        f"({path.absolute()}).{hint} Give one of the names, or an absolute path"
    )


def files_of_directory(directory: Path) -> dict[str, Path]:
    """Find train, validation and test files by their names, or the one file of interactions.

    `train.txt`, `valid.csv`, `test.parquet` and, as RecBole names them, `name.train.inter` all count.
    """
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.suffix.lower() in SUFFIXES)
    found: dict[str, Path] = {}
    for role, names in ROLE_NAMES.items():
        matching = [path for path in files if path.stem.lower().rsplit(".", 1)[-1] in names]
        if len(matching) > 1:
            both = " and ".join(path.name for path in matching)
            raise DataError(f"{directory}: {both} could both be the {role} file. Leave one of them there")
        if matching:
            found[role] = matching[0]
    if "train" in found:
        return found if len(found) > 1 else {"all": found["train"]}
    if found:
        present = ", ".join(path.name for path in found.values())
        raise DataError(f"{directory}: {present} without a train file. Add one, named train with any of {SUFFIXES}")
    named = [path for name in SINGLE_FILE_NAMES for path in files if path.name.lower() == name]
    inter = [path for path in files if path.suffix.lower() == ".inter"]
    others = [path for path in files if not path.stem.lower().startswith(("readme", "licen"))]
    for candidates in (named[:1], inter, others):
        if len(candidates) == 1:
            return {"all": candidates[0]}
    seen = (
        ", ".join(path.name for path in files)
        or ", ".join(sorted(p.name for p in directory.iterdir())[:10])
        or "nothing"
    )
    raise DataError(
        f"{directory}: no file of interactions recognised (found {seen}). Give train.txt and test.txt (or another of "
        f"{', '.join(SUFFIXES)}), or a single file, or name the file itself as data-set"
    )
