"""Coins and random numbers from a secret: the same in every round, run and process.

Each has its name, and never depends on what else was drawn. Coins are exactly uniform.
"""

from __future__ import annotations

import hmac

import numpy as np

from secede.errors import ConfigError

SECRET_BYTES = 32
_DOMAIN = b"canaries"
_WORD = 1 << 64


def canary_secret(salt: bytes) -> bytes:
    """Return the secret of the canaries; who gets it learns nothing of the client's salt."""
    if len(salt) != SECRET_BYTES:
        raise ConfigError(f"the salt has {len(salt)} bytes, expected {SECRET_BYTES} random ones")
    return hmac.digest(salt, _DOMAIN, "sha256")


def coin(secret: bytes, sides: int, *name: str | int) -> int:
    """Return the coin of a name: a whole number from 0 to `sides` - 1, all equally likely."""
    if not 1 <= sides < _WORD:
        raise ConfigError(f"a coin of {sides} sides, expected at least one")
    key = _derive(secret, "coin", *name)
    limit = _WORD - _WORD % sides  # words from here on would favour the first sides
    counter = 0
    while True:
        block = hmac.digest(key, counter.to_bytes(8), "sha256")
        for start in range(0, len(block), 8):
            word = int.from_bytes(block[start : start + 8])
            if word < limit:
                return word % sides
        counter += 1


def generator(secret: bytes, *name: str | int) -> np.random.Generator:
    """Return a fresh generator for a name, seeded with all 256 bits."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_derive(secret, "numbers", *name))))


def shuffled(secret: bytes, count: int, *name: str | int) -> list[int]:
    """Return the whole numbers below `count` in the random order of a name."""
    order = np.argsort(generator(secret, *name).random(count), kind="stable")
    return [int(place) for place in order]


def _derive(secret: bytes, *name: str | int) -> bytes:
    return hmac.digest(secret, "/".join(map(str, name)).encode(), "sha256")
