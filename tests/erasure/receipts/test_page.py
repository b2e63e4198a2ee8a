from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from harness.erasure import papers
from secede.erasure.documents.canary_reading import CanaryPart
from secede.erasure.documents.receipt import (
    BY_OPERATOR,
    STANDING_LIMITS,
    Attempt,
    Score,
    Verification,
)
from secede.erasure.receipts.page import (
    describe_duration,
    render_page,
    scores_heading,
    write_page,
)
from secede.erasure.receipts.verify import Verified, sign_receipt, verify_receipt
from secede.errors import ConfigError


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def verified(**changes: object) -> Verified:
    return verify_receipt(papers.signed(**changes), papers.publics("server", papers.LEAVER))


def crowded(limits: int = 11) -> Verified:
    """Return a receipt with more of everything than fits on a sheet."""
    reference = papers.VERIFICATION.scores[0].reference
    score = Score(
        about="leaver",
        measure="wide " * 30 + "W" * 100,
        value=0.5,
        low=0.1,
        high=1.0,
        count=10**12,
        reference=reference,
    )
    scores = papers.VERIFICATION.model_copy(update={"scores": (score,) * 64, "useful": "no"})
    attempt = Attempt(rung="server-side", method="m" * 64, outcome="o" * 64)
    parameters = {f"{'p' * 50}{index}": "v" * 300 for index in range(100)}
    method = papers.METHOD.model_copy(
        update={"parameters": parameters, "tried_before": (attempt,) * 16, "name": "n" * 64}
    )
    said = tuple(f"{index} {'limit ' * 49}"[:300] for index in range(limits))
    return verified(
        verification=scores,
        method=method,
        destroyed=tuple(
            papers.DESTROYED[0].model_copy(update={"what": f"{n % 8} {'the state of ' * 20}"})
            for n in range(16)
        ),
        remaining=tuple(
            item.model_copy(update={"what": "the state of " * 20}) for item in papers.REMAINING * 8
        ),
        further_limits=said,
    )


def test_the_page_says_what_was_asked_done_measured_and_not_shown() -> None:
    html = render_page(verified(), "receipt.json")
    assert "Erasure of <b>clinic-north</b>" in html
    assert "consent was withdrawn" in html
    assert "12 days after receipt, 18 days before it was due" in html
    assert "Local step at the client, then training by the others" in html
    assert "0.8 points above; intervals overlap" in html
    assert "38.2\u202f% to 44.3\u202f%" in html
    assert "In backups until 15 December 2026" in html
    for limit in STANDING_LIMITS:
        assert limit.replace("'", "&#39;") in html
    assert "secede verify receipt.json" in html
    assert "countersigned by <b>clinic-north</b>" in html
    for digest in (papers.REQUEST, papers.BEFORE, papers.AFTER):
        assert digest in html


def test_a_receipt_that_nobody_countersigned_says_so() -> None:
    data = sign_receipt(papers.statement(), papers.private("server"))
    found = verify_receipt(data, papers.publics("server"))
    assert "not countersigned" in render_page(found, "receipt.json")


def test_who_asked_is_said_where_one_looks_for_it() -> None:
    own = render_page(verified(), "receipt.json")
    assert "<dt>From</dt><dd>clinic-north</dd>" in own
    other = render_page(verified(further_limits=(BY_OPERATOR,)), "receipt.json")
    assert "<dt>From</dt><dd>the server&#39;s operator, on behalf of clinic-north</dd>" in other


def test_what_was_not_forgotten_or_has_no_reference_is_not_made_to_look_better() -> None:
    alone = papers.VERIFICATION.scores[0].model_copy(update={"reference": None})
    unread = CanaryPart(absent="the client was not there to read them")
    scores = Verification(scores=(alone,), canaries=unread, forgotten="undetermined", useful="no")
    html = render_page(verified(verification=scores), "receipt.json")
    assert "Undetermined: the client was not there to read them." in html
    assert "less useful than the stated margin allows" in html
    assert "nothing to compare with" in html
    assert 'class="verdict undetermined"' in html


def test_the_page_claims_no_proof_and_names_no_source_outside_of_itself() -> None:
    html = render_page(verified(), "receipt.json")
    assert re.findall(r"\bproo\w+|\bprove\w*|\bguarantee\w*", html) == ["proof", "guarantee"]
    tags = Tags(html).found
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href") in (None, "data:,")
        assert "src" not in attributes


