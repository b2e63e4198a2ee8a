"""Trains the small federation in a process of its own, which can be killed: FOLDER ROUNDS."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.flower.small import Federation

if __name__ == "__main__":
    found = Federation(Path(sys.argv[1]))
    print("begin", flush=True)
    found.train(int(sys.argv[2]))
