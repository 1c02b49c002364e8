"""What one upload costs, formally. Adjacency: replace one client's whole data; d = uploaded coordinates.

Only bounds with a proof: where nothing bounds an upload, epsilon is infinite; where the bound is loose, it is large and printed
as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UploadGuarantee:
    """Epsilon of one upload against whoever sees it (delta = 0), and why."""

    epsilon: float
    reason: str


def laplace_upload(
    noise_scale: float,
    row_bound: float,
    joint_bound: float,
    l1: bool,
    num_items: int,
    embedding_dim: int,
    dense: bool,
    count_unit: float = 0.0,
) -> UploadGuarantee:
    """Guarantee of Laplace noise of scale lambda on a clipped upload.

    epsilon = (L1 distance of two arbitrary clipped uploads) / lambda: 2 S for an L1 clip S; 2 S sqrt(d) for an L2 clip S,
    by Cauchy-Schwarz; a row bound b alone gives S <= b sqrt(items).

    Parameters
    ----------
    noise_scale : lambda, 0 for no noise. row_bound, joint_bound : clips, 0 for none. l1 : kind of the joint clip.
    count_unit : size of one own item in the count column, 0 without one; two users' counts differ by at most this per item.
    dense : whether every row carries noise; otherwise which rows were touched is visible, which no epsilon covers.
    """
    if noise_scale == 0:
        return UploadGuarantee(math.inf, "no noise")
    if not dense:
        return UploadGuarantee(math.inf, "sparse upload: which rows were touched is visible")
    coordinates = num_items * embedding_dim
    counts = count_unit * num_items / noise_scale
    also = ", plus unit x items / lambda for the counts" if counts else ""
    if joint_bound > 0 and l1:
        return UploadGuarantee(
            2 * joint_bound / noise_scale + counts, f"L1 clip of the whole upload: 2 S / lambda{also}"
        )
    bounds = [bound for bound in (joint_bound, row_bound * math.sqrt(num_items)) if bound > 0]
    if not bounds:
        return UploadGuarantee(math.inf, "nothing bounds the upload: no clip")
    return UploadGuarantee(
        2 * min(bounds) * math.sqrt(coordinates) / noise_scale + counts,
        f"L2 clip of the whole upload: 2 S sqrt(d) / lambda{also}",
    )
