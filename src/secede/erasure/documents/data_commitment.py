"""A salted commitment to a data set: shows later that it is the one that was erased.

The root of a Merkle tree over keyed hashes of the samples, in the order given. The leaver keeps
the salt: without it the root tells nothing, not even to somebody who guesses a sample. With it
the leaver shows the whole set by computing the root again, or one sample by a `Proof` that
reveals no other: each leaf has a key of its own, drawn from the salt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from secede.erasure.canonical_json import parse, to_canonical
from secede.erasure.types import MAX_SAFE_INTEGER, Count, Digest, Document, Name, describe_errors
from secede.errors import ConfigError, TrustError

SCHEME: Literal["sha256-merkle-v1"] = "sha256-merkle-v1"
SALT_BYTES = 32
MAX_PROOF_BYTES = 16_384  # bytes of a proof's file; the longest takes about 4,500
MAX_SAMPLE_BYTES = 256 << 20  # bytes of one sample
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02" + SCHEME.encode()


class Commitment(Document):
    """What the receipt holds: the root and how many samples stand behind it."""

    scheme: Literal["sha256-merkle-v1"] = SCHEME
    root: Digest
    samples: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]


class Proof(Document):
    """What shows that one sample was in the set: its place, its key, and the way to the root."""

    index: Count
    key: Digest
    path: Annotated[tuple[Digest, ...], Field(max_length=64)]


class SampleProof(Document):
    """A proof in a file: whose sample it is about goes with it."""

    version: Literal[1] = 1
    client: Name
    proof: Proof

    def content(self) -> bytes:
        """Return the file's bytes; there is one way to write it."""
        return to_canonical(self.model_dump(mode="json"))

    @classmethod
    def read(cls, data: bytes) -> SampleProof:
        """Return what a file says; TrustError if it is no proof, or not written in the one way."""
        try:
            found = cls.model_validate_json(to_canonical(parse(data, MAX_PROOF_BYTES)))
        except ValidationError as error:
            raise TrustError(f"not a proof of a sample: {describe_errors(error)}") from None
        if found.content() != data:
            raise TrustError("the proof is not written in its one canonical form")
        return found


def new_salt() -> bytes:
    """Return a fresh salt; whoever loses it can never show again what was committed to."""
    return secrets.token_bytes(SALT_BYTES)


def commit(samples: Iterable[bytes], salt: bytes) -> Commitment:
    """Return the commitment to `samples` in this order; they are read once and not kept."""
    _check_salt(salt)
    count = 0
    peaks: list[tuple[int, bytes]] = []  # whole subtrees from left to right, with their heights
    for count, sample in enumerate(samples, start=1):
        node, height = _leaf(_key(salt, count - 1), sample), 0
        while peaks and peaks[-1][0] == height:
            node, height = _node(peaks.pop()[1], node), height + 1
        peaks.append((height, node))
    if not count:
        raise ConfigError("no samples to commit to, expected at least one")
    top = peaks.pop()[1]
    while peaks:
        top = _node(peaks.pop()[1], top)
    return Commitment(root=_root(top, count), samples=count)


def check_commitment(commitment: Commitment, samples: Iterable[bytes], salt: bytes) -> None:
    """Raise unless `commitment` was made from these samples in this order with this salt."""
    found = commit(samples, salt)
    if found.samples != commitment.samples:
        raise TrustError(
            f"the data set has {found.samples} samples, the commitment {commitment.samples}; "
            "give exactly the samples that were committed to"
        )
    if not hmac.compare_digest(found.root, commitment.root):
        raise TrustError(
            "the data set is not the one committed to: its root differs; check the samples' "
            "bytes, their order and the salt"
        )


def prove_sample(samples: Iterable[bytes], salt: bytes, index: int) -> Proof:
    """Return what shows sample number `index`, from 0, to somebody who has the commitment."""
    _check_salt(salt)
    leaves = [_leaf(_key(salt, place), sample) for place, sample in enumerate(samples)]
    if not 0 <= index < len(leaves):
        raise ConfigError(f"sample {index} of {len(leaves)}, expected one from 0 on below that")
    path: list[str] = []
    first, last = 0, len(leaves)
    while last - first > 1:
        middle = first + _split(last - first)
        if index < middle:
            path.append(_top(leaves[middle:last]).hex())
            last = middle
        else:
            path.append(_top(leaves[first:middle]).hex())
            first = middle
    return Proof(index=index, key=_key(salt, index).hex(), path=tuple(reversed(path)))


def check_sample(commitment: Commitment, sample: bytes, proof: Proof) -> None:
    """Raise unless `proof` shows that `sample` was among the samples committed to."""
    sides: list[bool] = []  # from the root down: whether the sample lies on the left
    index, count = proof.index, commitment.samples
    while index < count and count > 1:
        middle = _split(count)
        sides.append(index < middle)
        index, count = (index, middle) if index < middle else (index - middle, count - middle)
    if index >= count or len(sides) != len(proof.path):
        raise TrustError("the proof does not fit the commitment: another place or another size")
    node = _leaf(bytes.fromhex(proof.key), sample)
    for left, sibling in zip(reversed(sides), map(bytes.fromhex, proof.path), strict=True):
        node = _node(node, sibling) if left else _node(sibling, node)
    if not hmac.compare_digest(_root(node, commitment.samples), commitment.root):
        raise TrustError("the sample is not shown to be in the set: the way to the root differs")


def _key(salt: bytes, index: int) -> bytes:
    return hmac.digest(salt, _LEAF + index.to_bytes(8), "sha256")


def _leaf(key: bytes, sample: bytes) -> bytes:
    return hmac.digest(key, _LEAF + sample, "sha256")


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _root(top: bytes, count: int) -> str:
    return hashlib.sha256(_ROOT + count.to_bytes(8) + top).hexdigest()


def _top(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    middle = _split(len(leaves))
    return _node(_top(leaves[:middle]), _top(leaves[middle:]))


def _split(count: int) -> int:
    """Return the largest power of two below `count`: the left part of a tree, as in RFC 6962."""
    return 1 << (count - 1).bit_length() - 1


def _check_salt(salt: bytes) -> None:
    if len(salt) != SALT_BYTES:
        raise ConfigError(f"a salt of {len(salt)} bytes, expected {SALT_BYTES} random ones")
