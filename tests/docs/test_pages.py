"""Every code block of the documentation is run, or says in its fence why it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fences import Block, blocks
from running import SHOWN, PageRun
from scene import copy_folder, make_folder, make_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
WITH_BLOCKS = [page for page in PAGES if list(blocks(page.read_text(encoding="utf-8")))]

ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/replay.md": "tests/test_replay_docs.py",
    "docs/frameworks.md": "tests/integrations/test_docs.py",
}
"""Pages with a test of their own, which looks closer than this one."""
SLOW = {
    "docs/after.md",
    "docs/check.md",
    "docs/fix.md",
    "docs/index.md",
    "docs/start.md",
    "docs/recipes/clipping.md",
    "docs/recipes/ci.md",
    "docs/recipes/dead-term.md",
    "docs/recipes/does-not-learn.md",
    "docs/recipes/fp16.md",
    "docs/recipes/memory.md",
    "docs/recipes/nan.md",
    "docs/recipes/ranks.md",
}
"""Pages with many commands that load torch, or that start several processes."""
MOST_EXEMPT = 10


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def marked(page: Path) -> object:
    marks = [pytest.mark.slow, pytest.mark.timeout(1200)] if name_of(page) in SLOW else []
    return pytest.param(page, id=name_of(page), marks=marks)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    make_folder(folder)
    return folder


@pytest.mark.parametrize(
    "page", [marked(page) for page in WITH_BLOCKS if name_of(page) not in ELSEWHERE]
)
def test_every_block_runs(
    page: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_folder(made, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    PageRun(page, tmp_path, make_names()).run()


def exempt() -> list[tuple[str, Block]]:
    return [
        (name_of(page), block)
        for page in WITH_BLOCKS
        for block in blocks(page.read_text(encoding="utf-8"))
        if "no-run" in block.options
    ]


def test_the_blocks_that_are_not_run_are_few_and_say_why() -> None:
    found = exempt()
    assert len(found) <= MOST_EXEMPT, [f"{page}:{block.line}" for page, block in found]
    for page, block in found:
        assert len(block.options["no-run"].split()) >= 3, f"{page}:{block.line}: say why"


def test_the_pages_with_tests_of_their_own_have_them() -> None:
    for page, test in ELSEWHERE.items():
        assert page in {name_of(item) for item in WITH_BLOCKS}
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_no_block_is_of_a_kind_that_nobody_tries() -> None:
    known = {*SHOWN, "python", "console", "bash", "json", "toml", "yaml"}
    for page in WITH_BLOCKS:
        for block in blocks(page.read_text(encoding="utf-8")):
            # Without a language it is a drawing.
            assert block.language in {"", *known}, f"{name_of(page)}:{block.line}"
