"""The public names of secede, and which of its packages import what."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations

import networkx
import pytest

import secede
from benchmarks import structure


def test_all_is_what_is_exported() -> None:
    for name in secede.__all__:
        assert getattr(secede, name) is not None
    assert set(dir(secede)) == set(secede.__all__)
    unknown = "nothing_of_the_kind"
    with pytest.raises(AttributeError, match=unknown):
        getattr(secede, unknown)


@pytest.mark.parametrize(
    "module",
    [
        "secede",
        "secede.audit.verdict, secede.audit.power",
        "secede.audit.ensembles.verdict, secede.audit.ensembles.scores",
        "secede.cli.app",
        "secede.experiments.presets",
        "secede.reports.build",
    ],
)
def test_torch_stays_out_until_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_siblings_never_import_each_other() -> None:
    siblings = ("scenarios", "unlearning", "verification")
    graph = structure.resolved_imports()
    for one, other in permutations(siblings, 2):
        targets = {module for module in graph if module.startswith(f"secede.{other}")}
        for module in [module for module in graph if module.startswith(f"secede.{one}")]:
            assert not networkx.descendants(graph, module) & targets
