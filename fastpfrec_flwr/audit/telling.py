"""The audit's tables, for people and for programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fastpfrec_flwr.audit.measuring import FIGURES, Figure
from fastpfrec_flwr.audit.running import Audited, CanaryRow
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.privacy.accountant import show
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words
from fastpfrec_flwr.report.writing import to_csv, to_markdown

_SHORT = {
    "touched_precision_one": "moved rows: precision, 1",
    "touched_recall_one": "recall, 1",
    "touched_precision_all": "precision, all",
    "touched_recall_all": "recall, all",
    "node_auc_one": "node: AUC, 1",
    "node_auc_all": "AUC, all",
    "reconstructed_one": "found, 1",
    "reconstructed_all": "found, all",
    "server_auc_one": "server: AUC, 1",
    "server_auc_all": "AUC, all rounds",
}


def observers_table(found: list[Audited], watched: int, uploads: int) -> Table:
    """A line for each protection, a column for each thing that an observer can tell; the last line is chance."""
    rows = []
    for audited in found:
        row = [words(audited.name, "protection"), _epsilon(audited.epsilon_one, "epsilon_one_upload")]
        rows.append(tuple(row + [_figure(audited.figures[name], name) for name in FIGURES]))
    if found:
        chances = [found[0].figures[name] for name in FIGURES]
        chance = [words("chance (first line's)", "protection"), number("-", None, "epsilon_one_upload")]
        rows.append(
            tuple(
                chance
                + [
                    _figure(Figure(c.chance, math.nan, c.chance), name)
                    for c, name in zip(chances, FIGURES, strict=True)
                ]
            )
        )
    columns = (
        Column("protection", "left"),
        Column("epsilon, one upload", note="the ledger's, against a trusted node"),
        *(Column(_SHORT[name], note=FIGURES[name]) for name in FIGURES),
    )  # fmt: skip
    caption = f"What observers can tell of {watched} users from their real uploads: after the first (1) and after {uploads} (all)."
    notes = tuple(f"{_SHORT[name]}: {FIGURES[name]}." for name in FIGURES)
    return Table("observers", "What observers can tell", caption, columns, tuple(rows), notes)


def canary_table(found: list[CanaryRow]) -> Table:
    """A line for each audited mechanism."""
    rows = tuple(
        (
            words(row.mechanism, "mechanism"),
            words(row.randomness, "randomness"),
            words(row.method, "method"),
            number(f"{row.finding.trials:,}", row.finding.trials, "trials"),
            _epsilon(row.claim, "claim"),
            number(f"{row.finding.lower_bound:.2f}", row.finding.lower_bound, "lower_bound"),
            number(f"{row.finding.ceiling:.2f}", row.finding.ceiling, "ceiling"),
            words(row.verdict, "verdict"),
        )
        for row in found
    )
    columns = (
        Column("mechanism", "left"), Column("randomness", "left"), Column("audit", "left"), Column("trials"),
        Column("claim"), Column("lower bound"), Column("ceiling"), Column("verdict", "left"),
    )  # fmt: skip
    caption = "Epsilon that canaries prove a mechanism to have at least (99.99 % confidence), and the most that they could prove."
    return Table("canaries", "Canaries", caption, columns, rows)


def _figure(figure: Figure, name: str) -> Cell:
    value, margin = figure.value, figure.margin
    text = "-" if math.isnan(value) else f"{value:.3f}" + ("" if math.isnan(margin) else f" ± {margin:.3f}")
    kept = {name: value, f"{name}_margin": margin, f"{name}_chance": figure.chance}
    return Cell(text, None if math.isnan(value) else value, {k: None if math.isnan(v) else v for k, v in kept.items()})


def _epsilon(epsilon: float, name: str) -> Cell:
    return Cell(show(epsilon), epsilon, {name: "infinity" if math.isinf(epsilon) else epsilon})


def write_audit(folder: Path, tables: list[Table], whole: dict[str, Any]) -> None:
    """`audit.json`, and each table as CSV and Markdown."""
    write_atomically(folder / "audit.json", json.dumps(whole, indent=2, allow_nan=False).encode())
    for table in tables:
        write_atomically(folder / f"{table.key}.csv", to_csv(table).encode())
        write_atomically(folder / f"{table.key}.md", to_markdown(table).encode())
