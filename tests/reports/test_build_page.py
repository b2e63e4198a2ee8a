import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from secede.reports.build import Report, make_sections, render_page
from secede.reports.records.load import load_runs

Write = Callable[..., Path]


class Outline(HTMLParser):
    """Start tags with their attributes, ids, and every address the page could fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def text_only(records_at: Path) -> str:
    records = load_runs([records_at])
    return render_page(records, make_sections(records.runs), (), version="0.1.0")


@pytest.fixture(scope="session")
def html(report: Report) -> str:
    return report.page.read_text()


def test_the_page_holds_the_verdict_the_tables_and_every_figure(html: str) -> None:
    assert "the erased model shows as little of the leaver as retraining leaves" in html
    assert "Erased, before post-training" in html
    assert "Yeom&#39;s attack" in html
    assert "far enough from the leaver&#39;s own state" in html
    assert html.count('role="img"') == 9
    assert "11.38 %" in html
    assert "drops one retained client" in html
    assert "settings.projected-ascent.stop_distance" in html
    assert "Erased by projected ascent: ascend the leaver&#39;s loss" in html
    assert "2.13.0" in html


def test_unfinished_seeds_are_said(html: str) -> None:
    assert "<strong>Not counted:</strong> seed-3" in html


def test_margins_and_limits_are_stated_and_no_proof_is_claimed(html: str) -> None:
    assert "2 times what two retrainings differ by" in html
    assert "without a second retraining it is 3 points and that factor" in html
    assert "at most 2 points below" in html
    assert "This is evidence, and no certificate." in html
    assert not re.search(r"\bproof|\bproven|\bproves", html)


def test_nothing_outside_the_page_is_named_as_a_source(html: str) -> None:
    tags = Outline(html).tags
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        for name in ("src", "href", "xlink:href"):
            address = attributes.get(name) or "#"
            assert address.startswith("#") or (tag, address) == ("link", "data:,")
    assert "@import" not in html
    assert "@font-face" not in html
    policies = [a["content"] for _, a in tags if a.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_ids_are_unique_and_links_lead_somewhere(html: str) -> None:
    tags = Outline(html).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {a["href"] for tag, a in tags if tag == "a"}
    assert links
    assert {str(link).removeprefix("#") for link in links} <= set(ids)


def test_every_table_heading_has_a_scope(html: str) -> None:
    headings = [attributes for tag, attributes in Outline(html).tags if tag == "th"]
    assert headings
    assert all(heading.get("scope") in ("col", "row", "rowgroup") for heading in headings)


def test_names_from_a_config_are_escaped(write_run: Write) -> None:
    folder = write_run(seeds=(0,), rounds=2, post_rounds=1)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "title": "<script>alert(1)</script>"}))
    html = text_only(folder)
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_one_seed_says_what_its_intervals_cover(write_run: Write) -> None:
    html = text_only(write_run(seeds=(0,), rounds=2, post_rounds=1))
    assert "One seed: sampling interval of the test set only." in html
    assert "One seed only:" in html


def test_several_runs_are_answered_one_by_one(write_run: Write) -> None:
    folder = write_run(seeds=(0,), rounds=2, post_rounds=1)
    write_run(seeds=(0,), rounds=2, post_rounds=1, scenario="clean", name="benign")
    open_ = write_run(seeds=(0,), rounds=2, post_rounds=1, clients=10)
    (open_ / "seed-0" / "result.json").unlink()
    html = text_only(folder.parent)
    assert "Of 2 runs, erased by projected ascent, the leaver is forgotten" in html
    assert html.count('class="run"') == 2
    assert f"Not counted, no finished seed:</strong> {open_.name}" in html


def test_methods_are_compared_with_the_best_in_bold(html: str) -> None:
    table = html[html.index('id="methods"') : html.index('id="figures"')]
    assert "Erased (projected ascent)" in table
    assert '<td class="words">the leaver online</td>' in table
    assert re.search(r"<strong>[^<]*%</strong>", table)
    assert "≈</abbr>" in table
    assert "Bold: the best method of a column" in table


def test_a_page_of_another_method_speaks_of_no_climb(write_run: Write) -> None:
    html = text_only(write_run(rounds=4, post_rounds=2, methods=("weight-negation", "fine-tune")))
    assert "Erased by weight negation: negate the first layer" in html
    assert "climb" not in html
    assert "The local step" not in html.replace("the local step", "The local step")
    assert "Beside the numbers in the paper" not in html
    assert "What methods reported of their start" in html
    assert "passes" in html


def test_history_and_what_other_methods_told_are_shown(write_run: Write) -> None:
    methods = ("projected-ascent", "own.methods:Forget")
    html = text_only(write_run(seeds=(0,), rounds=4, post_rounds=2, methods=methods))
    assert "10 rounds, 159.7 MB on disk; every single update lies at the server." in html
    assert "What other methods reported of their start" in html
    assert "layers" not in html


def test_runs_that_share_methods_are_laid_side_by_side(write_run: Write) -> None:
    folder = write_run(seeds=(0,), rounds=2, post_rounds=1)
    assert 'id="overview"' not in text_only(folder)
    write_run(seeds=(0,), rounds=2, post_rounds=1, clients=10, methods=("fine-tune",))
    html = text_only(folder.parent)
    assert 'id="overview"' in html
    assert "clean accuracy / attack success" in html


def test_a_local_step_without_accuracy_or_loss_is_shown(write_run: Write) -> None:
    folder = write_run(seeds=(0,), rounds=2, post_rounds=1)
    path = folder / "seed-0" / "result.json"
    result = json.loads(path.read_text())
    result["reports"]["projected-ascent"].update(accuracy=None, loss=None)
    path.write_text(json.dumps(result))
    assert "<td>–</td><td>–</td></tr>" in text_only(folder)


def test_seeds_on_different_machines_show_every_version(write_run: Write) -> None:
    folder = write_run(seeds=(0, 1), rounds=2, post_rounds=1)
    path = folder / "seed-1" / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "torch": "2.99.0"}))
    (part,) = make_sections(load_runs([folder]).runs)
    assert part.environment["torch"] == "2.13.0, 2.99.0"
    assert part.environment["python"] == "3.11.7"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.browser
def test_a_browser_renders_everything_and_fetches_nothing(page: Page, report: Report) -> None:
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.page.as_uri())
    page.wait_for_load_state("networkidle")
    assert said == []
    assert asked == [report.page.as_uri()]
    figures = page.locator("figure svg[role=img]")
    assert figures.count() == 9
    for index in range(figures.count()):
        box = figures.nth(index).bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 140
    assert page.locator("#verdict").is_visible()
    assert "the erased model shows as little" in page.locator("#verdict").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 360, 768, 1200])
def test_the_page_never_scrolls_sideways(page: Page, report: Report, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(report.page.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Whatever is wider than the screen lies in a box that scrolls by itself.
    assert (
        page.evaluate(
            """() => [...document.querySelectorAll("main *")].filter(e =>
            e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll")).length"""
        )
        == 0
    )


