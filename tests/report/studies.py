"""Study folders whose figures are computed from users drawn with a seed, in the format that the experiments leave."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastpfrec_flwr.config import default_values
from fastpfrec_flwr.evaluation.statistics import estimate, join_users
from fastpfrec_flwr.randomness import derive_generator

CUTOFFS = (10, 20)


def users_of(quality: float, seed: int, count: int = 120, data_set: str = "a") -> dict[str, np.ndarray]:
    """Figures per user: the same people and truth for every variant, hits that grow with `quality`."""
    people, run = derive_generator(1, "people", data_set), derive_generator(seed, "run", data_set, str(quality))
    truth = people.integers(1, 25, size=count)
    ease = people.uniform(0.1, 1.0, size=count)
    hits = {k: run.binomial(np.minimum(truth, k), quality * ease * (k / 20) ** 0.3) for k in CUTOFFS}
    arrays: dict[str, np.ndarray] = {"users": np.arange(count) * 2, "truth": truth.astype(np.float32)}
    for k in CUTOFFS:
        arrays[f"hits@{k}"] = hits[k].astype(np.float32)
        arrays[f"recall@{k}"] = (hits[k] / truth).astype(np.float32)
        arrays[f"ndcg@{k}"] = (hits[k] / np.minimum(truth, k) * 0.9).astype(np.float32)
    return arrays


def metrics_of(users: dict[str, np.ndarray]) -> dict[str, float]:
    joined = join_users([users])
    names = [f"{name}@{k}" for name in ("hit_ratio_micro", "recall", "ndcg") for k in CUTOFFS]
    return {name: estimate(joined, name) for name in names}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_run(path: Path, data_set: str, seed: int, quality: float, with_users: bool = True, **overrides: Any) -> Path:
    """A finished run outside any study."""
    path.mkdir(parents=True, exist_ok=True)
    config = {**default_values(), "data-set": data_set, "seed": seed, **overrides}
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    facts = {"versions": versions, "source": "0123456789abcdef", "data": {"name": data_set, "users": 120, "items": 300}}
    write_json(path / "config.json", {"config": config, **facts})
    users = users_of(quality, seed, data_set=data_set)
    test = metrics_of(users)
    lines = []
    for number, share in ((10, 0.6), (20, 1.0)):
        validation = {name: value * share for name, value in test.items()}
        lines.append(
            {"phase": "train", "round": number, "loss": 0.7 - 0.2 * share, "validation": validation, "clients": 256}
        )
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    epsilon = "infinity" if config["noise"] == "none" else 1000.0 / config["noise-scale"]
    summary = {
        "data_set": data_set, "seed": seed, "rounds": 20, "best_round": 20, "stopped": False, "protocol": "trained on train",
        "validation": lines[-1]["validation"], "test": test, "seconds": {"total": 12.5, "round_median": 0.25},
        "peak_rss_mb": 400.0, "clients": {"trained": 5120, "refused": 3, "isolated": 64, "isolated_nodes": 1},
        "bytes": {"down": 2_000_000, "up": 1_500_000},
        "privacy": {"epsilon_per_upload": epsilon, "reason": "clip"},
    }  # fmt: skip
    write_json(path / "summary.json", summary)
    if with_users:
        np.savez(path / "user_metrics.npz", **users)
    return path


@dataclass
class StudyFolder:
    """A study folder that tests may break."""

    path: Path
    runs: dict[tuple[str, str, int], Path] = field(default_factory=dict)

    def change(self, **values: Any) -> None:
        whole = json.loads((self.path / "study.json").read_text())
        write_json(self.path / "study.json", {**whole, **values})


VARIANTS = {
    "FastPFRec": (0.30, {}),
    "no noise": (0.45, {"noise": "none", "noise-scale": 0.0}),
    "more noise": (0.20, {"noise-scale": 0.5}),
}
PAPER = [
    {"variant": "FastPFRec", "data_set": "a", "metric": "ndcg", "value": 0.1, "where": "performance table"},
    {"variant": "FastPFRec", "data_set": "a", "metric": "hit_ratio_micro", "value": 0.2, "where": "performance table"},
    {"variant": "no noise", "data_set": "a", "metric": "ndcg", "value": 0.125, "where": "ablation table"},
]


def write_study(
    path: Path, data_sets: tuple[str, ...] = ("a", "b", "c"), seeds: tuple[int, ...] = (1, 2)
) -> StudyFolder:
    """A whole study of three variants."""
    study = StudyFolder(path)
    for data_set in data_sets:
        for name, (quality, overrides) in VARIANTS.items():
            for seed in seeds:
                folder = path / "runs" / data_set / f"{name.replace(' ', '-')}-12345678" / f"seed-{seed}"
                write_run(folder, data_set, seed, quality, **overrides)
                record = {
                    "variant": name, "data_set": data_set, "seed": seed, "key": "k", "status": "done", "error": None,
                    "seconds": 13.0,
                    "finished_at": "2026-01-02T03:04:05", "source": "0123456789abcdef",
                }  # fmt: skip
                write_json(folder / "run.json", record)
                study.runs[data_set, name, seed] = folder
    whole = {
        "name": "noise", "title": "What noise costs", "question": "How much?", "protocol": "Full ranking, test part.",
        "metrics": ["ndcg@20"], "reference": "FastPFRec", "data_sets": list(data_sets), "seeds": list(seeds), "quick": False,
        "variants": [{"name": name, "overrides": each[1], "about": f"about {name}"} for name, each in VARIANTS.items()],
        "paper": PAPER,
    }  # fmt: skip
    write_json(path / "study.json", whole)
    return study
