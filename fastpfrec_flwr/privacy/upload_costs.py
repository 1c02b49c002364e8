"""What one upload of a configuration costs, whatever is done with it afterwards."""

from __future__ import annotations

import math

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.accountant import Cost, compose
from fastpfrec_flwr.privacy.laws import LAPLACE
from fastpfrec_flwr.privacy.ledger import UploadGuarantee, sensitivity, unprotected
from fastpfrec_flwr.privacy.lines import DEFAULT_DELTA
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT
from fastpfrec_flwr.privacy.sampled_rows import rows_in_upload


def upload_costs(config: RunConfig, num_items: int) -> tuple[Cost, Cost, str]:
    """Cost of one upload, what its count column adds in a user's first round, and what bounds it.

    Any two clipped uploads are at most twice the clip apart, and each at most the clip from zero.
    """
    scale, kind = config.effective_noise_scale, config.noise_kind
    apart = sensitivity(
        config.row_clip, config.clip_norm, config.clip_kind == "l1", config.coordinate_clip,
        rows_in_upload(config.upload, config.sampled_share, num_items), config.embedding_dim,
        config.adjacency == "zero-out",
    )  # fmt: skip
    reason = unprotected(scale, config.upload != "sparse")
    if not reason and math.isinf(apart.l2):
        reason = apart.l2_reason
    if reason:
        return Cost(math.inf, math.inf), Cost(0.0, 0.0), reason
    none = Cost.of(kind, scale, 0.0, 0.0)
    counts = Cost.of(kind, scale, COUNT_UNIT * num_items, COUNT_UNIT * math.sqrt(num_items)) if config.counted else none
    reason = f"{apart.l1_reason} / lambda" if kind == LAPLACE else f"{apart.l2_reason} against sigma = {scale:.4g}"
    return Cost.of(kind, scale, apart.l1, apart.l2), counts, reason


def one_upload(config: RunConfig, num_items: int, delta: float = DEFAULT_DELTA) -> UploadGuarantee:
    """Epsilon of a user's dearest upload, its first."""
    cost, counts, reason = upload_costs(config, num_items)
    if not cost.bounded:
        return UploadGuarantee(math.inf, reason)
    also = ", plus unit x items / lambda for the counts" if counts.rho and not counts.gaussian else ""
    also = also or (", with the counts" if counts.rho else "")
    bound = compose([(cost + counts, 1)], delta if cost.gaussian else 0.0)
    return UploadGuarantee(bound.epsilon, reason + also, bound.delta)


def upload_epsilons(config: RunConfig, num_items: int) -> tuple[float, float]:
    """Pure epsilon of one upload, and what its first one costs more; what a device's own budget counts."""
    cost, counts, _ = upload_costs(config, num_items)
    return cost.pure, counts.pure
