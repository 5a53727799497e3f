"""Symptoms lead to their pages in the search of the built site; `make docs` builds it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import search

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_that_answer_exist() -> None:
    for page in search.QUESTIONS.values():
        assert (DOCS / page.replace(".html", ".md")).is_file(), page


@pytest.mark.slow
def test_each_symptom_leads_to_its_page_first() -> None:
    if shutil.which("node") is None or not (search.SITE / "search").is_dir():
        pytest.skip("needs node and a built site: make docs")
    newest = max(page.stat().st_mtime for page in DOCS.rglob("*.md"))
    if (search.SITE / "search" / "search_index.json").stat().st_mtime < newest:
        pytest.skip("the site is older than its pages: make docs")
    assert search.problems() == []


def test_the_navigation_of_the_site_leaves_contributors_pages_out_of_the_search() -> None:
    hooks = (DOCS / "site" / "hooks.py").read_text(encoding="utf-8")
    for page in search.EXCLUDED:
        assert re.search(rf'"{re.escape(page.replace(".html", ".md"))}"', hooks), page
