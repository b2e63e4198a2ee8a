"""A salted commitment to a data set, which shows later that it is the one that was erased.

It is the root of a Merkle tree over keyed hashes of the samples, in their order. The leaver keeps
the salt: without it the root says nothing, not even to somebody who guesses a sample. With it the
leaver shows the whole set by computing the root again, or one sample by a `Proof` that reveals no
other: each leaf has its own key, drawn from the salt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from secede.erasure.canonical_json import parse_document, to_canonical
from secede.erasure.types import MAX_SAFE_INTEGER, Count, Digest, Document, Name
from secede.errors import ConfigError, TrustError

SCHEME: Literal["sha256-merkle-v1"] = "sha256-merkle-v1"
SALT_BYTES = 32
MAX_PROOF_BYTES = 16_384  # of a proof's file; the longest takes about 4,500
MAX_SAMPLE_BYTES = 256 << 20
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02" + SCHEME.encode()


class Commitment(Document):
    """The root of the tree, and the number of samples; the receipt holds both."""

    scheme: Literal["sha256-merkle-v1"] = SCHEME
    root: Digest
    samples: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]


class Proof(Document):
    """A proof that one sample was in the set: its index, its key, and the path to the root."""

    index: Count
    key: Digest
    path: Annotated[tuple[Digest, ...], Field(max_length=64)]


class SampleProof(Document):
    """The file of a proof, with the client whose sample it is."""

    version: Literal[1] = 1
    client: Name
    proof: Proof

    def content(self) -> bytes:
        """Return the file's bytes, in canonical form."""
        return to_canonical(self.model_dump(mode="json"))

    @classmethod
    def read(cls, data: bytes) -> SampleProof:
        """Return the proof in a file; TrustError if it is none, or not canonical."""
        proof = parse_document(cls, data, MAX_PROOF_BYTES, "a proof of a sample")
        if proof.content() != data:
            raise TrustError("the proof is not canonical JSON as it was written")
        return proof


def new_salt() -> bytes:
    """Return a fresh salt; without it the commitment can never be shown again."""
    return secrets.token_bytes(SALT_BYTES)


def commit_to_samples(samples: Iterable[bytes], salt: bytes) -> Commitment:
    """Return the commitment to `samples` in this order; they are read once and not kept."""
    _check_salt(salt)
    count = 0
    peaks: list[tuple[int, bytes]] = []  # height and top of full subtrees, from left to right
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
    """Raise TrustError unless `commitment` is to these samples in this order, with this salt."""
    computed = commit_to_samples(samples, salt)
    if computed.samples != commitment.samples:
        raise TrustError(
            f"the data set has {computed.samples} samples, the commitment {commitment.samples}; "
            "give exactly the samples that were committed to"
        )
    if not hmac.compare_digest(computed.root, commitment.root):
        raise TrustError(
            "the data set is not the one committed to: its root differs; check the samples' "
            "bytes, their order and the salt"
        )


def prove_sample(samples: Iterable[bytes], salt: bytes, index: int) -> Proof:
    """Return the proof for sample `index`, counted from 0."""
    _check_salt(salt)
    leaves = [_leaf(_key(salt, number), sample) for number, sample in enumerate(samples)]
    if not 0 <= index < len(leaves):
        last = len(leaves) - 1
        raise ConfigError(f"sample {index} does not exist: expected one from 0 to {last}")
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
    """Raise TrustError unless `proof` shows that `sample` is in the set committed to."""
    sides: list[bool] = []  # from the root down: whether the sample lies on the left
    index, count = proof.index, commitment.samples
    while index < count and count > 1:
        middle = _split(count)
        sides.append(index < middle)
        index, count = (index, middle) if index < middle else (index - middle, count - middle)
    if index >= count or len(sides) != len(proof.path):
        raise TrustError("the proof does not fit the commitment: wrong index or path length")
    node = _leaf(bytes.fromhex(proof.key), sample)
    for left, sibling in zip(reversed(sides), map(bytes.fromhex, proof.path), strict=True):
        node = _node(node, sibling) if left else _node(sibling, node)
    if not hmac.compare_digest(_root(node, commitment.samples), commitment.root):
        raise TrustError("the sample is not shown to be in the set: its path leads to another root")


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
        raise ConfigError(f"the salt has {len(salt)} bytes, expected {SALT_BYTES} random ones")
