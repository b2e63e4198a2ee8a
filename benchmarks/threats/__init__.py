"""Attacks on an erasure, measured: the programs that print the tables of docs/threats.md."""

import sys
from pathlib import Path

# Some measure the federations of the tests: their helpers are found without any PYTHONPATH.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
