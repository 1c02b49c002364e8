"""A factorisation that needs few sums: each user's code on its own items, added up, is one step of subspace iteration.

With codes h_u = unit(sum over j in N(u) of F_j) the sums S_i = sum over u with i of h_u / sqrt(|N(u)|) are the normalised
co-occurrence matrix times F, so a handful of rounds find its leading subspace (private power method: Hardt & Price, NIPS 2014;
the normalised matrix as a recommender: Shen et al., CIKM 2021). No row is spent on negatives: an upload lies on own items alone,
which is what makes a bound on a user's whole data affordable.

F comes from the public table by a symmetric whitening, which everybody computes alike: F = V (V^T V + kappa mean I)^-1. It has to
be a function of the table without a choice of signs or order, or the devices' codes would not add up.

Scores are those of implicit least squares (Hu, Koren & Volinsky, ICDM 2008): a device solves for its own user's vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled

# kappa: directions with less than this share of the mean are not blown up; they hold noise.
WHITENING = 0.05


def code_factors(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """F, (items, k - 1): what a user's code is a sum of.

    Parameters
    ----------
    table : (items, k); column 0 holds counts, which codes leave out, the others V.
    """
    vectors = table[:, 1:]
    # In float64 and without an eigenbasis, so that devices differ by rounding and by nothing else.
    gram = vectors.T.astype(np.float64) @ vectors.astype(np.float64)
    ridge = WHITENING * max(float(np.trace(gram)) / len(gram), 1e-30)
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    factors: NDArray[np.float32] = (vectors @ inverse * ridge).astype(np.float32)
    return factors


@compiled
def fill_codes(
    factors: Any, items: Any, pointer: Any, first: int, last: int, count_share: float, length: float, out: Any
) -> None:
    """Changes of users `first` to `last`: on each of n own items length / sqrt(n) times (sqrt(rho), sqrt(1 - rho) h).

    Parameters
    ----------
    factors : (items, k - 1). items, pointer : own items, end to end. count_share : rho. length : L2 norm of the whole change.
    out : (edges, k) float32.
    """
    d = factors.shape[1]
    code = np.empty(d, np.float64)
    for u in range(first, last):
        start, stop = pointer[u], pointer[u + 1]
        for c in range(d):
            code[c] = 0.0
        for q in range(start, stop):
            for c in range(d):
                code[c] += factors[items[q], c]
        square = 0.0
        for c in range(d):
            square += code[c] * code[c]
        each = length / np.sqrt(max(stop - start, 1))
        count = np.float32(each * np.sqrt(count_share))
        factor = each * np.sqrt((1.0 - count_share) / square) if square > 0 else 0.0
        for q in range(start, stop):
            out[q, 0] = count
            for c in range(d):
                out[q, 1 + c] = np.float32(factor * code[c])


def solved_vectors(
    table: NDArray[np.float32],
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    background: float,
    l2: float,
) -> NDArray[np.float32]:
    """User vectors (w V^T V + l2 I + sum of v_j v_j^T)^-1 sum of v_j over a user's items j, with rows of mean square 1.

    Parameters
    ----------
    table : (items, k), V with the column of counts.
    items, starts, ends : user u's own items are `items[starts[u]:ends[u]]`.
    background : w, weight of all items as not wanted. l2 : ridge, > 0.

    Returns
    -------
    (users, k) float32; zero for a user without items.
    """
    out = np.zeros((len(starts), table.shape[1]), np.float32)
    vectors = table.astype(np.float64)
    scale = np.sqrt(max(float(np.square(vectors).sum(axis=1).mean()), 1e-30))
    vectors /= scale
    base = background * (vectors.T @ vectors) + l2 * np.eye(vectors.shape[1])
    _solve(vectors, items, starts, ends, base, out)
    return out


@compiled
def _solve(vectors: Any, items: Any, starts: Any, ends: Any, base: Any, out: Any) -> None:
    """Normal equations by Cholesky, one user after the other."""
    d = vectors.shape[1]
    matrix, right = np.empty((d, d), np.float64), np.empty(d, np.float64)
    for u in range(starts.shape[0]):
        if starts[u] == ends[u]:
            continue
        for a in range(d):
            right[a] = 0.0
            for b in range(a + 1):
                matrix[a, b] = base[a, b]
        for q in range(starts[u], ends[u]):
            row = vectors[items[q]]
            for a in range(d):
                right[a] += row[a]
                for b in range(a + 1):
                    matrix[a, b] += row[a] * row[b]
        for a in range(d):
            for b in range(a + 1):
                value = matrix[a, b]
                for c in range(b):
                    value -= matrix[a, c] * matrix[b, c]
                matrix[a, b] = np.sqrt(max(value, 1e-30)) if a == b else value / matrix[b, b]
            value = right[a]
            for c in range(a):
                value -= matrix[a, c] * right[c]
            right[a] = value / matrix[a, a]
        for a in range(d - 1, -1, -1):
            value = right[a]
            for c in range(a + 1, d):
                value -= matrix[c, a] * right[c]
            right[a] = value / matrix[a, a]
            out[u, a] = np.float32(right[a])
