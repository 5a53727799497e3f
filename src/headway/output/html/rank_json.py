"""The machines of all ranks in one panel: a curve for each of a few, a mean and a band of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headway.output.display_text import clean
from headway.rundir.chart_data import ChartData
from headway.rundir.downsample import Downsampler, Floats, Ints

MAX_CURVES = 8
"""More ranks are drawn as their mean with a band, and the two that differ most from it."""
POINTS = 120
"""Intervals of a curve, by their means: readings come once a second."""
OF_THE_HOST = ("host_memory_used_bytes", "host_cpu_cores")
"""The same for all ranks of a host."""
LONGEST_LABEL = 80

Curve = tuple[Ints, Floats]


def with_ranks(
    panel: Mapping[str, Any],
    names: Sequence[str],
    data: ChartData,
    number: Callable[[float], str],
    *,
    times: float = 1,
) -> dict[str, Any]:
    """A panel with the first of its signals for every rank; `number` is said in its unit."""
    curves = _curves(names[0], data)
    if len(curves) < 2:
        return dict(panel)
    drawn = [_series(label, curve, times) for label, curve in curves.items()]
    if len(curves) > MAX_CURVES:
        drawn = _summary(curves, times)
    host = panel["series"][1:]  # the whole host beside its ranks
    return {**panel, "series": [*drawn, *host], "says": _describe(curves, number)}


def _curves(name: str, data: ChartData) -> dict[str, Curve]:
    """The curve of each rank, or of each host, by its label."""
    every: dict[int, Mapping[str, Downsampler]] = {0: data.series, **data.ranks}
    several = len(set(data.hosts.values())) > 1
    found: dict[str, Curve] = {}
    for rank in sorted(every):
        series = every[rank].get(name)
        if series is None:
            continue
        host = clean(data.hosts.get(rank, ""))[:LONGEST_LABEL]
        label = f"rank {rank}" + (f" ({host})" if several and host else "")
        if name in OF_THE_HOST:
            label = host or "host"
        curve = _curve(series)
        if len(curve[0]):
            found.setdefault(label, curve)
    return found


def _curve(series: Downsampler) -> Curve:
    x, y = series.means(POINTS)
    return (x, y) if len(x) else series.points()


def _series(label: str, curve: Curve, times: float, **more: Any) -> dict[str, Any]:
    x, y = curve
    return {"label": label, "x": x.tolist(), "y": _rounded(y * times), "gaps": [], **more}


def _summary(curves: Mapping[str, Curve], times: float) -> list[dict[str, Any]]:
    """The mean of all, with a band from the lowest to the highest, and the outermost two."""
    low = min(int(x[0]) for x, _ in curves.values())
    high = max(int(x[-1]) for x, _ in curves.values())
    grid = np.unique(np.linspace(low, high, POINTS).astype(np.int64))
    table = np.stack([np.interp(grid, x, y) for x, y in curves.values()])
    band = [_rounded(edge * times) for edge in (table.min(axis=0), table.max(axis=0))]
    mean = _series(f"mean of {len(curves)}", (grid, table.mean(axis=0)), times, band=band)
    lowest, highest = _outermost(curves)
    return [
        mean,
        _series(f"{lowest}, the lowest", curves[lowest], times),
        _series(f"{highest}, the highest", curves[highest], times),
    ]


def _outermost(curves: Mapping[str, Curve]) -> tuple[str, str]:
    means = {label: float(np.mean(y)) for label, (_, y) in curves.items()}
    return min(means, key=means.__getitem__), max(means, key=means.__getitem__)


def _describe(curves: Mapping[str, Curve], number: Callable[[float], str]) -> str:
    lowest, highest = _outermost(curves)
    low, high = (number(float(np.mean(curves[label][1]))) for label in (lowest, highest))
    return f"{len(curves)} curves; on average {low} ({lowest}) to {high} ({highest})"


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
