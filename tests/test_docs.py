from __future__ import annotations

import re
from pathlib import Path

import pytest

from secede.experiments.config import Config, parse

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_shown_are_valid(page: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S):
        config = parse(block, name="shown")
        assert len(block.strip().splitlines()) == 5
        assert config.clients.count == 4


def test_every_key_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    keys: set[str] = set()
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys |= {f"{name}.{key}" for key in inner} if inner else {name}
    documented: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", text, re.M):
        for key in re.findall(r"`([a-z_.]+)`", row):
            section = re.search(r"`([a-z_]+)\.", row)
            documented.add(f"{section[1]}{key}" if key.startswith(".") and section else key)
    assert keys - documented == {"clients.sizes", "clients.alpha"}  # named in the partition's row
    assert documented <= keys
    assert "clients.sizes" in text
    assert "clients.alpha" in text


def test_the_makefile_has_readmes_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{command}:", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_librarys_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "library.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(program, "library.md", "exec"), {"__name__": "library"})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] in ("stop-distance", "epochs")
    assert int(second.split()[1]) == 2 * 4 * (64 * 32 + 32 + 32 * 3 + 3)
