"""Numbers as people read them, the same in every format."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


def metric(value: float | None) -> str:
    """A metric with four digits after the point; a dash where there is none."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.4f}"


def difference(value: float | None) -> str:
    """A difference of metrics, with its sign; nothing but zeros has none."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{abs(value):.4f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def mean_and_deviation(mean: float | None, deviation: float) -> str:
    """A mean with its standard deviation, or alone where one value has none."""
    if mean is None or not math.isfinite(mean) or not math.isfinite(deviation):
        return metric(mean)
    return f"{mean:.4f} {PLUS_MINUS} {deviation:.4f}"


def interval(low: float, high: float, signed: bool = False) -> str:
    """Bounds of an interval."""
    show = difference if signed else metric
    return f"[{show(low)}, {show(high)}]"


def p_value(value: float) -> str:
    """A p-value with three digits."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"


def size(count: float | None) -> str:
    """Bytes in megabytes."""
    return DASH if count is None else f"{count / 1e6:.1f} MB"


def share(part: float, whole: float) -> str:
    """A part in per cent of the whole."""
    return DASH if not whole else f"{part / whole:.2%}"


def epsilon(value: object) -> str:
    """A privacy loss; what is no number stands as it is."""
    if value is None:
        return DASH
    if not isinstance(value, int | float):
        return "\N{INFINITY}" if value == "infinity" else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def setting(value: object) -> str:
    """A run-config value as it would stand in a TOML file, text without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "(empty)" if value == "" else str(value)
