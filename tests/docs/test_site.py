"""The site hangs together: navigation, links, and fences. `make docs` builds it, strictly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_pages
import outside
import pytest
import yaml
from fences import blocks, for_display, read_info
from running import commands, demand, of_the_repository

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GENERATED = {"cli.md", "api.md", "checks/", "checks/index.md"}


def navigation(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    else:
        for inside in item.values() if isinstance(item, dict) else item:
            yield from navigation(inside)


def settings() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return read


def test_every_page_has_its_place_in_the_navigation_and_every_place_its_page() -> None:
    told = set(navigation(settings()["nav"]))
    there = {page.relative_to(DOCS).as_posix() for page in PAGES}
    decisions = {page for page in there if re.match(r"decisions/\d", page)}
    assert there - decisions <= told
    assert told - GENERATED <= there


def test_the_site_is_strict_and_brings_its_own_fonts_and_scripts() -> None:
    read = settings()
    assert read["strict"] is True
    assert read["theme"]["font"] is False
    assert {"search", "offline"} <= set(read["plugins"])
    for name in read["extra_css"] + read["extra"]["polyfills"]:
        assert (DOCS / name).is_file()


def test_every_decision_is_in_the_index() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("decisions/[0-9]*.md"):
        assert f"]({page.name})" in index


def test_every_link_leads_to_a_page_or_a_file() -> None:
    codes = {
        check_pages.path_of(check)
        for members in check_pages.families().values()
        for check in members
    }
    made = GENERATED | codes
    dead = []
    for page in PAGES:
        text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if target.startswith(("http:", "https:", "mailto:")):
                continue
            place = (page.parent / target).resolve()
            inside = place.is_relative_to(DOCS) and place.relative_to(DOCS).as_posix() in made
            if not inside and not place.exists():
                dead.append((page.relative_to(DOCS).as_posix(), target))
    assert dead == []


def test_a_link_out_of_the_documentation_is_brought_along() -> None:
    text = "see [it](../benchmarks/origins.py), [all](../benchmarks) and [here](faq.md#top)"
    assert list(outside.targets(text, "replay.md")) == ["benchmarks/origins.py", "benchmarks"]
    shown = outside.rewritten(text, "recipes/nan.md")
    assert shown == text, "from a folder further down the same words lead nowhere, and stay"
    shown = outside.rewritten(text, "replay.md")
    assert "(repository/benchmarks/origins.py.txt)" in shown
    assert "(repository/benchmarks/index.md)" in shown
    assert "(faq.md#top)" in shown
    assert outside.rewritten("[d](docs/faq.md)", "repository/CONTRIBUTING.md") == "[d](../faq.md)"


def test_info_strings_are_read_and_not_shown() -> None:
    assert read_info('python file="a b.py" no-run="for a reason"') == (
        "python",
        {"file": "a b.py", "no-run": "for a reason"},
    )
    assert read_info("console exit=1") == ("console", {"exit": "1"})
    page = '```python file="train.py"\n1\n```\n\n```text output\n1\n```\n\n```\ndrawn\n```\n'
    shown = '```python title="train.py"\n1\n```\n\n```text\n1\n```\n\n```text\ndrawn\n```\n'
    assert for_display(page) == shown


def test_a_block_within_a_block_is_part_of_it() -> None:
    page = "````markdown\n```python\n1\n```\n````\n\n    ```console\n    $ a\n    ```\n"
    assert [(block.language, block.text) for block in blocks(page)] == [
        ("markdown", "```python\n1\n```\n"),
        ("console", "$ a\n"),
    ]
    with pytest.raises(ValueError, match=r"line 1: .* never ends"):
        list(blocks("```python\n1\n"))


def test_what_a_page_shows_is_compared_loosely_and_yet_compared() -> None:
    demand("loss is NaN\n  … sample 8", "  loss is NaN; at line 3,\n sample 8, twice")
    demand("…", "")
    demand("", "anything")
    with pytest.raises(AssertionError):
        demand("loss is NaN … sample 9", "loss is NaN at sample 8")
    with pytest.raises(AssertionError):
        demand("3 errors", "2 errors")
    assert commands("$ a \\\n  b\nx\ny\n$ c\n") == [("a  b", "x\ny"), ("c", "")]


def test_commands_that_set_up_or_run_for_long_are_looked_up() -> None:
    assert of_the_repository("pip install 'headway[web]'  # once")
    assert of_the_repository("make docs")
    assert of_the_repository("python benchmarks/origins.py --quick")
    assert not of_the_repository("headway diagnose runs/first")
    for wrong in ("pip install 'headway[wbe]'", "make dosc"):
        with pytest.raises(AssertionError):
            of_the_repository(wrong)
    with pytest.raises(FileNotFoundError):
        of_the_repository("python benchmarks/nothing.py")
