from __future__ import annotations

import subprocess
import sys

import pytest

import secede


def test_all_is_what_is_exported() -> None:
    for name in secede.__all__:
        assert getattr(secede, name) is not None
    assert set(dir(secede)) == set(secede.__all__)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = secede.nothing_of_the_kind


@pytest.mark.parametrize(
    "module", ["secede", "secede.cli.app", "secede.experiments.presets", "secede.reports.build"]
)
def test_torch_stays_out_until_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_siblings_never_import_each_other() -> None:
    siblings = ("scenarios", "unlearning", "verification")
    program = (
        "import sys, pkgutil, importlib\n"
        "import secede.{0} as package\n"
        "for m in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'secede.{0}.{{m.name}}')\n"
        "others = [n for n in {1!r} if f'secede.{{n}}' in sys.modules]\n"
        "sys.exit(', '.join(others) or 0)\n"
    )
    for sibling in siblings:
        others = [name for name in siblings if name != sibling]
        code = program.format(sibling, others)
        ended = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{sibling} imports {ended.stderr}"
