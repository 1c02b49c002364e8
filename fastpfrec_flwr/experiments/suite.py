"""What a study is made of, as a TOML file says it; `docs/studies.md` explains the format.

A suite names data sets, seeds and variants. A variant on a data set is the defaults, then (with `conf`) a shipped recipe, then
`[base]`, `[data-set.<name>]`, the quick version's overrides, and the variant's own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
)
from pydantic import model_validator as validator

from fastpfrec_flwr.config import ConfigError


def placed_data_set(data_set: str, folder: Path) -> str:
    """A name as it is; a path made absolute, from `folder`: it names the data set in overrides and keys, so it must be one."""
    if "/" not in data_set and not data_set.endswith((".csv", ".tsv", ".inter", ".parquet", ".txt", ".dat")):
        return data_set
    path = folder.absolute() / Path(data_set).expanduser()
    # Not the last part: a link's own name says what format it is.
    return str(path.parent.resolve() / path.name if ".." in path.parts else path)


def _placed(data_set: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return data_set if folder is None else placed_data_set(data_set, folder)


Overrides: TypeAlias = dict[str, StrictBool | StrictInt | StrictFloat | StrictStr]
Text = Annotated[str, Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
DataSet = Annotated[Text, AfterValidator(_placed)]
DataSets = Annotated[list[DataSet], Field(min_length=1)]
Metric = Literal[
    "hit_ratio_micro@10", "hit_ratio_micro@20", "ndcg@10", "ndcg@20", "recall@10", "recall@20", "precision@10",
    "precision@20", "hit_rate_user@10", "hit_rate_user@20",
]  # fmt: skip
# What a paper's table may print; seconds are not comparable with another machine's but worth showing, damage and the rates of a
# check not with another definition's.
PaperMetric = Literal[
    "hit_ratio_micro", "ndcg", "seconds_500_epochs", "communication_seconds_500_epochs", "damage", "detected",
    "false_positives", "check_seconds", "contained",
]  # fmt: skip
# What the runner sets for each run.
RUNNER_KEYS = {"data-set", "data-dir", "output-dir", "state-dir", "resume-from", "seed", "threads", "user-metrics"}


def kebab(name: str) -> str:
    """A field's name as TOML files spell it."""
    return name.replace("_", "-")


class SuiteError(ConfigError):
    """A suite that cannot be used; the message names file, key, rule and value."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=kebab, populate_by_name=True)


class Variant(_Part):
    """One row of the table that a suite makes.

    Attributes
    ----------
    kind : `federated`, a run of the app; `central`, a reference that sees all interactions in one place.
    model : of a central variant. recipe : name of a shipped `conf/baselines/<recipe>.toml`, laid under the overrides.
    overrides : run-config keys. data_set : more of them for single data sets.
    """

    name: Text
    about: str = ""
    kind: Literal["federated", "central"] = "federated"
    model: Literal["popularity", "item-knn", "ease", "ials", "mf", "lightgcn", "sgl", "xsimgcl"] | None = None
    recipe: Annotated[str, Field(pattern=r"^[a-z0-9+-]*$")] = ""
    overrides: Overrides = {}
    data_set: dict[DataSet, Overrides] = {}

    @validator(mode="after")
    def _fits(self) -> Self:
        if "," in self.name:
            raise ValueError(f"name must hold no comma (--variants separates by them), got {self.name!r}")
        if not any(letter.isalnum() for letter in self.name):
            raise ValueError(f"name must hold a letter or digit, got {self.name!r}")
        if (self.kind == "central") != (self.model is not None):
            raise ValueError("model must be given for kind = 'central', and for no other")
        if self.kind == "central" and (self.overrides or self.data_set or self.recipe):
            raise ValueError("a central variant has no run-config, so it takes no overrides")
        return self


class PaperTable(_Part):
    """Figures that a paper prints, to stand beside ours.

    Attributes
    ----------
    where : table and caption. columns : `variant`, `data-set`, then metrics. rows : as the columns say.
    """

    where: Text
    columns: list[str]
    rows: list[list[str | float | int]]

    @validator(mode="after")
    def _is_a_table(self, info: ValidationInfo) -> Self:
        if self.columns[:2] != ["variant", "data-set"] or len(self.columns) < 3:
            raise ValueError(f"columns must be variant, data-set and metrics, got {self.columns}")
        known = PaperMetric.__args__  # type: ignore[attr-defined]
        if unknown := [name for name in self.columns[2:] if name not in known]:
            raise ValueError(f"columns: metrics must be some of {', '.join(known)}, got {', '.join(unknown)}")
        for row in self.rows:
            good = len(row) == len(self.columns) and all(isinstance(name, str) for name in row[:2])
            if not good or not all(isinstance(value, int | float) for value in row[2:]):
                raise ValueError(f"rows must hold two names and {len(self.columns) - 2} numbers, got {row}")
            row[1] = _placed(str(row[1]), info)
        return self

    def figures(self) -> list[dict[str, str | float]]:
        """One entry for each number."""
        return [
            {"variant": row[0], "data_set": row[1], "metric": metric, "value": value, "where": self.where}
            for row in self.rows
            for metric, value in zip(self.columns[2:], row[2:], strict=True)
        ]


class Quick(_Part):
    """A small version of a suite that still shows what the whole one does, in a few minutes.

    Attributes
    ----------
    overrides : laid over those of base and data set, under those of a variant. variants : names; empty means all.
    """

    data_sets: DataSets
    seeds: Seeds
    overrides: Overrides = {}
    variants: list[Text] = []


class Suite(_Part):
    """A study before it is run.

    Attributes
    ----------
    question : what it shows. protocol : split, ranking and metrics in a sentence. metrics : of the test part, the first counts
        most. figures : others of `summary.json` that its table shows, as `bytes.up`.
    reference : the variant that others are compared with. other_data_sets : that have their own settings here, run when asked for.
    timed : its seconds matter, so runs do not share the machine. conf : a shipped folder of recipes, `conf` or `conf/study`, whose
        `<data set>.toml` a run starts from; empty for none.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: Text
    question: Text
    protocol: Text
    metrics: Annotated[list[Metric], Field(min_length=1)]
    figures: list[Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)*$")]] = []
    reference: str | None = None
    data_sets: DataSets
    other_data_sets: list[DataSet] = []
    seeds: Seeds
    timed: bool = False
    conf: Literal["", "conf", "conf/study"] = ""
    base: Overrides = {}
    data_set: dict[DataSet, Overrides] = {}
    variants: Annotated[list[Variant], Field(min_length=1)]
    paper: list[PaperTable] = []
    quick: Quick
    _file: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """Name of the file it came from."""
        return self._file

    @validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        names = [variant.name for variant in self.variants]
        for what, found in (
            ("variants", [slug(name) for name in names]),
            ("data-sets", [*self.data_sets, *self.other_data_sets]),
            ("seeds", self.seeds),
            ("quick.data-sets", self.quick.data_sets),
            ("quick.seeds", self.quick.seeds),
        ):
            if twice := [each for i, each in enumerate(found) if each in found[:i]]:
                raise ValueError(f"{what} must differ (names by more than case and signs), got {twice[0]!r} twice")
        if self.reference is not None and self.reference not in names:
            raise ValueError(f"reference must be a variant's name, got {self.reference!r}; variants are {names}")
        if unknown := [name for name in self.quick.variants if name not in names]:
            raise ValueError(f"quick.variants must be variants' names, got {unknown[0]!r}; variants are {names}")
        for table in self.paper:
            if unknown := [str(row[0]) for row in table.rows if row[0] not in names]:
                raise ValueError(
                    f"paper: rows of {table.where!r} must name variants, got {unknown[0]!r}; variants are {names}"
                )
        for where, overrides in self._all_overrides():
            for key, value in overrides.items():
                if key in RUNNER_KEYS:
                    raise ValueError(f"{where}.{key} is set for each run and cannot be overridden, got {value!r}")
        return self

    def _all_overrides(self) -> list[tuple[str, Overrides]]:
        found = [("base", self.base), ("quick.overrides", self.quick.overrides)]
        found += [(f"data-set.{name}", each) for name, each in self.data_set.items()]
        for variant in self.variants:
            found.append((f"variants.{variant.name!r}.overrides", variant.overrides))
            found += [(f"variants.{variant.name!r}.data-set.{name}", each) for name, each in variant.data_set.items()]
        return found


