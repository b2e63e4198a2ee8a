from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from harness.erasure import page_cases, papers
from secede.erasure.documents.canary_reading import CanaryPart
from secede.erasure.documents.receipt import BY_OPERATOR, STANDING_LIMITS, Verification
from secede.erasure.receipts.page import (
    MEANINGS,
    comparison,
    destroyed_by_day,
    meaning,
    render_page,
    scores_heading,
    write_page,
)
from secede.erasure.receipts.verify import Verified, sign_receipt, verify_receipt
from secede.erasure.workflow import measurement
from secede.errors import ConfigError
from secede.scenarios import SCENARIOS


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def verified(**changes: object) -> Verified:
    return verify_receipt(papers.signed(**changes), papers.publics("server", papers.LEAVER))


def test_the_page_says_what_was_asked_done_measured_and_not_shown() -> None:
    html = render_page(verified(), "receipt.json")
    assert "Erasure of <b>clinic-north</b>" in html
    assert "consent was withdrawn" in html
    assert "12 days after receipt, 18 days before it was due" in html
    assert "The client took a step on its own data and returned one model" in html
    assert "0.8 points higher; intervals overlap" in html
    assert "38.2\u202f% to 44.3\u202f%" in html
    assert "In backups until 15\u00a0December\u00a02026: the model from before" in html
    for limit in STANDING_LIMITS:
        assert limit.replace("'", "&#39;") in html
    assert "secede-verify receipt.json" in html
    assert "countersigned by <b>clinic-north</b>" in html
    root = papers.CANARIES_PLANTED.commitment.root
    digests = (papers.REQUEST, papers.BEFORE, papers.AFTER, papers.PLAN, root)
    for digest in (*digests, *papers.KEYS.values()):
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
    assert "Forgetting: undetermined" in html
    assert "The client was not there to read them." in html
    assert "Less useful than allowed" in html
    assert "nothing to compare with" in html
    assert 'class="answer open"' in html
    assert 'class="answer no"' in html


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


def test_controller_and_contact_are_named_where_the_federation_names_them() -> None:
    html = render_page(page_cases.no_trace(), "receipt.json")
    assert "Controller: <b>Heart Study Consortium, c/o University Hospital North</b>" in html
    assert "Contact: <b>data-protection@heart-study.example</b>" in html
    assert "Controller" not in render_page(verified(), "receipt.json")


def test_nothing_is_cut_however_much_there_is() -> None:
    found = page_cases.crowded()
    receipt, html = found.statement.predicate, render_page(found, "receipt.json")
    assert "in the signed file" not in html
    assert "…" not in re.sub(r"[0-9a-f]{12}…|>…<", "", html)
    assert html.count(receipt.verification.scores[0].measure[1:]) == 64
    for name, value in receipt.method.parameters.items():
        assert f"{name} {value}" in html
    for limit in (*receipt.own_limits, *(item.what for item in receipt.destroyed)):
        assert limit in html
    assert html.count(receipt.remaining[0].what) >= 8


def test_every_reading_stands_there_with_its_numbers_and_who_signed_it() -> None:
    html = render_page(page_cases.no_trace_at_last(), "receipt.json")
    table = html.split('class="canaries"')[1].split("</table>")[0]
    rows = [re.sub(r"<.*?>|\s+", " ", row) for row in table.split("<tr>")[2:]]
    assert [" ".join(row.split()) for row in rows] == [
        "Before the erasure abababababab… 1.84 chance 5.50 4.8e\u201116 29 of 32 90.6 % – "
        "clinic-north",
        "Second-choice, after round 1 1a1a1a1a1a1a… 3.53 chance 5.50 4.3e\u201105 24 of 32 75.0 % "
        "at most 90.8 % clinic-north",
        "Second-choice, after round 5 2a2a2a2a2a2a… 3.84 chance 5.50 0.00053 22 of 32 68.8 % "
        "at most 86.6 % clinic-north",
        "Weight-negation, after round 2 cdcdcdcdcdcd… , decides 5.50 chance 5.50 0.51 15 of 32 "
        "46.9 % at most 69.2 % clinic-north",
    ]


def test_an_unsigned_reading_and_a_key_that_is_missing_are_told_apart() -> None:
    data = sign_receipt(papers.statement(), papers.private("server"))
    html = render_page(verify_receipt(data, papers.publics("server")), "receipt.json")
    assert html.count("a key that was not at hand") == 2
    canaries = papers.CANARIES
    assert canaries.before is not None
    before = canaries.before.model_copy(update={"envelope": None})
    part = canaries.model_copy(update={"before": before})
    scores = papers.VERIFICATION.model_copy(update={"canaries": part})
    html = render_page(verified(verification=scores), "receipt.json")
    assert html.count(">nobody</td>") == 1


