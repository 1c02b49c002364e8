"""From a wanted epsilon back to a configuration: the smallest noise that the ledger itself proves enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.config_privacy import can_be_sent
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.laws import NoiseLaw
from fastpfrec_flwr.privacy.lines import Line, Setting
from fastpfrec_flwr.privacy.sampled_rows import rows_in_upload
from fastpfrec_flwr.privacy.upload_costs import upload_costs

# Beyond this noise nothing is left of any table; whatever needs more has no answer here.
_LARGEST_NOISE = 1e9
OBSERVERS = ("trusted node", "server", "final model")


@dataclass(frozen=True)
class Proposal:
    """Noise for a target, and what the other knobs would do.

    Attributes
    ----------
    line : the whole-run line of the ledger with this noise. noise_scale : lambda or sigma, three digits, rounded up.
    deviation : standard deviation of the noise on one coordinate of one upload.
    signal : largest root-mean-square change of a coordinate that the clip lets through, in the same unit as the noise.
    changes : (what, epsilon) with one other thing changed, at the proposed noise.
    sendable : whether uploads with this noise are within what is accepted; else clip and noise must be lowered together.
    """

    target: float
    noise_scale: float
    line: Line
    signal: float
    deviation: float
    changes: tuple[tuple[str, float], ...]
    sendable: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "target_epsilon": self.target,
            "noise-scale": self.noise_scale,
            "line": self.line.to_dict(),
            "clip_per_coordinate": self.signal,
            "sendable": self.sendable,
            "changes": [
                {"change": what, "epsilon": "infinity" if math.isinf(epsilon) else epsilon}
                for what, epsilon in self.changes
            ],
        }


def whole_run(setting: Setting, observer: str) -> Line:
    """The line on all uploads of a user, against an observer.

    Raises
    ------
    ConfigError if this configuration has no such observer.
    """
    try:
        return build_ledger(setting).of(observer)
    except KeyError:
        raise ConfigError(
            f"--observer must be {', '.join(OBSERVERS[1:])} with tier = 'direct' or another strategy: nobody else sees "
            f"anything, got {observer!r}"
        ) from None


def propose_noise(setting: Setting, target: float, observer: str = "trusted node") -> Proposal:
    """The smallest noise-scale with which `observer` has epsilon <= `target` over the whole run.

    Raises
    ------
    ConfigError if `target` is not positive or no noise reaches it.
    """
    if not 0 < target < math.inf:
        raise ConfigError(f"--target-epsilon must be > 0, got {target}")
    # A budget would meet the target by sending devices away; asked for is the noise.
    noise = "laplace" if setting.config.noise == "none" else setting.config.noise
    setting = _with(setting, noise=noise, epsilon_budget=0.0)

    def epsilon(noise_scale: float) -> float:
        return whole_run(_with(setting, noise_scale=noise_scale), observer).epsilon

    if math.isinf(epsilon(1.0)):
        line = whole_run(_with(setting, noise_scale=1.0), observer)
        raise ConfigError(f"no noise-scale gives a finite epsilon against the {observer}: {line.reason}")
    low, high = 1e-9, 1e-9
    while epsilon(high) > target:
        low, high = high, high * 8
        if high > _LARGEST_NOISE:
            raise ConfigError(
                f"no noise-scale up to {_LARGEST_NOISE:g} gives epsilon <= {target} against the {observer}"
            )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle) <= target else (middle, high)
    noise_scale = _three_digits_up(high)
    proposed = _with(setting, noise_scale=noise_scale)
    line = whole_run(proposed, observer)
    if line.epsilon > target:
        raise AssertionError(f"noise-scale {noise_scale} gives epsilon {line.epsilon}, not <= {target}")
    cost, _, _ = upload_costs(proposed.config, setting.num_items)
    # Twice the clip over the scale is sqrt(2 rho), or once the clip where the other upload is zero.
    apart = math.sqrt(2 * cost.rho) * proposed.config.effective_noise_scale
    clip = apart if setting.config.adjacency == "zero-out" else apart / 2
    config = setting.config
    rows = rows_in_upload(config.upload, config.sampled_share, setting.num_items)
    signal = clip / math.sqrt(rows * config.embedding_dim)
    law = NoiseLaw(proposed.config.noise_kind, proposed.config.effective_noise_scale)
    changes = _changes(proposed, observer)
    return Proposal(target, noise_scale, line, signal, law.deviation, changes, can_be_sent(proposed.config))


def _changes(setting: Setting, observer: str) -> tuple[tuple[str, float], ...]:
    config = setting.config
    clip = "clip_norm" if config.clip_norm else "row_clip" if config.row_clip else "coordinate_clip"
    half_clip, half_rounds = getattr(config, clip) / 2, max(config.num_rounds // 2, 1)
    named: list[tuple[str, dict[str, Any]]] = [
        (f"{clip.replace('_', '-')} = {half_clip:g} (half)", {clip: half_clip}),
        (f"num-rounds = {half_rounds} (half)", {"num_rounds": half_rounds}),
        (
            f"clients-per-round = {config.clients_per_round * 2} (twice)",
            {"clients_per_round": config.clients_per_round * 2},
        ),
    ]
    return tuple((what, whole_run(_with(setting, **change), observer).epsilon) for what, change in named)


def _with(setting: Setting, **changes: Any) -> Setting:
    config: RunConfig = setting.config.model_copy(update=changes)
    return replace(setting, config=config)


def _three_digits_up(value: float) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step * (1 - 1e-12)) * step:.6g}")
