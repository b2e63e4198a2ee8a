"""A simulated client's commitment to its samples: checked, and shown for one of them.

Samples come from the federation's recipe; the salt lies at the client's site.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from secede.data import Samples
from secede.erasure import Commitment, Home, Proof
from secede.erasure import check_commitment as check_samples
from secede.erasure import prove_sample as prove_row
from secede.errors import ConfigError


def check_commitment(home: Home, name: str, samples: Samples, pinned: Commitment) -> None:
    """Raise unless `pinned` was made from the client's samples with the salt at its site."""
    check_samples(pinned, sample_rows(samples), _salt(home, name))


def prove_sample(home: Home, name: str, samples: Samples, index: int) -> tuple[bytes, Proof]:
    """Return the bytes of the client's sample number `index`, and what shows it to others."""
    proof = prove_row(sample_rows(samples), _salt(home, name), index)
    return next(itertools.islice(sample_rows(samples), index, None)), proof


def sample_rows(samples: Samples) -> Iterator[bytes]:
    """Yield each sample's bytes, as they are committed to."""
    inputs, labels = samples.x.cpu().contiguous().numpy(), samples.y.cpu().numpy()
    return (x.tobytes() + y.tobytes() for x, y in zip(inputs, labels, strict=True))


def _salt(home: Home, name: str) -> bytes:
    path = home.path / "sites" / f"{name}.salt"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the salt {path}: {error.strerror}") from error
