"""The figures of a study: spread over seeds, intervals over users, comparisons with the reference, ranks over data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastpfrec_flwr.evaluation.significance import (
    PairedTest,
    Ranks,
    holm,
    rank_over_data_sets,
    stars,
    too_few_seeds,
    too_few_to_rank,
    user_differences,
    wilcoxon,
)
from fastpfrec_flwr.evaluation.statistics import (
    Interval,
    Spread,
    UserFigures,
    bootstrap_intervals,
    common_users,
    join_users,
    spread,
)
from fastpfrec_flwr.report.reading import Run, same_people, same_source, source_of
from fastpfrec_flwr.report.study import Study

# What tables show; all other metrics of the runs stand in `all-metrics.csv`.
SHOWN = {"ndcg": "NDCG", "hit_ratio_micro": "HR"}
CUTOFFS = (10, 20)
RANKED_BY = "ndcg@20"
_SEED = 20  # of the resamples: reports of the same runs are the same

Place = tuple[str, str]  # data set, variant


@dataclass(frozen=True)
class Comparison:
    """A variant beside the reference, on one data set by one metric.

    Attributes
    ----------
    difference : of the means over seeds. interval : of it, over users. test : over users, p adjusted by Holm over the variants
        of the data set. stars, reason : what may be claimed, or why nothing. seeds : what can be said over seeds.
    """

    data_set: str
    variant: str
    metric: str
    difference: float
    interval: Interval | None
    test: PairedTest | None
    adjusted_p: float
    stars: str
    reason: str
    seeds: str


class Results:
    """Everything that is computed from a study's runs.

    Parameters
    ----------
    study : with runs of any state; only finished ones count.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.notices: list[str] = []
        self.metrics = [f"{name}@{k}" for name in SHOWN for k in CUTOFFS]
        self.seeds: dict[tuple[str, str, str], Spread] = {}
        self.users: dict[Place, UserFigures] = {}
        self.intervals: dict[tuple[str, str, str], Interval] = {}
        for data_set in study.data_sets:
            for variant in study.variants:
                self._gather(data_set, variant.name)
        self.comparisons = [
            found
            for data_set in study.data_sets
            for metric in self.metrics
            for found in self._compare(data_set, metric)
        ]

    def variants_of(self, data_set: str) -> list[str]:
        """Variants with a finished run on a data set, in the study's order."""
        return [each.name for each in self.study.variants if self.study.of(data_set, each.name)]

    def mean(self, data_set: str, variant: str, metric: str) -> float | None:
        """Mean over seeds, or None."""
        found = self.seeds.get((data_set, variant, metric))
        return None if found is None else found.mean

    def best(self, data_set: str, metric: str) -> float | None:
        """The highest mean on a data set."""
        values = [self.mean(data_set, variant, metric) for variant in self.variants_of(data_set)]
        return max((value for value in values if value is not None), default=None)

    def ranks(self) -> tuple[Ranks | None, str]:
        """Ranks over data sets by NDCG@20, or why there are none."""
        scores: dict[str, list[float]] = {}
        data_sets = [each for each in self.study.data_sets if self.variants_of(each)]
        for variant in self.study.variants:
            values = [self.mean(data_set, variant.name, RANKED_BY) for data_set in data_sets]
            if all(value is not None for value in values):
                scores[variant.name] = [value for value in values if value is not None]
        if reason := too_few_to_rank(len(scores), len(data_sets)):
            return None, reason
        return rank_over_data_sets(scores), ""

    def _gather(self, data_set: str, variant: str) -> None:
        runs = self.study.of(data_set, variant)
        for metric in self.metrics:
            values = [run.test[metric] for run in runs if metric in run.test]
            if values:
                self.seeds[data_set, variant, metric] = spread(values)
        other_data = _of_other_data(runs)
        if other_data:
            self.notices.append(
                f"{variant} on {data_set}: its seeds are not of one data set (`data` in config.json: files, users, items): "
                f"{', '.join(str(run.path) for run in other_data)} beside {runs[0].path}. The mean mixes them, there are no "
                "intervals and tests over users; run all seeds again on the same files"
            )
        with_users = [run.users for run in runs if run.users is not None]
        if not with_users or other_data:
            return
        if len(with_users) < len(runs):
            self.notices.append(
                f"{variant} on {data_set}: figures per user of {len(with_users)} of {len(runs)} seeds; without all of them no "
                "interval over users"
            )
            return
        try:
            figures = join_users(with_users)
        except ValueError as error:
            self.notices.append(f"{variant} on {data_set}: no intervals over users ({error})")
            return
        if figures.left_out:
            self.notices.append(
                f"{variant} on {data_set}: {figures.left_out} users are not in every seed and are left out of the intervals"
            )
        self.users[data_set, variant] = figures
        found = bootstrap_intervals({variant: figures}, figures.metrics(self.metrics), _SEED)
        self.intervals |= {(data_set, *place): each for place, each in found.items()}

    def _compare(self, data_set: str, metric: str) -> list[Comparison]:
        """All variants of a data set beside the reference."""
        reference = self.study.reference
        if reference is None or self.mean(data_set, reference, metric) is None:
            return []
        others = [name for name in self.variants_of(data_set) if name != reference]
        theirs = [run.seed for run in self.study.of(data_set, reference)]
        for name in others:
            if (ours := [run.seed for run in self.study.of(data_set, name)]) != theirs:
                self.notices.append(
                    f"{name} on {data_set}: its seeds {ours} stand beside the reference's {theirs}; their difference holds the "
                    "noise of other seeds too"
                )
        figures = self._paired(data_set, metric, reference, others)
        intervals: Mapping[tuple[str, str], Interval] = {}
        tests: dict[str, PairedTest] = {}
        if len(figures) > 1:
            intervals = bootstrap_intervals(figures, [metric], _SEED, reference)
            tests = {
                name: wilcoxon(user_differences(each, figures[reference], metric))
                for name, each in figures.items()
                if name != reference
            }
        adjusted = holm({name: test.p for name, test in tests.items()})
        found = []
        for name in others:
            mean = self.mean(data_set, name, metric)
            if mean is None:
                continue
            test = tests.get(name)
            mark, reason = (
                stars(test, adjusted[name], len(tests), "users") if test else ("", "no figures per user to pair")
            )
            difference = mean - (self.mean(data_set, reference, metric) or 0.0)
            found.append(
                Comparison(
                    data_set,
                    name,
                    metric,
                    difference,
                    intervals.get((name, metric)),
                    test,
                    adjusted.get(name, 1.0),
                    mark,
                    reason,
                    self._over_seeds(data_set, metric, name, reference),
                )
            )
        return found

    def _paired(self, data_set: str, metric: str, reference: str, others: list[str]) -> dict[str, UserFigures]:
        """Figures per user of the reference and all that can be compared with it, over the same users."""
        names = [name for name in (reference, *others) if (data_set, name) in self.users]
        names = [name for name in names if self.users[data_set, name].metrics([metric])]
        if reference not in names:
            return {}
        theirs = {run.seed: run for run in self.study.of(data_set, reference)}
        for name in list(names):
            mine = [run for run in self.study.of(data_set, name) if run.seed in theirs]
            if not all(same_people(run, theirs[run.seed]) for run in mine):
                names.remove(name)
                self.notices.append(
                    f"{name} on {data_set}: no paired test, its runs are of other data than {reference}'s (data_fingerprint in "
                    "summary.json), so that a user's number may mean somebody else"
                )
        try:
            return common_users({name: self.users[data_set, name] for name in names})
        except ValueError as error:
            self.notices.append(f"{data_set}: no paired tests ({error})")
            return {}

    def _over_seeds(self, data_set: str, metric: str, variant: str, reference: str) -> str:
        """What a paired test over the seeds that both have says, or why there is none."""
        ours, theirs = (
            {run.seed: run.test[metric] for run in self.study.of(data_set, name) if metric in run.test}
            for name in (variant, reference)
        )
        shared = sorted(ours.keys() & theirs.keys())
        if reason := too_few_seeds(len(shared)):
            return reason
        test = wilcoxon([ours[seed] - theirs[seed] for seed in shared])
        return f"Wilcoxon over {len(shared)} seeds: p = {test.p:.3g}, not adjusted"


def _of_other_data(runs: Sequence[Run]) -> list[Run]:
    """Of the seeds of a variant those whose data is not that of the first, as far as the runs say."""
    return [run for run in runs[1:] if not same_source(source_of(runs[0].facts), source_of(run.facts))]
