"""The catalogue: which item, by its id in the world outside, has which row of the table.

Server and devices agree on it by its hash. It is a file of its own, so that a device whose user knows a dozen items has the rows
of all of them. Rows never move: new items take rows that were reserved at the end, so that tables, checkpoints and exports keep
their shape, and the version goes up by one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.foreseen import Foreseen

FORMAT, FORMAT_VERSION = "fastpfrec-catalogue", 1
RESERVED = "~reserved-"


class CatalogueError(Foreseen, ValueError):
    """A catalogue that cannot be used; the message names file, problem and remedy."""


class Mapped(NamedTuple):
    """Ids as rows.

    Attributes
    ----------
    rows : of the ids that the catalogue has, in their order, each once. unknown : distinct ids that it has not.
    """

    rows: list[int]
    unknown: int


@dataclass(frozen=True)
class Catalogue:
    """Items in row order.

    Attributes
    ----------
    ids : (items,) ids; item i has row i. reserved : rows after them that no item has yet.
    version : counts the extensions, from 1. titles : id -> what people call it, where known. name : of the data set.
    """

    ids: tuple[str, ...]
    reserved: int = 0
    version: int = 1
    titles: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if not self.ids:
            raise CatalogueError("a catalogue needs at least one item; give the ids of the items, in row order")
        if self.reserved < 0 or self.version < 1:
            raise CatalogueError(
                f"a catalogue's reserved rows must be >= 0 and its version >= 1, got {self.reserved} and {self.version}"
            )
        wrong = next((each for each in self.ids if not each or "\n" in each or each.startswith(RESERVED)), None)
        if wrong is not None:
            raise CatalogueError(
                f"{wrong!r} cannot be an item's id: ids have no line breaks, are not empty and do not begin with "
                f"{RESERVED!r}; rename the item"
            )
        if len(self._rows) < len(self.ids):
            twice = next(each for i, each in enumerate(self.ids) if self._rows[each] != i)
            raise CatalogueError(f"item {twice!r} stands twice in the catalogue; an item has one row: remove one")

    @property
    def num_items(self) -> int:
        """Items that have a row."""
        return len(self.ids)

    @property
    def num_rows(self) -> int:
        """Rows of the table: the items' and the reserved ones."""
        return len(self.ids) + self.reserved

    @property
    def row_names(self) -> list[str]:
        """(rows,) an id for each row, the reserved ones under names that no item can have."""
        return [*self.ids, *(f"{RESERVED}{number}" for number in range(self.num_items, self.num_rows))]

    @cached_property
    def hash(self) -> str:
        """What server and devices compare: ids in row order and the number of rows. Titles and version do not matter."""
        return hash_of(self.row_names)

    @property
    def label(self) -> str:
        """As an error tells it."""
        return label(self.version, self.hash)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {each: row for row, each in enumerate(self.ids)}

    def row(self, item_id: str) -> int | None:
        """The row of an item, or None."""
        return self._rows.get(item_id)

    def rows_of(self, item_ids: Iterable[str]) -> Mapped:
        """Rows of the items that the catalogue knows, and how many it does not know."""
        distinct = list(dict.fromkeys(item_ids))
        rows = [self._rows[each] for each in distinct if each in self._rows]
        return Mapped(rows, len(distinct) - len(rows))

    def title(self, row: int) -> str:
        """What people call the item of a row; empty where the catalogue does not say."""
        return self.titles.get(self.ids[row], "")

    def extended(self, new_ids: Iterable[str], titles: Mapping[str, str] | None = None, more: int = 0) -> Catalogue:
        """The next version, with new items on the reserved rows; no row moves.

        Parameters
        ----------
        new_ids : those that stand in the catalogue already are passed over. titles : of new items or old ones.
        more : further rows to reserve; tables of the version before are then too short and have to grow.

        Raises
        ------
        CatalogueError if there are more new items than reserved rows.
        """
        fresh = [each for each in dict.fromkeys(new_ids) if each not in self._rows]
        left = self.reserved + more - len(fresh)
        if left < 0:
            raise CatalogueError(
                f"{len(fresh)} new items need a row and {self.reserved} rows are reserved; reserve {-left} more "
                "(--reserve), which changes the table's shape: models of the version before then need `catalogue fill`"
            )
        return Catalogue((*self.ids, *fresh), left, self.version + 1, {**self.titles, **(titles or {})}, self.name)

    def save(self, path: Path) -> None:
        """Write it, an item a line, so that two versions can be compared by eye."""
        lines = [
            f"[{json.dumps(each, ensure_ascii=False)}, {json.dumps(self.titles.get(each, ''), ensure_ascii=False)}]"
            for each in self.ids
        ]
        head = {
            "format": FORMAT,
            "format-version": FORMAT_VERSION,
            "name": self.name,
            "version": self.version,
            "hash": self.hash,
            "reserved": self.reserved,
        }
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "items": [\n' + ",\n".join(lines) + "\n]}\n"
        write_atomically(path, text.encode())

    def to_json(self) -> str:
        """As one line, for a model that carries its catalogue with it."""
        told = [[each, self.titles.get(each, "")] for each in self.ids]
        head = {"format": FORMAT, "format-version": FORMAT_VERSION, "name": self.name, "version": self.version}
        return json.dumps({**head, "hash": self.hash, "reserved": self.reserved, "items": told}, ensure_ascii=False)

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Catalogue:
        """Read what `save` or `to_json` wrote; `where` names it in errors.

        Raises
        ------
        CatalogueError if it is no catalogue, of a newer format, or changed by hand (its hash does not fit its items).
        """
        try:
            found = json.loads(text)
            if found.get("format") != FORMAT:
                raise CatalogueError(f"{where}: is no catalogue; make one with `fastpfrec catalogue make`")
            if found["format-version"] > FORMAT_VERSION:
                raise CatalogueError(
                    f"{where}: catalogue of format {found['format-version']}, this app reads {FORMAT_VERSION}; upgrade it"
                )
            items = [(str(item), str(title)) for item, title in found["items"]]
            catalogue = Catalogue(
                tuple(item for item, _ in items),
                int(found["reserved"]),
                int(found["version"]),
                {item: title for item, title in items if title},
                str(found["name"]),
            )
            claimed = found["hash"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, CatalogueError):
                raise
            raise CatalogueError(f"{where}: is no readable catalogue ({error}); copy or make it anew") from error
        if catalogue.hash != claimed:
            raise CatalogueError(
                f"{where}: says hash {claimed}, its items give {catalogue.hash}: it was changed by hand or on its way. "
                "Copy it anew; new items go in with `fastpfrec catalogue extend`"
            )
        return catalogue

    @staticmethod
    def load(path: Path) -> Catalogue:
        """Read a catalogue file.

        Raises
        ------
        CatalogueError, see `from_json`, and if there is no such file.
        """
        try:
            text = path.read_bytes()
        except OSError as error:
            raise CatalogueError(
                f"{path}: the catalogue cannot be read ({error.strerror or error}); copy the server's catalogue file there"
            ) from error
        return Catalogue.from_json(text, str(path))

    @staticmethod
    def of_rows(row_names: Iterable[str], name: str = "", titles: Mapping[str, str] | None = None) -> Catalogue:
        """The catalogue whose rows have these names, as tables carry them; what `row_names` of one gives back."""
        names = list(row_names)
        ids = [each for each in names if not each.startswith(RESERVED)]
        catalogue = Catalogue(tuple(ids), len(names) - len(ids), 1, titles or {}, name)
        if catalogue.row_names != names:
            raise CatalogueError("reserved rows stand between the items; they come after them: make the table anew")
        return catalogue

    def facts(self) -> dict[str, Any]:
        """What `catalogue show` and manifests say of it."""
        return {
            "name": self.name,
            "version": self.version,
            "hash": self.hash,
            "items": self.num_items,
            "reserved": self.reserved,
            "rows": self.num_rows,
            "titles": len(self.titles),
        }


def hash_of(row_names: Iterable[str]) -> str:
    """SHA-256 over the rows' names in their order, 16 hex digits. No id holds a line break, so it is injective."""
    return hashlib.sha256("\n".join(row_names).encode()).hexdigest()[:16]


def label(version: int, hash_: str) -> str:
    """A catalogue as an error tells it; version 0 is one that comes from a data set and has no file."""
    return f"catalogue version {version} (hash {hash_})" if version else f"the catalogue of a data set (hash {hash_})"
