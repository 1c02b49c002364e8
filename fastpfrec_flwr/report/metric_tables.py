"""Tables of ranking quality: ours, the paper's, and what sets variants apart."""

from __future__ import annotations

from fastpfrec_flwr.evaluation.significance import Ranks
from fastpfrec_flwr.evaluation.statistics import LEVEL, Interval
from fastpfrec_flwr.report import numbers as show
from fastpfrec_flwr.report.results import CUTOFFS, SHOWN, Results
from fastpfrec_flwr.report.study import Study
from fastpfrec_flwr.report.tables import Cell, Column, Table, number, words

PAPER_NOTE = (
    "The paper prints its figures as @10; they agree with @20 of a well-trained model (see docs/reports.md), so both differences "
    "are shown: ours @20 \N{MINUS SIGN} paper, and ours @10 \N{MINUS SIGN} paper."
)
SPREAD_NOTE = (
    f"{show.PLUS_MINUS} is the standard deviation over seeds, of whole trainings. Brackets are {LEVEL:.0%} bootstrap intervals "
    "over users, each user averaged over the seeds, of these trained models: they say nothing of training again."
)
HR_NOTE = "HR is hits over all test interactions (hit_ratio_micro), the paper's."


def quality_table(results: Results, name: str) -> Table:
    """One metric at both cutoffs on every data set, beside the paper's figure."""
    title = SHOWN[name]
    columns = [Column("data set", "left"), Column("variant", "left"), Column("seeds")]
    for k in CUTOFFS:
        columns += [Column(f"{title}@{k}"), Column(f"users, @{k}", note=f"{LEVEL:.0%} interval over users")]
    columns += [
        Column("paper", note="as printed, there called @10"),
        Column("@20 \N{MINUS SIGN} paper"),
        Column("@10 \N{MINUS SIGN} paper"),
    ]
    rows = [
        _quality_row(results, name, data_set, variant)
        for data_set in results.study.data_sets
        for variant in results.variants_of(data_set)
    ]
    notes = [
        SPREAD_NOTE,
        PAPER_NOTE if _has_paper(results.study) else "The paper has no figure for these data and variants.",
    ]
    if name == "hit_ratio_micro":
        notes.insert(0, HR_NOTE)
    return Table(name.replace("_", "-"), title, protocol(results.study), tuple(columns), tuple(rows), tuple(notes))


def protocol(study: Study) -> str:
    """How the figures of a study were had, as every table says."""
    return study.protocol or "Figures of the test part as each run's summary.json has them."


def _has_paper(study: Study) -> bool:
    return any(metric in SHOWN and study.of(data_set, variant) for variant, data_set, metric in study.paper)


def _quality_row(results: Results, name: str, data_set: str, variant: str) -> tuple[Cell, ...]:
    runs = results.study.of(data_set, variant)
    seeds = ", ".join(str(run.seed) for run in runs)
    row = [
        words(data_set, "data_set"),
        words(variant, "variant"),
        number(str(len(runs)), len(runs), "seeds", f"seed {seeds}"),
    ]
    for k in CUTOFFS:
        metric = f"{name}@{k}"
        found = results.seeds.get((data_set, variant, metric))
        mean, deviation = (None, float("nan")) if found is None else (found.mean, found.sd)
        best = mean is not None and len(results.variants_of(data_set)) > 1 and mean == results.best(data_set, metric)
        parts = {metric: mean, f"{metric}_sd": None if deviation != deviation else deviation}
        row.append(Cell(show.mean_and_deviation(mean, deviation), mean, parts, best))
        interval = results.intervals.get((data_set, variant, metric))
        low, high = _bounds(interval)
        text = show.DASH if interval is None else show.interval(interval.low, interval.high)
        note = f"{interval.users} users" if interval else ""
        row.append(Cell(text, low, {f"{metric}_low": low, f"{metric}_high": high}, note=note))
    paper = results.study.paper.get((variant, data_set, name))
    printed = None if paper is None else paper.value
    row.append(number(show.metric(printed), printed, "paper", "" if paper is None else paper.where))
    for k in (20, 10):
        mean = results.mean(data_set, variant, f"{name}@{k}")
        apart = None if mean is None or printed is None else mean - printed
        row.append(number(show.difference(apart), apart, f"@{k}_minus_paper"))
    return tuple(row)


