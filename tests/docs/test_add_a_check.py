"""The worked example of docs/add-a-check.md is a check like any other: it passes what they pass."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
from fences import blocks
from support.literate_cases import Case, read_page

from headway.core.check import HEADINGS, Check
from headway.engine import Engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-check.md").read_text(encoding="utf-8")
FILES = {block.options["file"]: block.text for block in blocks(PAGE) if "file" in block.options}
CODE = "src/headway/checks/loss/hd150_repeated_loss.py"
CASES = "tests/checks/hd150_repeated_loss.md"


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> type[Check]:
    path = tmp_path_factory.mktemp("check") / Path(CODE).name
    path.write_text(FILES[CODE])
    spec = importlib.util.spec_from_file_location("hd150_repeated_loss", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: type[Check] = module.RepeatedLoss
    return found


def cases(folder: Path) -> list[Case]:
    path = folder / Path(CASES).name
    path.write_text(FILES[CASES])
    return list(read_page(path))


def test_every_case_of_the_page_gives_what_it_says(check: type[Check], tmp_path: Path) -> None:
    told = cases(tmp_path)
    assert len(told) == 3
    for case in told:
        engine = Engine(checks=[check()], strict=True)
        engine.run(case.records)
        if case.not_run is not None:
            [declined] = engine.not_run()
            assert case.not_run[0].words in declined.reason
        found = [(item.code, str(item.severity), item.step) for item in engine.findings]
        assert found == [(item.code, item.severity, item.step) for item in case.findings or []]
        for item, wanted in zip(engine.findings, case.findings or [], strict=True):
            assert wanted.words in item.message


def test_its_docstring_has_the_headings(check: type[Check]) -> None:
    page = inspect.cleandoc(check.__doc__ or "")
    at = [page.index(f"## {heading}") for heading in HEADINGS]
    assert at == sorted(at)


def test_contributing_names_the_command_and_leads_to_the_example() -> None:
    """The example stands once, on the page."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "make new-check CODE=HD150 NAME=repeated-loss" in text
    assert "(docs/add-a-check.md)" in text
