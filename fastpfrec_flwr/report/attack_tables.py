"""The table of runs in which somebody lied: who was found, who was lost for nothing, and what got through all the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.reading import Run
from fastpfrec_flwr.report.results import Results
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words

CRITERION = "ndcg@20"


def attack_table(results: Results) -> Table | None:
    """Rates, damage and quality under attack, summed or averaged over seeds; None where no run was attacked."""
    study = results.study
    if not any(_told(run) for run in study.done()):
        return None
    rows = []
    for data_set in study.data_sets:
        for variant in results.variants_of(data_set):
            if runs := study.of(data_set, variant):
                rows.append(
                    (
                        words(data_set, "data_set"),
                        words(variant, "variant"),
                        number(str(len(runs)), len(runs), "seeds"),
                        *_found([_told(run) for run in runs if _told(run)]),
                        _damage(runs),
                        *_quality(results, data_set, variant, runs),
                        _latency(runs),
                        words(_paper(results, data_set, variant), "paper"),
                    )
                )
    columns = (
        Column("data set", "left"),
        Column("variant", "left"),
        Column("seeds"),
        Column("liars found", note="share of the liars' uploads that did not get into the average"),
        Column("false alarms", note="share of the honest clients' uploads that did not"),
        Column("lost with nodes", note="of the honest uploads, those left out with their whole node"),
        Column("bad nodes found", note="compromised, or at least half of its clients lie"),
        Column("good nodes lost"),
        Column(
            "damage", note="distance to the table that honest clients alone would have made, relative to their update"
        ),
        Column("NDCG@20"),
        Column("honest NDCG@20", note="of the users who do not lie"),
        Column("kept", note="the same as a share of the reference variant's"),
        Column("ER@10", note="honest users without the promoted item who get it in their top 10"),
        Column("check", note="time of one trusted node in a round: distances, check and mean"),
        Column("paper", "left"),
    )
    notes = (
        "Who lies is known to the measurement from the seed, not to server or nodes. A dash stands where there was nobody to "
        "count. Damage 1 is as bad as no step at all; it is the mean over rounds, the spread is over seeds.",
        "The paper's damage is measured on one random vector against the old model, not on a recommender against the honest mean.",
    )
    return Table("attacks", "Under attack", "What became of the liars and of the model.", columns, tuple(rows), notes)


def _told(run: Run) -> Mapping[str, Any]:
    attack = run.summary.get("attack")
    return attack if isinstance(attack, Mapping) and "damage" in attack else {}


def _found(told: Sequence[Mapping[str, Any]]) -> list[Cell]:
    cells = []
    for side, part, whole, name in (
        ("attackers", "isolated", "trained", "liars_found"),
        ("honest", "isolated", "trained", "false_alarms"),
        ("honest", "lost_with_nodes", "trained", "lost_with_nodes"),
        ("bad_nodes", "isolated", "seen", "bad_nodes_found"),
        ("good_nodes", "isolated", "seen", "good_nodes_lost"),
    ):
        counts = [(int(each[side].get(part) or 0), int(each[side].get(whole) or 0)) for each in told if side in each]
        found, of = sum(each[0] for each in counts), sum(each[1] for each in counts)
        cells.append(number(show.share(found, of), found / of if of else None, name))
    return cells


def _damage(runs: Sequence[Run]) -> Cell:
    values = [float(each["damage"]) for run in runs if (each := _told(run)) and each["damage"] is not None]
    mean = statistics.fmean(values) if values else None
    spread = statistics.stdev(values) if len(values) > 1 else None
    text = show.DASH if mean is None else f"{mean:.3f}" + ("" if spread is None else f" {show.PLUS_MINUS} {spread:.3f}")
    return Cell(text, mean, {"damage": mean, "damage_sd": spread})


def _quality(results: Results, data_set: str, variant: str, runs: Sequence[Run]) -> list[Cell]:
    mean = results.mean(data_set, variant, CRITERION)
    ours = _mean_of(runs, "honest_ndcg")
    reference = results.study.reference
    clean = _mean_of(results.study.of(data_set, reference), "honest_ndcg") if reference else None
    kept = ours / clean if ours is not None and clean else None
    rate = _mean_of(runs, "exposure")
    return [
        number(show.metric(mean), mean, CRITERION),
        number(show.metric(ours), ours, "honest_ndcg@20"),
        number(show.DASH if kept is None else f"{kept:.1%}", kept, "kept"),
        number(show.DASH if rate is None else f"{rate:.2%}", rate, "er@10"),
    ]


def _mean_of(runs: Sequence[Run], name: str) -> float | None:
    """Mean over seeds of a figure of the attack, None where no run has it."""
    values = [_told(run).get(name) for run in runs]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return statistics.fmean(known) if known else None


def _latency(runs: Sequence[Run]) -> Cell:
    """Seconds of the trusted nodes divided among them: they are machines of their own, here they share one."""
    found = []
    for run in runs:
        seconds, nodes = run.summary.get("seconds", {}).get("trusted_nodes_round"), run.config.get("num-trusted-nodes")
        if seconds is not None and isinstance(nodes, int) and nodes > 0 and run.config.get("tier") == "trusted-nodes":
            found.append(float(seconds) / nodes)
    value = statistics.median(found) if found else None
    return number(show.DASH if value is None else f"{value * 1e3:.2g} ms", value, "check_seconds")


_PRINTED: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("damage", lambda value: f"damage {value:g}"),
    ("detected", lambda value: f"{value:.1%} found"),
    ("false_positives", lambda value: f"{value:.1%} false"),
    ("check_seconds", lambda value: f"{value * 1e3:.0f} ms"),
    ("ndcg", lambda value: f"NDCG {value:.4f}"),
    ("contained", lambda value: f"{value:.1%} contained"),
)


def _paper(results: Results, data_set: str, variant: str) -> str:
    """All that the paper prints of a variant, in a line."""
    found = [(text, results.study.paper.get((variant, data_set, name))) for name, text in _PRINTED]
    return ", ".join(text(figure.value) for text, figure in found if figure is not None) or show.DASH
