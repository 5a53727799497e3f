"""A finding's text in other people's pages."""

from __future__ import annotations

from headway.core.findings import Finding, Remedy, Severity, Where
from headway.output.trackers import base

HOSTILE = Finding(
    "HD201",
    "nonfinite-gradient",
    Severity.ERROR,
    4,
    "of <script>alert(1)</script> [x](javascript:y) \x1b[31mred\n# head",
    where=Where(file="train.py", line=3, function="main"),
    remedies=(Remedy("clip", tested=True, cured=True), Remedy("a smaller rate")),
)


def test_the_text_says_what_where_and_what_to_do() -> None:
    lines = base.finding_text(HOSTILE).split("\n")
    assert lines[0].startswith("error: step 4: of ")
    assert lines[1:] == [
        "at train.py:3 in main",
        "try: clip (tested on the failing step: cured)",
        "try: a smaller rate",
    ]
    assert "\x1b" not in lines[0]


def test_markdown_renders_nothing_of_a_name() -> None:
    text = base.finding_markdown(HOSTILE)
    assert "<" not in text
    assert "\\[x\\](javascript:y)" in text
    assert text.startswith("**HD201 nonfinite-gradient** error: ")
    assert "\n- at train.py:3 in main\n" in text


def test_a_finding_without_a_place_names_its_module_or_nothing() -> None:
    bare = Finding("HD101", "x", Severity.INFO, None, "said")
    assert base.finding_lines(bare) == ["info: said"]
    placed = Finding("HD101", "x", Severity.INFO, None, "said", where=Where(module="head"))
    assert base.finding_lines(placed) == ["info: said", "in head"]
