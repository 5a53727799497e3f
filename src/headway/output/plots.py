"""Plots of a report through matplotlib (extra `plot`)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from headway.core.findings import Finding, Severity
from headway.errors import FrameworkMissing

_COLOURS = {Severity.ERROR: "tab:red", Severity.WARNING: "tab:orange"}
_SPREAD = 100
"""From this ratio of largest to smallest on, the axis is logarithmic."""


def plot_curve(
    name: str,
    steps: Sequence[int],
    values: Sequence[float],
    findings: Sequence[Finding] = (),
    axes: Any = None,
) -> Any:
    """Draw a curve with its findings marked; values that are not finite are crosses at the top.

    Gives the matplotlib axes, those that were given or new ones.
    """
    if axes is None:
        _, axes = _pyplot().subplots()
    finite = [(at, value) for at, value in zip(steps, values, strict=True) if math.isfinite(value)]
    lost = [at for at, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    # A gap, not a line across: NaN breaks a line of matplotlib's, and an infinity would stretch it.
    whole = [value if math.isfinite(value) else math.nan for value in values]
    axes.plot(list(steps), whole, linewidth=1, label=name)
    heights = [value for _, value in finite]
    if heights and min(heights) > 0 and max(heights) > _SPREAD * min(heights):
        axes.set_yscale("log")
    if lost:
        top = axes.get_xaxis_transform()  # steps along, share of the height up
        axes.plot(lost, [0.98] * len(lost), "x", color="tab:red", transform=top, label="not finite")
    _mark(axes, findings)
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    if lost:
        axes.legend()
    return axes


def _mark(axes: Any, findings: Sequence[Finding]) -> None:
    at_step: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.step is not None and finding.severity >= Severity.WARNING:
            at_step.setdefault(finding.step, []).append(finding)
    for step, found in at_step.items():
        worst = max(item.severity for item in found)
        codes = ", ".join(dict.fromkeys(item.code for item in found))
        axes.axvline(step, color=_COLOURS[worst], linewidth=0.8, linestyle="--")
        axes.annotate(
            codes,
            (step, 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize="small",
            va="bottom",
            ha="right",
        )


def _pyplot() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        if error.name not in ("matplotlib", "matplotlib.pyplot"):
            raise
    raise FrameworkMissing(
        "report.plot needs matplotlib, which is not installed: pip install 'headway[plot]'"
    )
