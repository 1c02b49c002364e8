"""The only way out of a client: clip, then noise, then grid. What comes out is the only thing `messages` can encode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.compiling import compiled
from fastpfrec_flwr.parallel import even_pieces, in_parallel
from fastpfrec_flwr.privacy.clipping import clamp, clip_joint, clip_rows
from fastpfrec_flwr.privacy.laws import GAUSSIAN, LAPLACE
from fastpfrec_flwr.privacy.noise import (
    add_seeded_laplace,
    add_seeded_normal,
    add_system_laplace,
    add_system_normal,
    round_to_grid,
)

# One own item in the count column: large against the noise that the sum over all clients and rounds collects.
COUNT_UNIT = 32.0
_SEAL = object()


class Changes(Protocol):
    """What local training hands over: one segment of rows per user."""

    @property
    def rows(self) -> NDArray[np.int32]: ...  # noqa: D102

    @property
    def pointer(self) -> NDArray[np.int64]: ...  # noqa: D102

    @property
    def changes(self) -> NDArray[np.float32]: ...  # noqa: D102


@dataclass(frozen=True)
class PrivatizedUploads:
    """Uploads of a cohort, one segment per client: Theta' - E, clipped, noised and on the grid. Made by `Mechanism` alone.

    Attributes
    ----------
    nonces : (clients,) uint64; decides the trusted node, names nobody.
    pointer : (clients + 1,) int64. rows : (touched,) int32, of each client sorted and distinct.
    cover_scale : scale of the noise that lies on every other row but is drawn where the upload arrives (simulated dense
        uploads); 0 where the rows are all there is.
    values : (touched, k) float32, float16, or int8 multiples of 2^exponent.
    exponents : (touched,) int8 where `values` are int8.
    """

    nonces: NDArray[np.uint64]
    pointer: NDArray[np.int64]
    rows: NDArray[np.int32]
    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]
    cover_scale: float
    seal: object = field(repr=False, compare=False)
    exponents: NDArray[np.int8] | None = None

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("PrivatizedUploads come from Mechanism.privatize; nothing else may leave a client")

    def recoded(self, values: NDArray[np.int8], exponents: NDArray[np.int8]) -> PrivatizedUploads:
        """The same uploads in fewer bits, made of the private values alone."""
        return replace(self, values=values, exponents=exponents)


@dataclass(frozen=True)
class Clip:
    """Bounds of one upload: each coordinate, then each row's L2 norm, then the upload's L2 or L1 norm; 0 is no bound.

    With `counted` the last column is not a change but a count of own items in units of `COUNT_UNIT`; it has a bound of its own.
    """

    row_bound: float
    joint_bound: float
    l1: bool = False
    counted: bool = False
    coordinate_bound: float = 0.0

    def apply(self, values: NDArray[np.float32]) -> None:
        """Clip one client's change ((rows, k) float32) in place; rows that are not finite become zero."""
        _clip(
            values, float(self.coordinate_bound), float(self.row_bound), float(self.joint_bound), self.l1, self.counted
        )


@compiled
def _clip(values: Any, coordinate_bound: float, row_bound: float, joint_bound: float, l1: bool, counted: bool) -> None:
    columns = values.shape[1]
    if counted:
        columns -= 1
        for t in range(values.shape[0]):
            count = values[t, columns]
            values[t, columns] = np.float32(min(max(count, 0.0), COUNT_UNIT)) if count == count else np.float32(0.0)
    clamp(values, coordinate_bound, columns)
    _, square = clip_rows(values, row_bound, columns)
    clip_joint(values, joint_bound, l1, columns, square)


@compiled
def _clip_and_noise(
    values: Any,
    pointer: Any,
    keys: Any,
    first: int,
    last: int,
    coordinate_bound: float,
    row_bound: float,
    joint_bound: float,
    l1: bool,
    counted: bool,
    scale: float,
    gaussian: bool,
) -> None:
    """Clip, noise and grid for users `first` to `last`, each while its rows are in the cache."""
    for user in range(first, last):
        mine = values[pointer[user] : pointer[user + 1]]
        _clip(mine, coordinate_bound, row_bound, joint_bound, l1, counted)
        if gaussian:
            add_seeded_normal(keys[user], scale, mine.reshape(-1), True)
        else:
            add_seeded_laplace(keys[user], scale, mine.reshape(-1), True)


class Mechanism(Protocol):
    """Turns changes into uploads."""

    @property
    def noise_scale(self) -> float:
        """Scale of what leaves: lambda of Laplace noise, standard deviation of Gaussian noise, 0 without noise."""

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """Clip and noise each client's change; `changes.changes` is used up (changed in place).

        Parameters
        ----------
        nonces : (clients,) uint64.
        keys : (clients,) uint64 noise streams (simulation), or None for the operating system's entropy (real people).
        num_items : rows of the table.
        """


