"""Tables of what runs cost and did: time, memory, bytes, the check, privacy, and what sets configurations apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.metric_tables import protocol
from fastpfrec_flwr.report.reading import Run
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.study import NOT_COMPARED, Study
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words

_BROAD = 4  # variants that stand side by side in the table of what differs


def _rows(study: Study) -> Iterator[tuple[str, str, list[Run]]]:
    """Data set, variant and its finished runs."""
    for data_set in study.data_sets:
        for variant in study.variants:
            if runs := study.of(data_set, variant.name):
                yield data_set, variant.name, runs


def _median(runs: Sequence[Run], *keys: str) -> float | None:
    """Median over runs of a number deep in the summary; None where no run has it."""
    found = []
    for run in runs:
        value: Any = run.summary
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(float(value))
    return statistics.median(found) if found else None


def time_table(study: Study) -> Table:
    """Seconds, memory and bytes; medians over seeds."""
    shown: tuple[tuple[str, tuple[str, ...], Callable[[float | None], str]], ...] = (
        ("rounds", ("rounds",), lambda value: show.DASH if value is None else f"{value:.0f}"),
        ("a round", ("seconds", "round_median"), show.duration),
        ("total", ("seconds", "total"), show.duration),
        ("peak memory", ("peak_rss_mb",), lambda value: show.DASH if value is None else f"{value:,.0f} MB"),
        ("down a round", ("bytes", "down"), show.size),
        ("up a round", ("bytes", "up"), show.size),
    )
    rows = []
    for data_set, variant, runs in _rows(study):
        cells = [
            number(text(value), value, "_".join(path)) for _, path, text in shown for value in [_median(runs, *path)]
        ]
        rows.append(
            (words(data_set, "data_set"), words(variant, "variant"), number(str(len(runs)), len(runs), "seeds"), *cells)
        )
    columns = (
        Column("data set", "left"),
        Column("variant", "left"),
        Column("seeds"),
        *(Column(name) for name, _, _ in shown),
    )
    notes = (
        "Medians over seeds, on the machine of each run: compare only runs made side by side. Peak memory is of "
        "the process that ran the server (in a simulation the clients too). Bytes are of all clients of a round, as deployed.",
    )
    return Table(
        "time", "What it costs", "Seconds, memory and bytes as each run measured them.", columns, tuple(rows), notes
    )


def check_table(study: Study) -> Table:
    """What became of the uploads; where a run's summary knows the attackers, the confusion of the check."""
    known = [run for run in study.done() if _attack(run)]
    names = ["uploads", "isolated", "share", "nodes isolated", "refused"]
    if known:
        names += ["attackers isolated", "attackers let in", "honest isolated", "honest let in"]
    rows = []
    for data_set, variant, runs in _rows(study):
        trained, isolated, nodes, refused = (
            sum(int(_median([run], "clients", key) or 0) for run in runs)
            for key in ("trained", "isolated", "isolated_nodes", "refused")
        )
        cells = [
            number(f"{trained:,}", trained, "uploads"),
            number(f"{isolated:,}", isolated, "isolated"),
            number(show.share(isolated, trained), isolated / trained if trained else None, "isolated_share"),
            number(f"{nodes:,}", nodes, "isolated_nodes"),
            number(f"{refused:,}", refused, "refused"),
        ]
        if known:
            cells += _confusion(runs)
        rows.append((words(data_set, "data_set"), words(variant, "variant"), *cells))
    columns = (Column("data set", "left"), Column("variant", "left"), *(Column(name) for name in names))
    note = (
        "Attackers are known from the runs' summaries; a dash stands where a run had none or does not say."
        if known
        else "No run's summary names attackers; where there were none, the share isolated is the rate of false alarms."
    )
    caption = "Uploads that reached a trusted node, summed over rounds and seeds."
    return Table("check", "What the check did", caption, columns, tuple(rows), (note,))


def _attack(run: Run) -> Mapping[str, Any]:
    """`{"attackers": {"trained", "isolated"}, "honest": {"trained", "isolated"}}` of a summary, if it has that."""
    attack = run.summary.get("attack")
    whole = isinstance(attack, Mapping) and all(
        isinstance(attack.get(side), Mapping) and {"trained", "isolated"} <= attack[side].keys()
        for side in ("attackers", "honest")
    )
    return attack if whole and isinstance(attack, Mapping) else {}


def _confusion(runs: Sequence[Run]) -> list[Cell]:
    cells = []
    told = [_attack(run) for run in runs if _attack(run)]
    for side in ("attackers", "honest"):
        trained = sum(int(each[side]["trained"] or 0) for each in told)
        isolated = sum(int(each[side]["isolated"] or 0) for each in told)
        for count, name in ((isolated, "isolated"), (trained - isolated, "let_in")):
            text = f"{count:,} ({show.share(count, trained)})" if told else show.DASH
            cells.append(number(text, count if told else None, f"{side}_{name}"))
    return cells


