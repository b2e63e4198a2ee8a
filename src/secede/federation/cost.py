"""The cost of rounds and questions. Imports no torch: an erasure's journal holds costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Rounds, bytes sent and received, per-sample gradients and wall-clock seconds."""

    rounds: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0
    gradient_samples: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            rounds=self.rounds + other.rounds,
            upload_bytes=self.upload_bytes + other.upload_bytes,
            download_bytes=self.download_bytes + other.download_bytes,
            gradient_samples=self.gradient_samples + other.gradient_samples,
            seconds=self.seconds + other.seconds,
        )

    def as_dict(self) -> dict[str, int | float]:
        """Return the cost as a dict, for records."""
        return asdict(self)
