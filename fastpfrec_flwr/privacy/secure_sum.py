"""A sum of which nobody sees the parts: pairwise masks that cancel, with recovery of whoever drops out.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017), figure 4, against observers who
follow the protocol (their honest-but-curious setting: whoever relays the public keys relays the right ones). Four steps a round:

1. `Member.hello`: two public keys (X25519), one to encrypt shares with, one to make masks with.
2. `Member.share`: a secret for the own mask b and the secret key of the masks, both as Shamir shares, one for each member of
   the group, encrypted for it alone (ChaCha20-Poly1305).
3. `Member.mask`: y = x + PRG(b) + sum over later members of PRG(s_ij) - sum over earlier ones, modulo 2^64.
4. `Member.reveal`: of each member whose y arrived a share of its b, of each other one a share of its mask key. Never both of one
   member, and only once: with both, y would be open.

`unmask` puts the sum together from at least `threshold` answers. The threshold is more than half of the group, and a member gives
one half of a share only: whoever tells different members different stories about who dropped out cannot collect both either, as
long as fewer than 2 threshold - members of them collude with it. The primitives are those of `cryptography` and `pycryptodome`.
Flower's own helpers are not used: their mask generator folds its seed to 32 bits and runs NumPy's Mersenne Twister, which whoever
sees a masked vector can search through.

Values are whole numbers of grid steps (`privacy.noise.GRID`), so sums modulo 2^64 are exact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fastpfrec_flwr.privacy.noise import GRID

_KEY = 32
_CHUNK = 16  # what pycryptodome's Shamir takes at a time


class SecureSumError(ValueError):
    """A step that must not or cannot be taken; it says which and why."""


@dataclass(frozen=True)
class Hello:
    """Public keys of a member, 32 bytes each: for encryption, and for masks."""

    encryption: bytes
    masks: bytes


def usable(hello: Hello) -> bool:
    """Whether others can agree on secrets with these keys: two different ones, neither of low order."""
    trial = X25519PrivateKey.generate().private_bytes_raw()
    try:
        for key in (hello.encryption, hello.masks):
            _agree(trial, key, b"trial")
    except SecureSumError:
        return False
    return hello.encryption != hello.masks


def to_steps(values: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Grid values as whole steps modulo 2^64."""
    steps: NDArray[np.uint64] = np.rint(values.astype(np.float64) / GRID).astype(np.int64).view(np.uint64)
    return steps