def test_names_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    score = papers.VERIFICATION.scores[0].model_copy(update={"measure": hostile})
    scores = papers.VERIFICATION.model_copy(update={"scores": (score,)})
    html = render_page(verified(verification=scores), "<b>.json")
    assert "<script" not in html
    assert "&lt;b&gt;.json" in html


def test_what_does_not_fit_is_counted() -> None:
    html = render_page(crowded(), "receipt.json")
    assert "62 more scores in the signed file" in html
    assert "98 more in the signed file" in html


def test_the_limits_of_this_erasure_come_first_and_whole() -> None:
    own = ("What the client returned is what serves. " + "x" * 250, "It was not there to measure.")
    html = render_page(verified(further_limits=own), "receipt.json")
    listed = html.split("What this does not show")[1].split("</section>")[0]
    places = [listed.index(limit.replace("'", "&#39;")) for limit in (*own, *STANDING_LIMITS)]
    assert places == sorted(places)
    assert "in the signed file" not in listed


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (("retrained", "before"), "How close to retraining"),
        (("before", "chance"), "Compared with the model from before the erasure"),
        (("chance",), "Compared with guessing"),
        ((None,), "Measured, with nothing to compare with"),
    ],
)
def test_the_heading_names_what_is_compared_with(models: tuple[Any, ...], said: str) -> None:
    score = papers.VERIFICATION.scores[0]
    assert score.reference is not None
    scores = [
        score.model_copy(
            update={"reference": model and score.reference.model_copy(update={"model": model})}
        )
        for model in models
    ]
    assert scores_heading(scores) == said


def test_what_was_destroyed_is_told_by_kind_the_old_model_first() -> None:
    old, returned = papers.DESTROYED
    earlier = old.model_copy(update={"at": "2026-11-14T12:08:00Z"})
    html = render_page(verified(destroyed=(old, earlier, returned)), "receipt.json")
    first, second = re.findall(r"<li>Destroyed (.*?)</li>", html)
    assert first == f"15 November 2026: {old.what} (2)"
    assert second == f"15 November 2026: {returned.what}"


def test_the_page_lies_beside_the_receipt(tmp_path: Path) -> None:
    page = write_page(verified(), tmp_path / "clinic-north.json")
    assert page == tmp_path / "clinic-north.html"
    assert "clinic-north.json" in page.read_text()
    with pytest.raises(ConfigError, match="would replace it"):
        write_page(verified(), page)


@pytest.mark.parametrize(
    ("completed", "said"),
    [
        ("2026-11-03T10:00:00Z", "on the day of receipt, 30 days before it was due"),
        ("2026-11-03T23:59:59Z", "on the day of receipt, 30 days before it was due"),
        ("2026-11-04T10:00:00Z", "1 day after receipt, 29 days before it was due"),
        ("2026-12-03T10:00:01Z", "30 days after receipt, after the due date"),
    ],
)
def test_the_law_s_clock_is_told(completed: str, said: str) -> None:
    request = papers.statement().predicate.request.model_copy(update={"completed": completed})
    assert describe_duration(request) == said


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 900, "height": 1000})
    yield context.new_page()
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("content", ["plain", "crowded", "nearly"])
def test_it_prints_on_one_sheet_of_a4(page: Page, tmp_path: Path, content: str) -> None:
    found = verified() if content == "plain" else crowded(11 if content == "crowded" else 2)
    file = write_page(found, tmp_path / "receipt.json")
    page.goto(file.as_uri())
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) == 1
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 695, "height": 1000})  # A4 less the margins, in CSS pixels
    assert page.evaluate("document.documentElement.scrollWidth") == 695


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 900])
@pytest.mark.parametrize("content", ["plain", "crowded"])
def test_it_never_scrolls_sideways(page: Page, tmp_path: Path, width: int, content: str) -> None:
    found = crowded() if content == "crowded" else verified()
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(write_page(found, tmp_path / "receipt.json").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
def test_it_is_dark_where_the_reader_wants_it_and_light_on_paper(
    page: Page, tmp_path: Path
) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.emulate_media(color_scheme="dark")
    page.goto(write_page(verified(), tmp_path / "receipt.json").as_uri())
    assert page.evaluate(colour) == "rgb(15, 20, 25)"
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert said == []
