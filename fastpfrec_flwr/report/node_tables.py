"""Tables of trusted nodes that failed or were put in quarantine; nothing where none did."""

from __future__ import annotations

from collections.abc import Mapping

from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.reading import Run
from fastpfrec_flwr.report.study import Study
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words

# Heading, and where summary.json has it.
_COUNTS = (
    ("failures", ("nodes", "failures")),
    ("node-rounds away", ("nodes", "rounds_away")),
    ("node-rounds in quarantine", ("nodes", "rounds_quarantined")),
    ("rounds without a node", ("nodes", "rounds_without_any")),
    ("uploads", ("clients", "trained")),
    ("sent to another node", ("clients", "reassigned")),
    ("lost", ("clients", "lost")),
)


def nodes_table(study: Study) -> Table | None:
    """What failures and quarantine did, summed over seeds; None where no run had any."""
    if not any(_count(run, "nodes", key) for run in study.done() for key in ("rounds_away", "rounds_quarantined")):
        return None
    rows = []
    for data_set in study.data_sets:
        for variant in study.variants:
            if runs := study.of(data_set, variant.name):
                rows.append((words(data_set, "data_set"), words(variant.name, "variant"), *_cells(runs)))
    columns = (
        Column("data set", "left"),
        Column("variant", "left"),
        *(Column(title) for title, _ in _COUNTS),
        Column("share lost"),
    )
    note = "A node that is away for n rounds counts n times; so does one in quarantine."
    caption = "What became of trusted nodes and of the uploads that were theirs, summed over rounds and seeds."
    return Table("nodes", "Trusted nodes that failed", caption, columns, tuple(rows), (note,))


def _cells(runs: list[Run]) -> list[Cell]:
    sums = {title: sum(_count(run, *place) for run in runs) for title, place in _COUNTS}
    cells = [number(f"{value:,}", value, title.replace(" ", "_").replace("-", "_")) for title, value in sums.items()]
    lost, uploads = sums["lost"], sums["uploads"]
    return [*cells, number(show.share(lost, uploads), lost / uploads if uploads else None, "share_lost")]


def _count(run: Run, part: str, key: str) -> int:
    values = run.summary.get(part)
    return int(values.get(key) or 0) if isinstance(values, Mapping) else 0