def slug(name: str) -> str:
    """A name as part of a path: lower-case letters, digits and single dashes; `+` is spelt out, it may be all that differs."""
    return "-".join("".join(each if each.isalnum() else " " for each in name.lower().replace("+", " plus ")).split())


def parse_suite(values: Mapping[str, Any], file: str, folder: Path | None = None) -> Suite:
    """Validate what a suite's file holds; its run-config keys are checked when a run of it is resolved.

    Parameters
    ----------
    file : its name, for messages. folder : what relative paths of data sets are from; None leaves them as they are.

    Raises
    ------
    SuiteError listing everything that is wrong, a line each, with file, key, rule and value.
    """
    try:
        suite = Suite.model_validate(dict(values), context={"folder": folder})
    except ValidationError as error:
        raise SuiteError("\n".join(f"{file}: {_explain(item)}" for item in error.errors())) from None
    suite._file = file
    return suite


def _explain(item: Any) -> str:
    key = ".".join(str(part + 1 if isinstance(part, int) else part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r}; docs/studies.md lists the keys"
    if item["type"] == "missing":
        return f"{key} is missing"
    if item["type"] == "value_error":
        return f"{key}: {item['ctx']['error']}" if key else str(item["ctx"]["error"])
    rule = item["msg"].replace("Input should be", "must be").replace("String should", "must")
    return f"{key}: {rule}, got {item['input']!r}"


def suites_folder() -> Path:
    """Where the shipped suites lie."""
    return Path(__file__).resolve().parent / "suites"


def shipped_names() -> list[str]:
    """Names of the shipped suites."""
    return sorted(path.stem for path in suites_folder().glob("*.toml"))


def load_suite(name_or_file: str) -> Suite:
    """Read a shipped suite by its name, or a suite of one's own by the path of its TOML file.

    Raises
    ------
    SuiteError.
    """
    if name_or_file.endswith(".toml") or "/" in name_or_file:
        path = Path(name_or_file).expanduser()
    else:
        path = suites_folder() / f"{name_or_file}.toml"
        if not path.is_file():
            known = shipped_names()
            close = get_close_matches(name_or_file, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise SuiteError(
                f"no suite is named {name_or_file!r}; {hint}There are {', '.join(known)}; a file of your own ends in .toml"
            )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read ({error.strerror}); look at the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: is not TOML ({error})") from None
    return parse_suite(values, path.name, path.parent)
