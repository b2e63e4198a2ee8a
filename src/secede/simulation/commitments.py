"""A simulated client's commitments to its samples and canaries: checked, and shown.

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


def read_salts(home: Home, clients: int) -> dict[int, bytes]:
    """Return the salts at the sites, by the number of the client."""
    names = {number: site_name(number) for number in range(clients)}
    salt_files = {n: home.path / "sites" / f"{name}.salt" for n, name in names.items()}
    return {n: path.read_bytes() for n, path in salt_files.items() if path.exists()}


def site_name(number: int) -> str:
    """Return the name of a simulated client."""
    return f"site-{number}"


def _salt(home: Home, name: str) -> bytes:
    path = home.path / "sites" / f"{name}.salt"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the salt {path}: {error.strerror}") from error