def test_the_limits_of_this_erasure_come_first_and_whole() -> None:
    own = ("What the client returned is what serves. " + "x" * 250, "It was not there to measure.")
    html = render_page(verified(further_limits=own), "receipt.json")
    listed = html.split("What this does not show")[1].split("</section>")[0]
    places = [listed.index(limit.replace("'", "&#39;")) for limit in (*own, *STANDING_LIMITS)]
    assert places == sorted(places)


def test_what_stays_somewhere_stands_under_what_remains() -> None:
    html = render_page(page_cases.no_trace(), "receipt.json")
    remains = html.split("<h2>What remains</h2>")[1].split("</section>")[0]
    limits = html.split("<h2>What this does not show</h2>")[1].split("</section>")[0]
    for said in ("64 sums of their values stay", "keep their last updates"):
        assert said in remains
        assert said not in limits


def test_a_difference_agrees_with_the_numbers_beside_it() -> None:
    score = papers.VERIFICATION.scores[0]
    for value, before, said in (
        (0.9628, 0.9652, "0.2 points lower"),  # 96.3 beside 96.5, not 0.24
        (0.97249, 0.96451, "0.7 points higher"),  # 97.2 beside 96.5, not 0.8
        (0.96451, 0.96549, "the same"),  # 96.5 twice
    ):
        given = {"low": 0.9, "high": 1.0}
        assert score.reference is not None
        reference = score.reference.model_copy(update={"value": before, **given})
        found = score.model_copy(update={"value": value, "reference": reference, **given})
        assert comparison(found) == f"{said}; intervals overlap"


def test_every_measure_has_its_plain_meaning() -> None:
    score = papers.VERIFICATION.scores[0]
    names = {name for scenario in SCENARIOS.values() for name in scenario.measures}
    measures = [f"{name.replace('_', ' ')} on held-out samples" for name in names]
    measures += [measurement.AT_OTHERS, measurement.AT_LEAVER, "right answers on held-out samples"]
    for measure in measures:
        assert meaning(score.model_copy(update={"measure": measure})) in MEANINGS.values(), measure
    assert "that is what retraining does, too" in meaning(
        score.model_copy(update={"measure": measurement.AT_LEAVER})
    )
    assert meaning(score.model_copy(update={"measure": "?"})).startswith("About the client")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (("retrained", "before"), "Measured beside retraining"),
        (("before", "chance"), "Measured beside the model from before the erasure"),
        (("chance",), "Measured beside guessing"),
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


def test_what_was_destroyed_is_told_by_day_and_kind_the_old_model_first() -> None:
    old, returned = papers.DESTROYED
    earlier = old.model_copy(update={"at": "2026-11-14T12:08:00Z"})
    later = returned.model_copy(update={"at": "2026-11-16T12:08:00Z"})
    assert destroyed_by_day((old, earlier, later)) == {
        "15\u00a0November\u00a02026": [f"{old.what} (2)"],
        "16\u00a0November\u00a02026": [returned.what],
    }


def test_the_page_lies_beside_the_receipt(tmp_path: Path) -> None:
    page = write_page(verified(), tmp_path / "clinic-north.json")
    assert page == tmp_path / "clinic-north.html"
    assert "clinic-north.json" in page.read_text()
    with pytest.raises(ConfigError, match="would replace it"):
        write_page(verified(), page)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 900, "height": 1000})
    yield context.new_page()
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", page_cases.CASES)
def test_it_prints_on_two_sheets_of_a4(page: Page, tmp_path: Path, name: str) -> None:
    file = write_page(page_cases.CASES[name](), tmp_path / "receipt.json")
    page.goto(file.as_uri())
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    sheets = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))
    assert sheets == 2 or (name == "crowded" and sheets > 2)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 less the margins, in CSS pixels
    assert page.evaluate("document.documentElement.scrollWidth") == 688


@pytest.mark.browser
@pytest.mark.parametrize("media", ["screen", "print"])
def test_no_text_is_small(page: Page, tmp_path: Path, media: Literal["screen", "print"]) -> None:
    page.emulate_media(media=media)
    page.goto(write_page(page_cases.no_trace(), tmp_path / "receipt.json").as_uri())
    sizes = "[...document.querySelectorAll('main *')].filter(e => e.innerText)"
    sizes += ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(page.evaluate(sizes)) * 0.75 >= (7 if media == "print" else 9)  # points


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 900])
@pytest.mark.parametrize("name", page_cases.CASES)
def test_nothing_is_cut_at_any_width(page: Page, tmp_path: Path, width: int, name: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(write_page(page_cases.CASES[name](), tmp_path / "receipt.json").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert page.evaluate(f"{cut}.length") == 0


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