@pytest.mark.browser
@pytest.mark.parametrize(("width", "told"), [(390, True), (640, True), (768, False)])
def test_a_figure_that_is_wider_than_the_screen_scrolls_and_says_so(
    page: Page, report: Report, width: int, told: bool
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(report.page.as_uri())
    figure = page.locator("figure.wide").first
    assert figure.locator(".sideways").is_visible() == told
    box = figure.locator(".scroll")
    beyond = box.evaluate("e => e.scrollWidth - e.clientWidth")
    assert (beyond > 1) == told
    box.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    drawn, edge = figure.locator("svg").bounding_box(), box.bounding_box()
    assert drawn is not None
    assert edge is not None
    assert drawn["x"] + drawn["width"] <= edge["x"] + edge["width"] + 1  # its end can be reached


@pytest.mark.browser
def test_the_page_is_dark_where_the_reader_wants_it_and_light_on_paper(
    page: Page, report: Report
) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.goto(report.page.as_uri())
    assert page.evaluate(colour) == "rgb(15, 20, 25)"
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


@pytest.mark.browser
def test_the_page_prints_within_the_sheet(page: Page, report: Report, tmp_path: Path) -> None:
    page.goto(report.page.as_uri())
    pdf = page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 50_000
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 970})  # A4 less the margins, in CSS pixels
    assert page.evaluate("document.documentElement.scrollWidth") == 688
