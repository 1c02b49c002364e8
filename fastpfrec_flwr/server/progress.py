"""What a run shows while it runs: one line per evaluated round, one table at the end. Plain text: it passes through log streams."""

from __future__ import annotations

import math
from typing import Any

_COLUMNS = (
    ("round", 9), ("loss", 7), ("NDCG@10", 8), ("NDCG@20", 8), ("HR@10", 7), ("HR@20", 7), ("clients", 8), ("isolated", 9),
    ("seconds", 8), ("ETA", 7),
)  # fmt: skip
_METRICS = ("hit_ratio_micro", "ndcg", "recall", "precision", "hit_rate_user")


def header() -> str:
    """Column names of the progress lines (HR is hits / all truth items, the paper's; isolated counts from round 1)."""
    return "".join(name.rjust(width) for name, width in _COLUMNS)


def progress_line(line: dict[str, Any], num_rounds: int) -> str:
    """One evaluated round, as `metrics.jsonl` has it."""
    validation, done = line["validation"], line["round"]
    left = line["seconds"] / done * (num_rounds - done)
    cells = [
        f"{done}/{num_rounds}",
        _number(line["loss"]),
        _number(validation.get("ndcg@10")),
        _number(validation.get("ndcg@20")),
        _number(validation.get("hit_ratio_micro@10")),
        _number(validation.get("hit_ratio_micro@20")),
        str(line["clients"]),
        str(line["isolated"]),
        f"{line['seconds']:.1f}",
        duration(left),
    ]
    return "".join(cell.rjust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02d}"
        if whole < 3600
        else f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    )


def final_table(summary: dict[str, Any]) -> str:
    """The table at the end: validation and test at both cutoffs, then what it took."""
    lines = [
        "",
        f"{summary['data_set']}, seed {summary['seed']}, best round {summary['best_round']}"
        + (" (refitted)" if summary["refit"] and not summary["stopped"] else ""),
        "".join(["metric".ljust(18), *(f"{part} @{k}".rjust(16) for part in ("validation", "test") for k in (10, 20))]),
    ]
    for metric in _METRICS:
        cells = [
            _number(summary[part].get(f"{metric}@{k}")).rjust(16) for part in ("validation", "test") for k in (10, 20)
        ]
        lines.append("".join([metric.ljust(18), *cells]))
    clients, size = summary["clients"], summary["bytes"]
    lines += [
        f"clients: {clients['trained']} uploads, {clients['isolated']} isolated ({clients['isolated_share']:.2%}), "
        f"{clients['refused']} refused",
        f"time: {summary['seconds']['total']:.1f} s, {summary['seconds']['round_median'] * 1e3:.0f} ms a round (median); "
        f"peak memory of the server {summary['peak_rss_mb']:.0f} MB",
        f"bytes a round, as deployed: {size['down'] / 1e6:.1f} MB down, {size['up'] / 1e6:.1f} MB up",
    ]
    return "\n".join(lines)
