"""The plots of a report: quality with intervals, learning curves, noise against quality, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastpfrec_flwr.evaluation.significance import Ranks
from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.cost_tables import noise_scale
from fastpfrec_flwr.report.drawing import INK, Plot, draw, style_of
from fastpfrec_flwr.report.errors import ReportError
from fastpfrec_flwr.report.reading import Run
from fastpfrec_flwr.report.results import SHOWN, Results
from fastpfrec_flwr.report.study import Study

CRITERION = "ndcg@20"


def place_of(study: Study, variant: str) -> int:
    """A variant's place, which gives it the same style in every plot."""
    return [each.name for each in study.variants].index(variant)


def quality_plot(results: Results, data_set: str) -> Plot:
    """Bars of both metrics @20 on one data set, with intervals over users, dots for seeds and the paper's figures."""
    study, names = results.study, results.variants_of(data_set)
    reach = {metric: _reach(results, data_set, f"{metric}@20") for metric in SHOWN}

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
        for axes, (metric, label) in zip(panels, SHOWN.items(), strict=True):
            for row, name in enumerate(names):
                _bar(axes, results, data_set, name, f"{metric}@20", row)
            axes.set_yticks(range(len(names)), names)
            axes.set_xlim(0, reach[metric] * 1.08 or 1)
            axes.invert_yaxis() if metric == "ndcg" else None
            axes.set_xlabel(f"{label}@20")
            axes.locator_params(axis="x", nbins=5)
            axes.grid(axis="x", alpha=0.25)
            axes.tick_params(axis="y", length=0)

    printed = any((name, data_set, metric) in study.paper for name in names for metric in SHOWN)
    caption = f"{data_set}: bars are means over seeds, lines 95 % intervals over users, dots the seeds" + (
        ", diamonds the paper's figures (printed as @10)." if printed else "."
    )
    values = "; ".join(
        f"{name}: NDCG@20 {show.metric(results.mean(data_set, name, CRITERION))}, "
        f"HR@20 {show.metric(results.mean(data_set, name, 'hit_ratio_micro@20'))}"
        for name in names
    )
    height = 1.1 + 0.42 * len(names)
    return draw(
        f"quality-{slug(data_set)}", f"Quality on {data_set}", caption, f"Bar chart. {values}.", (9, height), paint
    )


def _reach(results: Results, data_set: str, metric: str) -> float:
    """The largest value that a plot of a metric must show."""
    study, found = results.study, [0.0]
    for name in results.variants_of(data_set):
        found.append(results.mean(data_set, name, metric) or 0.0)
        found += [run.test.get(metric, 0.0) for run in study.of(data_set, name)]
        interval = results.intervals.get((data_set, name, metric))
        paper = study.paper.get((name, data_set, metric.partition("@")[0]))
        found += [interval.high] if interval else []
        found += [paper.value] if paper else []
    return max(found)


def _bar(axes: Axes, results: Results, data_set: str, name: str, metric: str, row: int) -> None:
    study = results.study
    mean = results.mean(data_set, name, metric)
    if mean is None:
        return
    colour = style_of(place_of(study, name))["color"]
    axes.barh(row, mean, height=0.62, color=colour, alpha=0.55, edgecolor=colour)
    interval = results.intervals.get((data_set, name, metric))
    if interval is not None:
        axes.plot([interval.low, interval.high], [row, row], color=INK, linewidth=1.6, solid_capstyle="butt")
        axes.plot([interval.low, interval.high], [row, row], color=INK, marker="|", markersize=8, linestyle="none")
    seeds = [run.test[metric] for run in study.of(data_set, name) if metric in run.test]
    axes.plot(seeds, [row + 0.2] * len(seeds), marker="o", markersize=3.2, linestyle="none", color=INK, alpha=0.75)
    paper = study.paper.get((name, data_set, metric.partition("@")[0]))
    if paper is not None:
        axes.plot(
            paper.value,
            row,
            marker="D",
            markersize=7,
            color="white",
            markeredgecolor=INK,
            markeredgewidth=1.4,
            linestyle="none",
        )


def learning_plot(study: Study, data_set: str) -> Plot | None:
    """Validation NDCG@20 and train loss over the rounds, a line per variant, a band from the lowest to the highest seed."""
    curves = {
        variant.name: found
        for variant in study.variants
        if (
            found := [
                run for run in study.runs if (run.data_set, run.variant) == (data_set, variant.name) and _train(run)
            ]
        )
    }
    if not curves:
        return None
    losses = any(line.get("loss") is not None for runs in curves.values() for run in runs for line in _train(run))

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if losses else 1, squeeze=False)[0]
        shown = (("validation", "validation NDCG@20"), ("loss", "train loss per positive"))
        for axes, (of, label) in zip(panels, shown, strict=False):
            for name, runs in curves.items():
                _curve(axes, runs, of, name, place_of(study, name))
            axes.set_xlabel("round")
            axes.set_ylabel(label)
            axes.grid(alpha=0.25)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=_legend_columns(labels))

    ends = []
    for name, runs in curves.items():
        best = [max((_value(line, "validation") or 0.0) for line in _train(run)) for run in runs]
        ends.append(f"{name}: best validation NDCG@20 {show.metric(float(np.mean(best)))} over {len(runs)} runs")
    caption = (
        f"{data_set}: means over seeds; bands reach from the lowest to the highest seed. Unfinished and failed runs as far as they "
        "came."
    )
    alt = f"Line chart over rounds. {'; '.join(ends)}."
    return draw(f"learning-{slug(data_set)}", f"Learning curves on {data_set}", caption, alt, (9, 3.9), paint)