def _bounds(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def comparison_table(results: Results) -> Table | None:
    """Every variant beside the reference, by every metric shown; None without a reference or anything to compare."""
    if not results.comparisons:
        return None
    rows = []
    for each in results.comparisons:
        name, _, k = each.metric.partition("@")
        low, high = _bounds(each.interval)
        test = each.test
        paper = _paper_difference(results.study, each.data_set, each.variant, name)
        rows.append(
            (
                words(each.data_set, "data_set"),
                words(f"{SHOWN[name]}@{k}", "metric"),
                words(each.variant, "variant"),
                number(show.difference(each.difference), each.difference, "difference"),
                Cell(
                    show.DASH if low is None or high is None else show.interval(low, high, signed=True),
                    low,
                    {"low": low, "high": high},
                ),
                number(show.difference(paper), paper, "paper_difference"),
                Cell(
                    f"{test.n:,} / {test.zeros:,}" if test else show.DASH,
                    test.n if test else None,
                    {"users": test.n if test else None, "users_without_change": test.zeros if test else None},
                ),
                Cell(
                    f"{show.p_value(each.adjusted_p)} {each.stars}".strip() if test else show.DASH,
                    each.adjusted_p if test else None,
                    {"p": test.p if test else None, "p_holm": each.adjusted_p if test else None, "stars": each.stars},
                    note=each.reason,
                ),
            )
        )
    columns = (
        Column("data set", "left"),
        Column("metric", "left"),
        Column("variant", "left"),
        Column("difference", note="of the means over seeds, variant \N{MINUS SIGN} reference"),
        Column("users", note=f"{LEVEL:.0%} paired bootstrap interval of the difference over users"),
        Column("in the paper", note="the same difference between the paper's figures, printed as @10"),
        Column("n / no change", note="users compared, and how many of them score the same"),
        Column(
            "p (Holm)", note="two-sided Wilcoxon signed-rank test over users, adjusted over the variants of a data set"
        ),
    )
    return Table(
        "comparisons",
        f"Beside {results.study.reference}",
        protocol(results.study),
        columns,
        tuple(rows),
        _comparison_notes(results),
    )


def _paper_difference(study: Study, data_set: str, variant: str, name: str) -> float | None:
    ours = study.paper.get((variant, data_set, name))
    reference = study.paper.get((study.reference or "", data_set, name))
    return None if ours is None or reference is None else ours.value - reference.value


def _comparison_notes(results: Results) -> tuple[str, ...]:
    notes = [
        "The unit is a user, averaged over the seeds; users without a change are ranked and then dropped (Pratt). *, **, *** stand "
        "for p < 0.05, 0.01, 0.001 after Holm. Users of one run share a model: a star says that these trained models differ, not "
        "that training again would give the same. For HR a user's difference is in hits, as the ratio weighs users."
    ]
    over_seeds = dict.fromkeys(each.seeds for each in results.comparisons)
    counts = {each: sum(other.seeds == each for other in results.comparisons) for each in over_seeds}
    if len(over_seeds) <= 3:
        notes += [
            f"Over seeds: {text}" + ("." if len(over_seeds) == 1 else f" ({counts[text]} lines).")
            for text in over_seeds
        ]
    else:
        notes += [
            f"{each.data_set}, {each.variant}, {each.metric}: {each.seeds}."
            for each in results.comparisons
            if each.seeds
        ]
    for reason in dict.fromkeys(each.reason for each in results.comparisons if each.reason):
        where = dict.fromkeys(
            f"{each.variant} on {each.data_set}" for each in results.comparisons if each.reason == reason
        )
        notes.append(f"{'; '.join(where)}: {reason}.")
    return tuple(notes)


def ranks_table(results: Results, ranks: Ranks) -> Table:
    """Mean ranks over data sets."""
    order = sorted(ranks.mean_ranks, key=lambda name: ranks.mean_ranks[name])
    rows = []
    for name in order:
        p = next((each for pair, each in ranks.nemenyi_p.items() if set(pair) == {name, order[0]}), None)
        rank = ranks.mean_ranks[name]
        rows.append(
            (
                words(name, "variant"),
                number(f"{rank:.2f}", rank, "mean_rank"),
                number(show.DASH if p is None else show.p_value(p), p, "nemenyi_p_to_first"),
            )
        )
    columns = (
        Column("variant", "left"),
        Column("mean rank", note="by NDCG@20; 1 is best"),
        Column("p to the first", note="Nemenyi's comparison with the variant that ranks first"),
    )
    notes = (
        f"Friedman's test that all rank alike: p = {show.p_value(ranks.friedman_p)} over {ranks.data_sets} data sets. Mean ranks "
        f"closer than the critical difference {ranks.critical_difference:.2f} are not told apart (Nemenyi, 0.05). The paper "
        "gives no ranks. The unit is a data set: over so few, only large differences can show.",
    )
    return Table("ranks", "Ranks over data sets", protocol(results.study), columns, tuple(rows), notes)


def all_metrics_table(study: Study) -> Table:
    """Every metric of every finished run, a line each: for other tools."""
    rows = []
    for run in study.done():
        for part in ("validation", "test"):
            for metric, value in run.summary.get(part, {}).items():
                rows.append(
                    (
                        words(run.data_set, "data_set"),
                        words(run.variant, "variant"),
                        number(str(run.seed), run.seed, "seed"),
                        words(part, "part"),
                        words(metric, "metric"),
                        number(show.metric(value), value, "value"),
                    )
                )
    columns = tuple(Column(name, "left") for name in ("data set", "variant", "seed", "part", "metric", "value"))
    return Table("all-metrics", "All metrics", protocol(study), columns, tuple(rows), csv_only=True)