def from_steps(steps: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The sum that whole steps stand for; sums beyond +-2^63 steps would have wrapped around."""
    return steps.view(np.int64).astype(np.float64) * GRID


@dataclass
class Member:
    """One member of one sum. Its keys are used for this sum only.

    Attributes
    ----------
    context : names the sum (run, round, node): what was made for one is of no use in another.
    number : its place, from 1; the same for everybody.
    """

    context: bytes
    number: int
    encryption_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    mask_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    own_seed: bytes = field(default_factory=lambda: os.urandom(_KEY), repr=False)
    group: dict[int, Hello] = field(default_factory=dict)
    threshold: int = 0
    own_share: bytes = field(default=b"", repr=False)
    sharing: tuple[int, ...] = ()
    revealed: bool = False

    def hello(self) -> Hello:
        """Step 1."""
        return Hello(_public(self.encryption_key), _public(self.mask_key))

    def share(self, group: Mapping[int, Hello], threshold: int) -> dict[int, bytes]:
        """Step 2: a sealed share for each other member.

        Raises
        ------
        SecureSumError if this member is not in the group as it is, keys repeat, or the threshold would let fewer than a
        majority, or more than there are, open a mask.
        """
        if group.get(self.number) != self.hello():
            raise SecureSumError(f"member {self.number} is not in the group with its own keys")
        keys = [key for hello in group.values() for key in (hello.encryption, hello.masks)]
        if len(set(keys)) < len(keys):
            raise SecureSumError("public keys repeat: somebody stands in for others")
        if not len(group) / 2 < threshold <= len(group):
            raise SecureSumError(f"threshold must be more than half of {len(group)} members, got {threshold}")
        self.group, self.threshold = dict(group), threshold
        numbers = sorted(group)
        shares = dict(zip(numbers, _split(self.own_seed + self.mask_key, threshold, len(numbers)), strict=True))
        self.own_share = shares[self.number]
        return {
            other: self._box(self.number, other).encrypt(bytes(12), shares[other], None)
            for other in numbers
            if other != self.number
        }

    def mask(self, steps: NDArray[np.uint64], sharing: Sequence[int]) -> NDArray[np.uint64]:
        """Step 3: the masked values.

        Parameters
        ----------
        steps : (n,) this member's values. sharing : members whose shares this one has, itself included; the others never masked.

        Raises
        ------
        SecureSumError if fewer than the threshold are left, or values were masked before: two of them open their difference.
        """
        if self.sharing:
            raise SecureSumError(f"member {self.number} has masked its values already")
        if self.number not in sharing or not set(sharing) <= set(self.group) or len(sharing) < self.threshold:
            raise SecureSumError(f"{len(sharing)} members shared, at least {self.threshold} of the group must")
        self.sharing = tuple(sorted(sharing))
        masked = steps + mask_stream(self.own_seed, len(steps))
        for other in self.sharing:
            if other != self.number:
                seed = pair_seed(self.mask_key, self.group[other].masks, self.context)
                _add_pair(masked, seed, self.number < other)
        return masked

    def reveal(self, arrived: Sequence[int], sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 4: of each member that shared, half of its share: of b where its values arrived, of the mask key where not.

        Parameters
        ----------
        arrived : members whose masked values arrived. sealed : the shares that this member was sent, by sender.

        Raises
        ------
        SecureSumError if it was asked before, too few arrived, or the shares are not those of the members that masked.

        A share that is not what its sender sealed is left out: the others' are worth as much without it.
        """
        if self.revealed:
            raise SecureSumError(f"member {self.number} has revealed shares already: a second answer could open a mask")
        if not set(arrived) <= set(self.sharing) or len(arrived) < self.threshold:
            raise SecureSumError(f"{len(arrived)} masked values arrived, at least {self.threshold} must")
        if set(sealed) != set(self.sharing) - {self.number}:
            raise SecureSumError("shares must be those of the members that masked, no more and no fewer")
        opened = {self.number: _half(self.own_share, self.number in arrived)}
        for sender, box in sealed.items():
            try:
                share = self._box(sender, self.number).decrypt(bytes(12), box, None)
            except InvalidTag:
                continue
            opened[sender] = _half(share, sender in arrived)
        self.revealed = True
        return opened

    def _box(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        """The cipher for one direction between this member and another; its key is used once, so its nonce may be zero."""
        other = receiver if sender == self.number else sender
        label = self.context + b"|share|" + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
        return ChaCha20Poly1305(_agree(self.encryption_key, self.group[other].encryption, label))


def unmask(
    masked: Mapping[int, NDArray[np.uint64]],
    group: Mapping[int, Hello],
    sharing: Sequence[int],
    revealed: Mapping[int, Mapping[int, bytes]],
    threshold: int,
    context: bytes,
) -> NDArray[np.uint64]:
    """The sum of what the members of `masked` put in.

    Parameters
    ----------
    masked : (n,) each, of the members whose values arrived. group : all that said hello. sharing : members that shared.
    revealed : answers of step 4, by who gave them.

    Raises
    ------
    SecureSumError if fewer than `threshold` answered, or a mask key that was put together does not fit its public key.
    """
    if len(revealed) < threshold or len(masked) < threshold:
        raise SecureSumError(
            f"{len(masked)} masked values and {len(revealed)} answers: at least {threshold} of each are needed; the round is lost"
        )
    places = {number: place for place, number in enumerate(sorted(group), 1)}
    total: NDArray[np.uint64] = np.stack(list(masked.values())).sum(axis=0, dtype=np.uint64)
    for member in sharing:
        shares = [(places[by], answer[member]) for by, answer in revealed.items() if member in answer][:threshold]
        if len(shares) < threshold:
            raise SecureSumError(f"only {len(shares)} shares of member {member} came back, {threshold} are needed")
        secret = _combine(shares)
        if member in masked:
            total -= mask_stream(secret, len(total))
            continue
        if _public(secret) != group[member].masks:
            raise SecureSumError(f"the shares of member {member} do not give its key: somebody sent wrong ones")
        for other in masked:
            # What `other` added for this pair is taken off.
            _add_pair(total, pair_seed(secret, group[other].masks, context), other > member)
    return total


def mask_stream(seed: bytes, length: int) -> NDArray[np.uint64]:
    """(length,) uniform uint64 from a 32-byte seed: the ChaCha20 key stream."""
    encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), "<u8").astype(np.uint64, copy=False)


def pair_seed(mask_key: bytes, other_public: bytes, context: bytes) -> bytes:
    """The mask seed of two members: the same from either side."""
    return _agree(mask_key, other_public, context + b"|mask")


def _add_pair(values: NDArray[np.uint64], seed: bytes, added: bool) -> None:
    stream = mask_stream(seed, len(values))
    if added:
        values += stream
    else:
        values -= stream


def _agree(private: bytes, public: bytes, label: bytes) -> bytes:
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureSumError("a public key of another member is none (32 bytes, not of low order)") from None
    return HKDF(hashes.SHA256(), _KEY, None, label).derive(secret)


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _half(share: bytes, of_own_mask: bool) -> bytes:
    return share[:_KEY] if of_own_mask else share[_KEY:]


def _split(secret: bytes, threshold: int, members: int) -> list[bytes]:
    """Shamir shares of each 16 bytes of `secret`, put together again: as long as the secret each."""
    shares = [b""] * members
    for start in range(0, len(secret), _CHUNK):
        for place, part in Shamir.split(threshold, members, secret[start : start + _CHUNK], ssss=False):
            shares[place - 1] += part
    return shares


def _combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The secret behind (place from 1, share)s."""
    chunks = range(0, len(shares[0][1]), _CHUNK)
    return b"".join(
        Shamir.combine([(place, share[start : start + _CHUNK]) for place, share in shares], ssss=False)
        for start in chunks
    )