def _legend_columns(labels: Sequence[str]) -> int:
    """As many as fit side by side."""
    return max(1, min(len(labels), 130 // (max(map(len, labels)) + 8)))


def _train(run: Run) -> list[Any]:
    return [line for line in run.lines if line.get("phase", "train") == "train"]


def _value(line: Any, of: str) -> float | None:
    """Validation NDCG@20 or the loss of an evaluated round; None where it has none."""
    found = line.get("loss") if of == "loss" else (line.get("validation") or {}).get(CRITERION)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _curve(axes: Axes, runs: Sequence[Run], of: str, name: str, place: int) -> None:
    points: dict[int, list[float]] = {}
    for run in runs:
        for line in _train(run):
            value = _value(line, of)
            if value is not None:
                points.setdefault(int(line["round"]), []).append(value)
    rounds = sorted(points)
    style = style_of(place)
    axes.plot(
        rounds, [float(np.mean(points[each])) for each in rounds], markersize=4, linewidth=1.6, label=name, **style
    )
    if len(runs) > 1:
        low, high = [min(points[each]) for each in rounds], [max(points[each]) for each in rounds]
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.18, linewidth=0)


def privacy_plot(results: Results) -> Plot | None:
    """Quality over the noise scale, a line per data set and upload form; None where nothing differs in these."""
    study = results.study
    lines: dict[tuple[str, str], dict[float, list[float]]] = {}
    for run in study.done():
        scale = noise_scale(run)
        if scale is not None and CRITERION in run.test and _only_noise(study, run):
            of = (run.data_set, str(run.config.get("upload", "")))
            lines.setdefault(of, {}).setdefault(scale, []).append(run.test[CRITERION])
    scales = sorted({scale for points in lines.values() for scale in points})
    uploads = {upload for _, upload in lines}
    if len(scales) < 2 and len(uploads) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, ((data_set, upload), points) in enumerate(lines.items()):
            at = [scales.index(scale) for scale in sorted(points)]
            values = [points[scale] for scale in sorted(points)]
            label = data_set + (f", {upload}" if len(uploads) > 1 else "")
            style = style_of(place)
            axes.plot(at, [float(np.mean(each)) for each in values], markersize=6, label=label, **style)
            axes.fill_between(
                at, [min(each) for each in values], [max(each) for each in values], color=style["color"], alpha=0.18
            )
        axes.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
        axes.set_xlabel("noise scale lambda (0: none)")
        axes.set_ylabel("test NDCG@20")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        figure.legend(loc="outside right upper")

    told = "; ".join(
        f"{data_set} {upload}: " + ", ".join(f"{np.mean(points[scale]):.4f} at {scale:g}" for scale in sorted(points))
        for (data_set, upload), points in lines.items()
    )
    caption = (
        "Means over seeds, bands from the lowest to the highest seed; only variants that differ from the reference in noise or "
        "upload alone."
    )
    return draw(
        "noise", "Noise and quality", caption, f"Line chart of NDCG@20 over the noise scale. {told}.", (9, 3.6), paint
    )


def _only_noise(study: Study, run: Run) -> bool:
    """Whether a run differs from the reference's on its data set in nothing but noise and upload form."""
    reference = study.of(run.data_set, study.reference) if study.reference else []
    allowed = {"noise", "noise-scale", "upload", "seed", "output-dir", "state-dir", "data-dir", "threads"}
    return not reference or all(
        run.config.get(key) == value for key, value in reference[0].config.items() if key not in allowed
    )


def rank_plot(ranks: Ranks) -> Plot:
    """Draw the critical-difference diagram.

    Raises
    ------
    ReportError naming the package that draws it, if it is missing.
    """
    try:
        import scikit_posthocs
    except ImportError:
        raise ReportError("no diagram: it needs scikit-posthocs; pip install 'fastpfrec-flwr[report]'") from None
    import pandas

    names = list(ranks.mean_ranks)
    table = pandas.DataFrame(1.0, index=names, columns=names)
    for (one, other), p in ranks.nemenyi_p.items():
        table.loc[one, other] = table.loc[other, one] = p

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        colours = {name: style_of(place)["color"] for place, name in enumerate(names)}
        scikit_posthocs.critical_difference_diagram(
            ranks.mean_ranks, table, ax=axes, color_palette=colours, label_fmt_left="{label} ({rank:.2f})\N{NO-BREAK SPACE}",
            label_fmt_right="\N{NO-BREAK SPACE}{label} ({rank:.2f})", crossbar_props={"color": INK, "marker": "o"},
            text_h_margin=0.08,
        )  # fmt: skip

    order = sorted(ranks.mean_ranks.items(), key=lambda item: item[1])
    caption = (
        f"Mean ranks over {ranks.data_sets} data sets, 1 is best; a bar joins variants that are not told apart "
        f"(Nemenyi, 0.05; critical difference {ranks.critical_difference:.2f})."
    )
    alt = "Critical-difference diagram. Mean ranks: " + ", ".join(f"{name} {rank:.2f}" for name, rank in order) + "."
    return draw("ranks", "Ranks over data sets", caption, alt, (8, 1.3 + 0.3 * len(names)), paint)


def slug(text: str) -> str:
    """A name as part of a file's."""
    return (
        "".join(letter if letter.isalnum() else "-" for letter in text.rstrip("/").split("/")[-1].lower()) or "unnamed"
    )
