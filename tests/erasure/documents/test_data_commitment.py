from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secede.erasure.documents.data_commitment import (
    Commitment,
    Proof,
    check_commitment,
    check_sample,
    commit_to_samples,
    new_salt,
    prove_sample,
)
from secede.errors import ConfigError, TrustError

SALT = bytes(range(32))
SETS = st.lists(st.binary(max_size=8), min_size=1, max_size=20)


def leaf(index: int, sample: bytes) -> bytes:
    key = hmac.digest(SALT, b"\0" + index.to_bytes(8, "big"), "sha256")
    return hmac.digest(key, b"\0" + sample, "sha256")


def test_three_samples_match_the_tree_by_hand() -> None:
    # (0 1) 2: the left part is the largest power of two below three.
    left = hashlib.sha256(b"\1" + leaf(0, b"a") + leaf(1, b"b")).digest()
    top = hashlib.sha256(b"\1" + left + leaf(2, b"c")).digest()
    root = hashlib.sha256(b"\2sha256-merkle-v1" + (3).to_bytes(8, "big") + top).hexdigest()
    assert commit_to_samples(iter([b"a", b"b", b"c"]), SALT) == Commitment(root=root, samples=3)


@given(SETS)
def test_the_same_set_opens_it(samples: list[bytes]) -> None:
    check_commitment(commit_to_samples(samples, SALT), iter(samples), SALT)


@given(SETS, st.data())
def test_another_set_order_or_salt_does_not(samples: list[bytes], data: st.DataObject) -> None:
    found = commit_to_samples(samples, SALT)
    other = data.draw(SETS.filter(lambda other: other != samples))
    with pytest.raises(TrustError):
        check_commitment(found, other, SALT)
    with pytest.raises(TrustError, match="not the one committed to"):
        check_commitment(found, samples, new_salt())


@given(SETS)
def test_moving_bytes_between_samples_is_another_set(samples: list[bytes]) -> None:
    joined = [b"".join(samples)]
    if joined != samples:
        assert commit_to_samples(joined, SALT).root != commit_to_samples(samples, SALT).root
    assert commit_to_samples([*samples, b""], SALT).root != commit_to_samples(samples, SALT).root


def test_equal_samples_have_different_leaves_so_that_none_can_be_guessed() -> None:
    proofs = [prove_sample([b"same", b"same"], SALT, index) for index in (0, 1)]
    assert proofs[0].key != proofs[1].key
    assert proofs[0].path != proofs[1].path


@settings(max_examples=60)
@given(SETS, st.data())
def test_a_proof_shows_its_own_sample_and_no_other(
    samples: list[bytes], data: st.DataObject
) -> None:
    found = commit_to_samples(samples, SALT)
    index = data.draw(st.integers(0, len(samples) - 1))
    proof = prove_sample(samples, SALT, index)
    check_sample(found, samples[index], proof)
    with pytest.raises(TrustError):
        check_sample(found, samples[index] + b"x", proof)
    elsewhere = data.draw(st.integers(0, 40).filter(lambda other: other != index))
    with pytest.raises(TrustError):
        check_sample(found, samples[index], proof.model_copy(update={"index": elsewhere}))
    with pytest.raises(TrustError):
        check_sample(
            found, samples[index], proof.model_copy(update={"path": (*proof.path, "0" * 64)})
        )


def test_a_huge_claimed_count_costs_no_time() -> None:
    proof = Proof(index=2**52, key="0" * 64, path=("1" * 64,) * 53)
    with pytest.raises(TrustError):
        check_sample(Commitment(root="2" * 64, samples=2**53 - 1), b"", proof)


def test_no_samples_a_short_salt_and_a_place_outside_are_refused() -> None:
    with pytest.raises(ConfigError, match="no samples"):
        commit_to_samples([], SALT)
    with pytest.raises(ConfigError, match="4 bytes, expected 32"):
        commit_to_samples([b"a"], b"salt")
    with pytest.raises(ConfigError, match="sample 1 does not exist"):
        prove_sample([b"a"], SALT, 1)


def test_salts_differ() -> None:
    assert len({new_salt() for _ in range(8)}) == 8
