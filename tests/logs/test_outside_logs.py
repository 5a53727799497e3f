"""Every log of the outside set: right first cause, right onset, right exit code, no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import external_logs_more  # noqa: F401  (registers its cases)
from support.external_logs import CASES, Outside

import headway
from headway.core.findings import Severity

STILL_WRONG = {
    "reduce_on_plateau": "a bare `train 0.51 val 0.55` may as well be an accuracy: it is not read",
}


def _param(item: Outside) -> pytest.ParameterSet:
    reason = STILL_WRONG.get(item.name)
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(item, id=item.name, marks=marks)


@pytest.mark.parametrize("item", [_param(item) for item in CASES])
def test_an_outside_log_is_told_right(item: Outside, tmp_path: Path) -> None:
    report = headway.diagnose(item.write(tmp_path))
    told = [(f.code, f.severity.name, f.step, f.message) for f in report.findings]
    loud = [f for f in report.findings if f.severity >= Severity.WARNING]
    assert any(f.severity >= Severity.ERROR for f in loud) == bool(item.exit), told
    if item.code is None:
        assert not loud, told
        return
    assert report.causes, "nothing was said"
    first = report.causes[0].root
    assert first.code == item.code or first.code in item.others, told
    if item.step is not None:
        assert first.step is not None
        assert abs(first.step - item.step) <= item.within, told
    if item.reader is not None:
        assert report.sources[0]["format"] == item.reader


def test_there_are_many_of_them() -> None:
    assert len({item.name for item in CASES}) == len(CASES) >= 130
    assert sum(item.code is None for item in CASES) >= 50
