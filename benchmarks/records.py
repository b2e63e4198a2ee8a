"""Compare the tables of the documentation with the committed records, or write them anew.

A table stands between `<!-- paper: scores; Second choice; Weight negation -->`, which names the
records, the kind of table and which methods are shown (all, if none), and `<!-- end -->`. An
experiment in both records of `history+slow` is merged if its models were the same.

example: python -m benchmarks.records --write
         python -m benchmarks.records --pack letters runs/letters-*
         python -m benchmarks.records --repeated runs/letters-*
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NoReturn

from benchmarks.archives import joined, load, pack, repeated
from benchmarks.kinds import KINDS, short, with_methods
from secede.errors import RecordError
from secede.experiments import presets
from secede.reports.figures.catalogue import PAPER, make_plots
from secede.reports.figures.render import render_plot

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/comparison.md", "docs/comparison-tables.md", "docs/explored.md")
)

COMPARED = tuple(presets.load(f"compare/{presets.PAPER[0]}").methods)
FIGURES = {  # in docs/images: which figure of the paper's cells, with which methods
    "second-choice-rounds-n5": (
        "backdoor-rounds-n5",
        ("second-choice", "projected-ascent", "fine-tune"),
    ),
    "backdoor-methods-n5": ("backdoor-methods-n5", COMPARED),
    "flipped-methods-n10": ("flipped-methods-n10", COMPARED),
}

_BLOCK = re.compile(r"(<!-- ([a-z+]+): ([a-z]+)((?:; [^;]+?)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def blocks(text: str) -> list[str]:
    """Return the tables of a page that are made of records, each with its marks."""
    return [block[0] for block in _BLOCK.finditer(text)]


def written(text: str) -> str:
    """Return a page with each table as the records give it."""
    return _BLOCK.sub(
        lambda block: block[1] + _table(block[2], block[3], block[4]) + block[5], text
    )


def differences(text: str) -> Iterator[str]:
    """Yield each line of a page that differs from the records, with what they say."""
    old, new = text.splitlines(), written(text).splitlines()
    for tag, first, last, begin, end in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            page, recorded = old[first:last], new[begin:end]
            for place in range(max(len(page), len(recorded))):
                shown, expected = (
                    part[place] if place < len(part) else "nothing" for part in (page, recorded)
                )
                yield f"{first + 1 + place}: {shown}\n  the records say: {expected}"


def _table(records: str, kind: str, chosen: str) -> str:
    if kind not in KINDS:
        raise SystemExit(f"no table {kind!r}; expected one of: {', '.join(KINDS)}")
    runs = joined(records)
    text = short(KINDS[kind](runs, [name.strip() for name in chosen.split(";")[1:]]))
    return text.rstrip("\n") + "\n"


def draw_figures() -> None:
    """Draw the pages' figures."""
    for name, (slug, shown) in FIGURES.items():
        runs = [with_methods(run, shown) for run in load("paper")]
        (plot,) = (plot for plot in make_plots(runs, PAPER) if plot.slug == slug)
        (ROOT / "docs" / "images" / f"{name}.png").write_bytes(render_plot(plot).png)


def tell_repeated(folders: Sequence[Path]) -> NoReturn:
    """Print how many models of repeated runs differ from the records; exit 1 if any does."""
    try:
        seeds = repeated(folders)
    except RecordError as error:
        raise SystemExit(str(error)) from None
    for title, models, differ in seeds:
        print(f"{title}: {models} models, {differ} not as recorded")
    raise SystemExit(1 if any(differ for _, _, differ in seeds) else 0)


def main() -> None:
    """Print which pages differ from the records, or write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options = parser.add_mutually_exclusive_group()
    options.add_argument("--write", action="store_true", help="write tables and figures anew")
    options.add_argument(
        "--pack", nargs="+", metavar=("NAME", "RUN"), help="put runs' folders into an archive"
    )
    options.add_argument(
        "--repeated",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="compare new runs with the records",
    )
    wanted = parser.parse_args()
    if wanted.repeated:
        tell_repeated(wanted.repeated)
    if wanted.pack:
        name, *folders = wanted.pack
        pack(name, [Path(folder) for folder in folders])
    write = wanted.write
    checked, differing = 0, []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        checked += len(blocks(text))
        differing += [f"{page.relative_to(ROOT)}:{line}" for line in differences(text)]
        if write:
            page.write_text(written(text), encoding="utf-8")
    if write:
        draw_figures()
    print("\n".join([*differing, f"{checked} tables, {len(differing)} lines differ"]))
    raise SystemExit(1 if differing and not write else 0)


if __name__ == "__main__":
    main()
