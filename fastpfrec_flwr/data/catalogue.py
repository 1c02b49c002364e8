"""The named data sets: the files they are made of, where those live in public, and the SHA-256 they must have."""

from __future__ import annotations

from dataclasses import dataclass

SYNTHETIC = "synthetic"
_RAW = "https://raw.githubusercontent.com"
_FASTPFREC = f"{_RAW}/yanzhenxing123/FastPFRec"
_MOVIELENS = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True)
class Archive:
    """A zip file in public and the member wanted out of it."""

    url: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PinnedFile:
    """One file of a named set.

    Attributes
    ----------
    role : "all", "train", "validation" or "test".
    size, sha256 : of the file as it is stored.
    urls : public homes, tried in this order.
    archives : zip files that hold it, tried next.
    aliases : (file name, SHA-256) of other forms with the same content that a directory may hold instead.
    """

    role: str
    name: str
    size: int
    sha256: str
    urls: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    @property
    def accepted(self) -> tuple[tuple[str, str], ...]:
        """(file name, SHA-256) of every form, the stored one first."""
        return ((self.name, self.sha256), *self.aliases)


@dataclass(frozen=True)
class WheelFile:
    """A RecBole `.inter` file inside a wheel on the package index: below its header it is the set's only file."""

    requirement: str
    member: str
    sha256: str


@dataclass(frozen=True)
class NamedSet:
    """A published data set.

    Attributes
    ----------
    origin : where it comes from, for people.
    wheel : the copy of last resort, for a set of one file.
    subset_of : (name, users below, items below) where the set is a corner of another one.
    titles : a table of item ids and titles, where the set has titles.
    """

    name: str
    origin: str
    files: tuple[PinnedFile, ...]
    wheel: WheelFile | None = None
    subset_of: tuple[str, int, int] | None = None
    titles: WheelFile | None = None


ML_100K_ITEM_SHA256 = "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"
ML_100K_INTER_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"

