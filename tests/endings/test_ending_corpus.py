"""Every script of `corpus/endings` is described as its expectation says."""

from __future__ import annotations

from runpy import run_path
from typing import Any

import pytest
from support.ending_corpus import (
    FOLDER,
    EndingScript,
    blind_endings,
    ending_scripts,
    run_script,
)

SCRIPTS = ending_scripts()


def test_every_script_has_an_expectation() -> None:
    known = {entry.script for entry in SCRIPTS}
    assert known == {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.py")}
    assert sum(entry.code is not None for entry in SCRIPTS) >= 30
    assert sum(entry.code is None for entry in SCRIPTS) >= 20


@pytest.mark.nightly
@pytest.mark.parametrize("entry", SCRIPTS, ids=lambda entry: entry.script)
def test_a_script_is_described(entry: EndingScript) -> None:
    problems = run_script(entry)
    assert not [*problems["code"], *problems["line"]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, marks=pytest.mark.gpu if entry.get("gpu") else ())
        for entry in blind_endings()
    ],
    ids=lambda entry: f"{entry['set']}/{entry['script']}",
)
def test_a_script_of_the_blind_set_is_described(entry: dict[str, Any]) -> None:
    row = run_path(str(FOLDER.parents[1] / "benchmarks" / "blind_endings.py"))["examine"](entry)
    assert [name for name, right in row["right"].items() if not right] == []
