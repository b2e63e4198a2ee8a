from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import audits
from secede.reports.audit.judged import Judged, judge
from secede.reports.audit.page import Subject, render_audit_page, write_audit_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REMOVED = {"share": 0.25, "zeroed": 3}


def subject(title: str = "Small", **erasure: object) -> Subject:
    done = {"rounds": 2, "rung": "local-step", "unused_weights": REMOVED, **erasure}
    return Subject(
        title=title,
        method="second-choice",
        models=8,
        pool=60,
        dealt=30,
        settings={"data": "mnist-10k"},
        environment={"torch": "2"},
        notes=[{"erasure": done, "seconds": 1.5}] * 8,
    )


@pytest.fixture(scope="module")
def judged() -> Judged:
    return judge("as erased", audits.made_up(shift=1.5), seed=0)


@pytest.fixture(scope="module")
def page(judged: Judged) -> str:
    both = [judged, replace(judged, variant="quantised")]
    return render_audit_page(subject(), both, version="1")


def test_the_page_says_both_lines_and_shows_margins_and_scores(page: str) -> None:
    page = unescape(page)
    assert "Are the leaver's samples forgotten?" in page
    assert "Can one see that a model was erased?" in page
    assert page.count("<svg") >= 4
    for words in ("U-LiRA", "KLoM", "Null: retrained again", "with weights of four bits"):
        assert words in page
    assert "dealt a random 30 of the same 60 samples" in page
    assert "25% of the layers' squared weights were removed" in page


def test_the_page_fetches_nothing(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert "<script" not in page


def test_what_a_config_says_is_escaped(judged: Judged) -> None:
    page = render_audit_page(subject("<script>x</script>"), [judged], version="1")
    assert "<script>" not in page
    assert "What comes back" not in page


def test_kept_weights_are_said_to_be_kept() -> None:
    assert subject(unused_weights=None).erasure.endswith("unused weights were kept")


def test_the_page_is_written_whole(judged: Judged, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.html"
    write_audit_page(subject(), [judged], path)
    assert path.read_text().rstrip().endswith("</html>")


def test_the_page_needs_no_torch() -> None:
    program = "import sys, secede.reports.audit.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_screen(page: str, browser: Browser, width: int) -> None:
    view = browser.new_page(viewport={"width": width, "height": 900})
    view.set_content(page)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    view.close()