_SETS = (
    NamedSet(
        "ml-100k",
        "MovieLens-100K, GroupLens (https://grouplens.org/datasets/movielens/100k/)",
        (
            PinnedFile(
                "all",
                "u.data",
                1_979_173,
                "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
                urls=(f"{_MOVIELENS}/ml-100k/u.data",),
                archives=(
                    Archive(
                        f"{_MOVIELENS}/ml-100k.zip",
                        "ml-100k/u.data",
                        4_924_029,
                        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
                    ),
                ),
                aliases=(("ml-100k.inter", ML_100K_INTER_SHA256),),
            ),
        ),
        wheel=WheelFile("recbole==1.2.1", "recbole/dataset_example/ml-100k/ml-100k.inter", ML_100K_INTER_SHA256),
        titles=WheelFile("recbole==1.2.1", "recbole/dataset_example/ml-100k/ml-100k.item", ML_100K_ITEM_SHA256),
    ),
    NamedSet(
        "gowalla-1m",
        "Gowalla check-ins in the split of LightGCN (He et al., SIGIR 2020; https://github.com/kuandeng/LightGCN)",
        (
            PinnedFile(
                "train",
                "train.txt",
                4_633_414,
                "0f086326b28a56c2e6dcb81d86ee72d4ccb7eed3a8d26788392356d8f51111cc",
                urls=(
                    f"{_RAW}/kuandeng/LightGCN/master/Data/gowalla/train.txt",
                    f"{_RAW}/gusye1234/LightGCN-PyTorch/master/data/gowalla/train.txt",
                ),
            ),
            PinnedFile(
                "test",
                "test.txt",
                1_372_559,
                "95a7e4ee029370c4ccac0d6a0c8cc0615b574ac89642081cdf946090e0dd5bda",
                urls=(
                    f"{_RAW}/kuandeng/LightGCN/master/Data/gowalla/test.txt",
                    f"{_RAW}/gusye1234/LightGCN-PyTorch/master/data/gowalla/test.txt",
                ),
            ),
        ),
    ),
    NamedSet(
        "gowalla-100k",
        "users below 5,000 and items below 7,000 of gowalla-1m (https://github.com/yanzhenxing123/FastPFRec)",
        (
            PinnedFile(
                "train",
                "train.txt",
                954_706,
                "e585fc69706cbba93e1e2557b4a2465098c3a5d585c3528007f65db93ab6f214",
                urls=(f"{_FASTPFREC}/3029da0705ad7107baab566aa02aa3ce078cc89c/dataset/gowalla_100k/train.txt",),
                aliases=(("train.txt", "dbfaebc265b6a9554419182523f2efd7c7a4277a562fec6a5cc7ce18ed800211"),),
            ),
            PinnedFile(
                "test",
                "test.txt",
                222_905,
                "923bda3303134d68d1c166f1f2297dcfe25af912de1926fba6677a8183e688c5",
                urls=(f"{_FASTPFREC}/0c231982eb14deb944aa9c3ce1ad9d25283dae72/dataset/gowalla_100k/test.txt",),
                aliases=(("test.txt", "776c062f8e01513017b744b0b2f03a5493d43cc5f1cbf6f6871dca2fc7fbf321"),),
            ),
        ),
        subset_of=("gowalla-1m", 5_000, 7_000),
    ),
    NamedSet(
        "yelp",
        "Yelp as used by PerFedRec++ and FastPFRec (https://github.com/yanzhenxing123/FastPFRec)",
        (
            PinnedFile(
                "train",
                "train.txt",
                1_211_823,
                "78f7290f9572493df62d91280a774c1d9ff92339610158ba30d904f1c0b9f615",
                urls=(f"{_FASTPFREC}/3029da0705ad7107baab566aa02aa3ce078cc89c/dataset/yelp/train.txt",),
            ),
            PinnedFile(
                "validation",
                "valid.txt",
                59_123,
                "e4e1a105cab4b3a3444d6100b11c35af0b16ba119bfde65c6fb3236e0dc25f36",
                urls=(f"{_FASTPFREC}/0c231982eb14deb944aa9c3ce1ad9d25283dae72/dataset/yelp/valid.txt",),
            ),
            PinnedFile(
                "test",
                "test.txt",
                59_323,
                "a725ddea2c76d772427b81b36a7415f6e04717ac2cfacb36408b0c6b5ab076f8",
                urls=(f"{_FASTPFREC}/a48d178faaea293645f270b6ede1767217144c03/dataset/yelp_test/test.txt",),
            ),
        ),
    ),
    NamedSet(
        "kindle",
        "Amazon Kindle Store as released with FastPFRec (https://github.com/yanzhenxing123/FastPFRec)",
        (
            PinnedFile(
                "train",
                "train.txt",
                332_169,
                "9bdba716c89cf91c083b4c77172a9a3dfda8231c23a67fb2577c54adb6087d8c",
                urls=(f"{_FASTPFREC}/0c231982eb14deb944aa9c3ce1ad9d25283dae72/dataset/kindle/train.txt",),
            ),
            # The release's validation file is its test file; we cut our own validation from train.
            PinnedFile(
                "test",
                "test.txt",
                84_401,
                "a2fd4c3a691ebaf35a86fda3e1e695af8bf031a7e627c3d4d83caa65dee464ed",
                urls=(
                    f"{_FASTPFREC}/a48d178faaea293645f270b6ede1767217144c03/dataset/kindle_test/valid.txt",
                    f"{_FASTPFREC}/a48d178faaea293645f270b6ede1767217144c03/dataset/kindle/test.txt",
                ),
            ),
        ),
    ),
)

NAMED_SETS: dict[str, NamedSet] = {named.name: named for named in _SETS}
DATA_SET_NAMES: tuple[str, ...] = (*NAMED_SETS, SYNTHETIC)
