"""The public surface is what the files beside this one say, until somebody decides otherwise."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from support import public_surface

import headway

DECIDE = """
The public surface is not what {file} says:

{difference}

If this is intended, run `make api-snapshot`, look at what it changed, and add a news fragment
(changes/README.md). What counts as breaking is in docs/versions.md. If it is not, put it back.
"""
CODES = Path(__file__).parent / "codes.txt"


@pytest.mark.parametrize("part", public_surface.PARTS)
def test_the_surface_is_as_it_was(part: str) -> None:
    pytest.importorskip("torch")
    try:
        now = public_surface.text_of(part)
    except ImportError as missing:
        pytest.skip(str(missing))
    file = public_surface.FOLDER / part
    before = file.read_text(encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", lineterm="")
    )
    if difference:
        pytest.fail(
            DECIDE.format(file=f"tests/release/{part}", difference=difference), pytrace=False
        )


def test_a_code_once_given_stays_and_keeps_its_name() -> None:
    """Codes stand in people's settings and reports. New ones may come; none goes or is reused."""
    given = dict(line.split() for line in CODES.read_text(encoding="utf-8").splitlines())
    now = dict(line.split() for line in public_surface.codes().values())
    lost = {code: name for code, name in given.items() if now.get(code) != name}
    assert not lost, f"a withdrawn check keeps its file, with status = 'removed': {lost}"
    new = sorted(now.keys() - given.keys())
    assert not new, f"run `make api-snapshot` and add a news fragment for {', '.join(new)}"


def test_the_names_of_the_design_are_there() -> None:
    pytest.importorskip("torch")
    text = public_surface.text_of("python.txt")
    guard = re.search(r"class headway\.Guard\((.*)\)", text)
    assert guard
    first = [word.partition(":")[0].strip() for word in guard[1].split(", ")][:7]
    assert first == [
        *("model", "optimizer", "scheduler", "scaler", "run_dir", "max_norm", "policy"),
    ]
    for name in ("verdict", "findings", "causes", "not_run", "coverage", "to_json", "to_html"):
        assert hasattr(headway.Report, name), name
    found = {name: set(kind.__slots__) for name, kind in _PLAIN.items()}
    for name, wanted in _FIELDS.items():
        assert wanted <= found[name], name


_PLAIN = {name: getattr(headway, name) for name in ("Finding", "Where", "Remedy")}
_FIELDS = {
    "Finding": {
        *("code", "name", "severity", "step", "where", "message", "evidence", "remedies"),
    },
    "Where": {"file", "line", "function", "module", "op", "rank", "sample"},
    "Remedy": {"text", "tested", "cured", "edits"},
}
