"""`report.plot("loss")`."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from headway.core.findings import Finding, Severity
from headway.errors import FrameworkMissing, UsageError
from headway.report import Coverage, Report

FOUND = (
    Finding("HD101", "nonfinite-loss", Severity.ERROR, 3, "loss is NaN"),
    Finding("HD201", "nonfinite-gradient", Severity.WARNING, 3, "norm is NaN"),
    Finding("HD999", "remark", Severity.INFO, 1, "only a remark"),
)


def report(*values: float) -> Report:
    curve = (range(len(values)), values) if values else None
    return Report("diagnose", FOUND, (), (), Coverage(1, 2), curve=curve)


def test_without_matplotlib_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [item for item in sys.modules if item.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FrameworkMissing, match=r"pip install 'headway\[plot\]'"):
        report(1.0, 2.0).plot("loss")


def test_what_is_not_kept_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="only the loss is kept"):
        report(1.0).plot("grad_norm")
    with pytest.raises(UsageError, match="no loss was read"):
        report().plot()


@pytest.mark.trackers
def test_nonfinite_values_and_findings_are_to_be_seen(tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    axes = report(4.0, 3.0, 2.0, math.nan, math.inf, 1.0).plot("loss", figure.subplots())
    line, crosses, mark = axes.get_lines()
    assert list(line.get_ydata()[:3]) == [4.0, 3.0, 2.0]
    assert [math.isnan(value) for value in line.get_ydata()] == [False] * 3 + [True] * 2 + [False]
    assert list(crosses.get_xdata()) == [3, 4]
    assert list(mark.get_xdata()) == [3, 3]
    assert [text.get_text() for text in axes.texts] == ["HD101, HD201"]
    figure.savefig(tmp_path / "loss.svg")
    assert (tmp_path / "loss.svg").stat().st_size > 1000


@pytest.mark.trackers
def test_a_wide_range_is_logarithmic() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    assert report(1e4, 1.0).plot(ax=figures.Figure().subplots()).get_yscale() == "log"
    assert report(2.0, 1.0).plot(ax=figures.Figure().subplots()).get_yscale() == "linear"
