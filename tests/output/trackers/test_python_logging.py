"""Lines of Python's own logging."""

from __future__ import annotations

import logging
import math

import pytest

from headway.core.findings import Finding, Severity
from headway.output.trackers.base import MetricsRow
from headway.output.trackers.python_logging import opened

ROW = MetricsRow(7, {"loss": math.nan, "lr": 0.001, "grad_layer/w": 2.0})


def finding(severity: Severity) -> Finding:
    return Finding("HD101", "nonfinite-loss", severity, 7, "loss is NaN")


def test_a_step_is_a_line_with_its_numbers_attached(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mine"):
        opened(logging.getLogger("mine"), None).step(ROW)
    (record,) = caplog.records
    assert record.getMessage() == "step 7: loss=NaN lr=0.001"
    assert record.headway["step"] == 7
    assert math.isnan(record.headway["loss"])
    assert record.headway["grad_layer/w"] == 2.0


def test_nothing_is_made_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mine"):
        opened(logging.getLogger("mine"), None).step(ROW)
    assert not caplog.records


@pytest.mark.parametrize("severity", list(Severity))
def test_a_finding_has_its_level(severity: Severity, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mine"):
        opened("mine", None).finding(finding(severity))
    (record,) = caplog.records
    assert record.levelname == str(severity).upper()
    assert record.getMessage() == f"HD101 nonfinite-loss: {severity}: step 7: loss is NaN"
    assert record.headway["code"] == "HD101"


def test_what_the_guard_says_anyway_is_not_said_twice(caplog: pytest.LogCaptureFixture) -> None:
    tracker = opened(None, None)
    with caplog.at_level(logging.INFO, "headway.steps"):
        tracker.finding(finding(Severity.ERROR))
        tracker.finding(finding(Severity.INFO))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    tracker.close()
