"""The package with NVFlare, and without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["nvflare"] = None
import importlib.util as util
found = util.find_spec
util.find_spec = lambda name, *rest: None if name == "nvflare" else found(name, *rest)
import secede.nvflare
"""


def test_all_that_is_exported_is_there() -> None:
    from secede import nvflare

    for name in nvflare.__all__:
        assert getattr(nvflare, name).__name__ == name
    assert dir(nvflare) == nvflare.__all__
    with pytest.raises(AttributeError, match="nothing"):
        _ = nvflare.nothing  # type: ignore[attr-defined]


def test_without_nvflare_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    said = "pip install '.[nvflare]' in a checkout, or 'secede[nvflare]' from a release"
    assert said in done.stderr.splitlines()[-1]
