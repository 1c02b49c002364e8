"""A study as a chapter: its sections in the order in which they are read, whatever they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastpfrec_flwr.report import attack_tables, cost_tables, metric_tables, plots
from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.drawing import Plot
from fastpfrec_flwr.report.errors import ReportError
from fastpfrec_flwr.report.node_tables import nodes_table
from fastpfrec_flwr.report.reading import Run
from fastpfrec_flwr.report.results import SHOWN, Results
from fastpfrec_flwr.report.study import Study
from fastpfrec_flwr.report.tables import Column, Table, number, words


@dataclass(frozen=True)
class Section:
    """A heading with text, plots and tables below it, in this order."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class RunDetails:
    """What a reader can unfold about one run."""

    title: str
    state: str
    path: str
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True)
class Chapter:
    """Everything to be said of a study."""

    study: Study
    sections: tuple[Section, ...]
    runs: tuple[RunDetails, ...]
    files: tuple[Table, ...]  # tables that are CSV files only
    notices: tuple[str, ...]

    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [table for section in self.sections for table in section.tables] + list(self.files)

    def plots(self) -> list[Plot]:
        """All plots, in order."""
        return [plot for section in self.sections for plot in section.plots]


def chapter_of(study: Study) -> Chapter:
    """Compute a study's tables and plots."""
    results = Results(study)
    sections: list[Section] = []
    differences = cost_tables.differences_table(study)
    if differences is not None:
        sections.append(Section("differences", differences.title, tables=(differences,)))
    if study.done():
        if (attacks := attack_tables.attack_table(results)) is not None:
            sections.append(Section("attacks", attacks.title, tables=(attacks,)))
        sections.append(_quality(results))
        if (comparisons := metric_tables.comparison_table(results)) is not None:
            sections.append(Section("comparisons", comparisons.title, tables=(comparisons,)))
        sections.append(ranks_section(results))
    sections.append(_learning(study))
    if study.done():
        if (noise := plots.privacy_plot(results)) is not None:
            sections.append(Section("noise", noise.title, (), (noise,), (cost_tables.privacy_table(results),)))
        for table in (cost_tables.time_table(study), cost_tables.check_table(study)):
            sections.append(Section(table.key, table.title, tables=(table,)))
        if (nodes := nodes_table(study)) is not None:
            sections.append(Section(nodes.key, nodes.title, tables=(nodes,)))
    if (unfinished := _unfinished(study)) is not None:
        sections.append(Section("unfinished", unfinished.title, tables=(unfinished,)))
    return Chapter(
        study,
        tuple(section for section in sections if section.text or section.plots or section.tables),
        tuple(_details(run) for run in _in_order(study)),
        (metric_tables.all_metrics_table(study),) if study.done() else (),
        (*study.notices, *dict.fromkeys(results.notices)),
    )


def _quality(results: Results) -> Section:
    drawn = [plots.quality_plot(results, each) for each in results.study.data_sets if results.variants_of(each)]
    tables = tuple(metric_tables.quality_table(results, name) for name in SHOWN)
    return Section("quality", "Ranking quality", (), tuple(drawn), tables)


def ranks_section(results: Results) -> Section:
    """Ranks over data sets with their diagram; the reason where either cannot be had."""
    ranks, reason = results.ranks()
    if ranks is None:
        return Section("ranks", "Ranks over data sets", (f"{reason[0].upper()}{reason[1:]}.",))
    table = metric_tables.ranks_table(results, ranks)
    try:
        return Section("ranks", table.title, (), (plots.rank_plot(ranks),), (table,))
    except ReportError as error:
        return Section("ranks", table.title, (f"{error}.",), (), (table,))


def _learning(study: Study) -> Section:
    drawn = [plot for each in study.data_sets if (plot := plots.learning_plot(study, each)) is not None]
    return Section("learning", "Learning curves", () if drawn else ("No run has an evaluated round.",), tuple(drawn))


def _unfinished(study: Study) -> Table | None:
    """Runs that failed, did not finish or are not there."""
    rows = []
    for run in _in_order(study):
        if run.state != "done":
            last = f"round {run.last_round}" if run.last_round else show.DASH
            rows.append(_unfinished_row(run.data_set, run.variant, run.seed, run.state, last, run.error))
        elif run.summary.get("stopped"):
            note = "figures are of the best round so far"
            last = f"round {run.summary.get('rounds', run.last_round)}"
            rows.append(_unfinished_row(run.data_set, run.variant, run.seed, "stopped by hand", last, note))
    for data_set, variant, seed in study.missing:
        rows.append(
            _unfinished_row(
                data_set, variant, seed, "missing", show.DASH, "study.json names it; there is no run folder of it"
            )
        )
    if not rows:
        return None
    columns = (
        Column("data set", "left"),
        Column("variant", "left"),
        Column("seed"),
        Column("state", "left"),
        Column("came to", "left"),
        Column("why", "left"),
    )
    caption = "Runs without figures, and runs stopped early. Tables and plots above are of the other runs."
    return Table("unfinished", "Failed, unfinished and missing runs", caption, columns, tuple(rows))


def _unfinished_row(data_set: str, variant: str, seed: int, state: str, last: str, why: str) -> Any:
    return (
        words(data_set, "data_set"),
        words(variant, "variant"),
        number(str(seed), seed, "seed"),
        words(state, "state"),
        words(last, "came_to"),
        words(why, "why"),
    )


def _in_order(study: Study) -> Sequence[Run]:
    names = [each.name for each in study.variants]
    return sorted(study.runs, key=lambda run: (study.data_sets.index(run.data_set), names.index(run.variant), run.seed))


def _details(run: Run) -> RunDetails:
    """Configuration, versions and data of a run, as text."""
    facts = run.facts
    groups = [("Configuration", _pairs(run.config))]
    versions = {**facts.get("versions", {}), "code": facts.get("source", show.DASH)}
    groups.append(("Versions", _pairs(versions)))
    data = facts.get("data")
    if isinstance(data, dict):
        groups.append(
            ("Data", _pairs({key: value for key, value in data.items() if not isinstance(value, dict | list)}))
        )
    privacy = run.summary.get("privacy")
    if isinstance(privacy, dict):
        lines = privacy.get("lines", [])
        told = {key: value for key, value in privacy.items() if key not in ("lines", "notes")}
        for line in lines if isinstance(lines, list) else []:
            what = f"{line.get('observer')}, {line.get('release')}, {line.get('scope')}"
            told[what] = f"epsilon {show.epsilon(line.get('epsilon'))}, delta {line.get('delta')}: {line.get('reason')}"
        groups.append(("Privacy", _pairs(told)))
    return RunDetails(
        f"{run.data_set}, {run.variant}, seed {run.seed}",
        run.state,
        str(run.path),
        tuple((title, pairs) for title, pairs in groups if pairs),
    )


def _pairs(values: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(values, dict):
        return ()
    joined = {
        key: ", ".join(map(str, each)) if isinstance(each, list) else show.setting(each) for key, each in values.items()
    }
    return tuple((str(key), text) for key, text in joined.items())