@dataclass(frozen=True)
class LaplaceMechanism:
    """Laplace noise on touched rows (`dense=False`) or on the whole table; `GaussianMechanism` differs in the law alone.

    With noise streams (simulation) a dense upload leaves as its touched rows plus the scale of the cover noise on all
    others, which is independent of the client's data. Without (a real device) the whole noised table leaves; with `whole` it does
    in a simulation too.
    """

    clip: Clip
    noise_scale: float
    dense: bool
    threads: int = 1
    whole: bool = False

    kind: ClassVar[str] = LAPLACE

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`."""
        rows, pointer, values = changes.rows, changes.pointer, changes.changes
        if keys is not None and not self.whole:
            self._clip_and_noise(values, pointer, keys)
            return PrivatizedUploads(nonces, pointer, rows, values, self.noise_scale if self.dense else 0.0, _SEAL)
        for user in range(len(pointer) - 1):
            self.clip.apply(values[pointer[user] : pointer[user + 1]])
        if self.dense:
            rows, pointer, values = _whole_tables(rows, pointer, values, num_items)
        flat = values.reshape(-1)
        if keys is not None:
            add_seeded = add_seeded_normal if self.kind == GAUSSIAN else add_seeded_laplace
            for user, key in enumerate(keys):
                add_seeded(key, self.noise_scale, values[pointer[user] : pointer[user + 1]].reshape(-1), True)
            return PrivatizedUploads(nonces, pointer, rows, values, 0.0, _SEAL)
        (add_system_normal if self.kind == GAUSSIAN else add_system_laplace)(self.noise_scale, flat)
        return PrivatizedUploads(nonces, pointer, rows, values, 0.0, _SEAL)

    def _clip_and_noise(
        self, values: NDArray[np.float32], pointer: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> None:
        clip = self.clip

        def run(piece: tuple[int, int]) -> None:
            _clip_and_noise(
                values, pointer, keys, *piece,
                float(clip.coordinate_bound), float(clip.row_bound), float(clip.joint_bound), clip.l1, clip.counted,
                float(self.noise_scale), self.kind == GAUSSIAN,
            )  # fmt: skip

        in_parallel(run, even_pieces(np.diff(pointer), self.threads), self.threads)


@dataclass(frozen=True)
class GaussianMechanism(LaplaceMechanism):
    """Gaussian noise of standard deviation `noise_scale`; with distributed noise that is one client's share."""

    kind: ClassVar[str] = GAUSSIAN


@dataclass(frozen=True)
class NoNoise:
    """Clipping and the grid, no noise: the null mechanism of ablations. A dense upload then equals its touched rows."""

    clip: Clip
    noise_scale: float = 0.0

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`."""
        for user in range(len(changes.pointer) - 1):
            self.clip.apply(changes.changes[changes.pointer[user] : changes.pointer[user + 1]])
        round_to_grid(changes.changes.reshape(-1))
        return PrivatizedUploads(nonces, changes.pointer, changes.rows, changes.changes, 0.0, _SEAL)


@dataclass(frozen=True)
class SendsNothing:
    """Nothing leaves: the mechanism of clients that train alone."""

    noise_scale: float = 0.0

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`; uploads of nobody."""
        return PrivatizedUploads(
            nonces[:0], np.zeros(1, np.int64), changes.rows[:0].copy(), changes.changes[:0].copy(), 0.0, _SEAL
        )


# What float16 can hold; an honest change is far below.
HALF_LARGEST = 65504.0


@dataclass(frozen=True)
class HalfPrecision:
    """Another mechanism's uploads in float16, half the bytes. Rounded after the noise, so it tells nobody more."""

    mechanism: Mechanism

    @property
    def noise_scale(self) -> float:
        """Of the other mechanism."""
        return self.mechanism.noise_scale

    def privatize(
        self, changes: Changes, nonces: NDArray[np.uint64], keys: NDArray[np.uint64] | None, num_items: int
    ) -> PrivatizedUploads:
        """See `Mechanism`."""
        whole = self.mechanism.privatize(changes, nonces, keys, num_items)
        half = np.clip(whole.values, -HALF_LARGEST, HALF_LARGEST).astype(np.float16)
        return PrivatizedUploads(whole.nonces, whole.pointer, whole.rows, half, whole.cover_scale, _SEAL)


def _whole_tables(
    rows: NDArray[np.int32], pointer: NDArray[np.int64], values: NDArray[np.float32], num_items: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Each client's change on every row of the table: (clients * items,) rows, pointer, (clients * items, k) values."""
    clients = len(pointer) - 1
    whole = np.zeros((clients, num_items, values.shape[1]), np.float32)
    for user in range(clients):
        mine = slice(pointer[user], pointer[user + 1])
        whole[user, rows[mine]] = values[mine]
    return (
        np.tile(np.arange(num_items, dtype=np.int32), clients),
        np.arange(clients + 1, dtype=np.int64) * num_items,
        whole.reshape(clients * num_items, values.shape[1]),
    )
