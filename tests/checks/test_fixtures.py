"""Every case of every page in this folder, as a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.literate_cases import Case, Expected, read_page

from headway import registry
from headway.core.findings import Finding
from headway.engine import Engine

PAGES = sorted(Path(__file__).parent.glob("hd*.md"))
CASES = [
    pytest.param(page, case, id=f"{page.stem}: {case.title}")
    for page in PAGES
    for case in read_page(page)
]


@pytest.mark.parametrize(("page", "case"), CASES)
def test_case(page: Path, case: Case) -> None:
    check = registry.get(page.stem.split("_")[0])()
    engine = Engine(checks=[check], strict=True)
    engine.run(case.records)
    if case.not_run is not None:
        reasons = {item.code: item.reason for item in engine.not_run()}
        for expected in case.not_run:
            assert expected.words in reasons.get(expected.code, "it did run")
    else:
        assert engine.not_run() == [], "the case does not feed its check"
    _compare(engine.findings, case.findings or [])


def _compare(found: list[Finding], expected: list[Expected]) -> None:
    told = [f"{item.code} {item.severity} @{item.step} {item.message}" for item in found]
    assert len(found) == len(expected), "\n".join(told) or "nothing found"
    for finding, line in zip(found, expected, strict=True):
        assert finding.code == line.code, told
        assert not line.severity or str(finding.severity) == line.severity, told
        assert line.step is None or finding.step == line.step, told
        assert line.words in finding.message, told