def privacy_table(results: Results) -> Table:
    """Noise, what it guarantees, and what it costs in ranking quality."""
    rows = []
    for data_set, variant, runs in _rows(results.study):
        if runs[0].facts.get("model"):  # a reference that sees everybody's interactions sends nothing
            continue
        privacy = runs[0].summary.get("privacy")
        privacy = privacy if isinstance(privacy, Mapping) else {}
        epsilon = privacy.get("epsilon_per_upload")
        row = [words(data_set, "data_set"), words(variant, "variant")]
        scale = noise_scale(runs[0])
        row += [
            number(show.DASH if scale is None else f"{scale:g}", scale, "noise_scale"),
            words(str(runs[0].config.get("upload", show.DASH)), "upload"),
            number(show.epsilon(epsilon), epsilon if isinstance(epsilon, float) else None, "epsilon_per_upload"),
        ]
        for metric in ("ndcg@10", "ndcg@20"):
            mean = results.mean(data_set, variant, metric)
            row.append(number(show.metric(mean), mean, metric))
        paper = results.study.paper.get((variant, data_set, "ndcg"))
        printed = None if paper is None else paper.value
        row.append(number(show.metric(printed), printed, "paper_ndcg"))
        for k in (20, 10):
            mean = results.mean(data_set, variant, f"ndcg@{k}")
            apart = None if mean is None or printed is None else mean - printed
            row.append(number(show.difference(apart), apart, f"@{k}_minus_paper"))
        rows.append(tuple(row))
    columns = (
        Column("data set", "left"),
        Column("variant", "left"),
        Column("lambda", note="Laplace scale of the noise on every coordinate"),
        Column("upload", "left"),
        Column("epsilon", note="of one upload, replacing one client's whole data"),
        Column("NDCG@10"),
        Column("NDCG@20"),
        Column("paper", note="as printed, there called @10"),
        Column("@20 \N{MINUS SIGN} paper"),
        Column("@10 \N{MINUS SIGN} paper"),
    )
    notes = (
        "Epsilon is per upload; rounds add up. A large epsilon is no protection that differential privacy would recognise.",
    )
    return Table("privacy", "Noise and its price", protocol(results.study), columns, tuple(rows), notes)


def noise_scale(run: Run) -> float | None:
    """Scale of the noise of a run, 0 without; None where the run has no such thing."""
    if run.config.get("noise") == "none":
        return 0.0
    value = run.config.get("noise-scale")
    return float(value) if isinstance(value, int | float) and not run.facts.get("model") else None


def differences_table(study: Study) -> Table | None:
    """Settings, code and versions that not all variants share; None with one variant, or where all is the same."""
    columns: dict[str, Run] = {}
    for variant in study.variants:
        first = next((run for run in study.runs if run.variant == variant.name), None)
        if first is not None:
            columns[variant.name] = first
    if len(columns) < 2:
        return None
    facts = {
        name: [_facts(run) for run in study.runs if run.variant == name and (run.config or run.facts)]
        for name in columns
    }
    rows = []
    for key in dict.fromkeys(key for runs in facts.values() for values in runs for key in values):
        found = {
            name: dict.fromkeys(show.setting(each.get(key, show.DASH)) for each in runs) for name, runs in facts.items()
        }
        if _same_on_every_data_set(study, key):
            continue
        cells = [words(", ".join(values) or show.DASH, name) for name, values in found.items()]
        rows.append((words(key, "setting"), *cells))
    if not rows:
        return None
    heads = ["setting", *columns]
    if len(columns) > max(_BROAD, len(rows)):  # many variants read better down the page
        names = ["variant", *(row[0].text for row in rows)]
        rows = [
            (words(name, "variant"), *(words(row[i].text, row[0].text) for row in rows))
            for i, name in enumerate(columns, 1)
        ]
        heads = names
    caption = "Settings, code and package versions that not all variants share; paths, seeds and threads aside."
    return Table("differences", "What differs", caption, tuple(Column(each, "left") for each in heads), tuple(rows))


def _facts(run: Run) -> dict[str, Any]:
    """Everything about a run that may set it apart, flat."""
    facts = {key: value for key, value in run.config.items() if key not in NOT_COMPARED}
    facts |= {"model": run.facts["model"]} if "model" in run.facts else {}
    facts |= {f"version of {name}": version for name, version in run.facts.get("versions", {}).items()}
    source = run.facts.get("source")
    return facts | ({"code": source} if source else {})


def _same_on_every_data_set(study: Study, key: str) -> bool:
    """Whether a setting differs, if at all, only from data set to data set."""
    for data_set in study.data_sets:
        values = {
            show.setting(_facts(run).get(key, show.DASH))
            for run in study.runs
            if run.data_set == data_set and (run.config or run.facts)
        }
        if len(values) > 1:
            return False
    return True
