"""What one upload costs, formally; d = uploaded coordinates. Adjacency, chosen by `adjacency`:

- `replace`: one client's whole data is replaced by any other. Two clipped uploads are at most twice the clip apart.
- `zero-out`: one client's whole data is there, or it sends a zero change with the same noise (Kairouz et al. 2021; Ponomareva et
  al. 2023). An upload and zero are at most the clip apart. That the client takes part is public in both.

Only bounds with a proof: where nothing bounds an upload, epsilon is infinite; where the bound is loose, it is large and printed
as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UploadGuarantee:
    """Epsilon of one upload against whoever sees it, at `delta`, and why."""

    epsilon: float
    reason: str
    delta: float = 0.0


@dataclass(frozen=True)
class Sensitivity:
    """How far two arbitrary clipped uploads can be apart, L1 and L2; infinite where nothing bounds them."""

    l1: float
    l2: float
    l1_reason: str
    l2_reason: str


def sensitivity(
    row_bound: float,
    joint_bound: float,
    l1: bool,
    coordinate_bound: float,
    num_items: int,
    embedding_dim: int,
    zero_out: bool = False,
) -> Sensitivity:
    """Twice the clip, in both norms, the smallest of what is proven; once the clip with `zero_out`.

    L1: 2 S for an L1 clip S, 2 c d for coordinates within c, and by Cauchy-Schwarz sqrt(d) times the L2 distance. L2: 2 S for
    either clip of the whole upload, 2 b sqrt(items) for rows within b, 2 c sqrt(d) for coordinates within c.

    Parameters
    ----------
    row_bound, joint_bound, coordinate_bound : clips, 0 for none. l1 : kind of the joint clip.
    zero_out : the other upload is zero.
    """
    d = num_items * embedding_dim
    times, twice = (1, "") if zero_out else (2, "2 ")
    in_l2 = [(math.inf, "nothing bounds the upload: no clip")]
    if joint_bound > 0:
        in_l2.append((times * joint_bound, f"{'L1' if l1 else 'L2'} clip of the whole upload: {twice}S"))
    if row_bound > 0:
        # What a row clip bounds is the whole upload's L2 norm.
        in_l2.append((times * row_bound * math.sqrt(num_items), f"L2 clip of the whole upload: {twice}S"))
    if coordinate_bound > 0:
        in_l2.append((times * coordinate_bound * math.sqrt(d), f"clip of each coordinate: {twice}c sqrt(d)"))
    l2_distance, l2_reason = min(in_l2, key=lambda each: each[0])
    of_coordinates = l2_reason.startswith("clip of each")
    in_l1 = [
        (
            l2_distance * math.sqrt(d),
            f"clip of each coordinate: {twice}c d" if of_coordinates else f"{l2_reason} sqrt(d)",
        )
    ]
    if joint_bound > 0 and l1:
        in_l1.append((times * joint_bound, f"L1 clip of the whole upload: {twice}S"))
    if coordinate_bound > 0:
        in_l1.append((times * coordinate_bound * d, f"clip of each coordinate: {twice}c d"))
    l1_distance, l1_reason = min(in_l1, key=lambda each: each[0])
    return Sensitivity(l1_distance, l2_distance, l1_reason, l2_reason)


def unprotected(noise_scale: float, dense: bool) -> str:
    """Why no clip would help, or nothing."""
    if noise_scale == 0:
        return "no noise"
    return "" if dense else "sparse upload: which rows were touched is visible"


def laplace_upload(
    noise_scale: float,
    row_bound: float,
    joint_bound: float,
    l1: bool,
    num_items: int,
    embedding_dim: int,
    dense: bool,
    count_unit: float = 0.0,
    coordinate_bound: float = 0.0,
) -> UploadGuarantee:
    """Guarantee of Laplace noise of scale lambda on a clipped upload.

    epsilon = (L1 distance of two arbitrary clipped uploads) / lambda, see `sensitivity`.

    Parameters
    ----------
    noise_scale : lambda, 0 for no noise. row_bound, joint_bound, coordinate_bound : clips, 0 for none. l1 : kind of the joint clip.
    count_unit : size of one own item in the count column, 0 without one; two users' counts differ by at most this per item.
    dense : whether every row carries noise; otherwise which rows were touched is visible, which no epsilon covers.
    """
    if reason := unprotected(noise_scale, dense):
        return UploadGuarantee(math.inf, reason)
    apart = sensitivity(row_bound, joint_bound, l1, coordinate_bound, num_items, embedding_dim)
    if math.isinf(apart.l1):
        return UploadGuarantee(math.inf, apart.l1_reason)
    counts = count_unit * num_items / noise_scale
    also = ", plus unit x items / lambda for the counts" if counts else ""
    return UploadGuarantee(apart.l1 / noise_scale + counts, f"{apart.l1_reason} / lambda{also}")
