"""Chart data as the JSON that the page's scripts draw from.

A non-finite value is no point of a line: it is listed in `gaps` and drawn as a mark at the top. All
text is cleaned here; the script inserts it as text and never as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from headway.core.findings import Finding, Severity
from headway.core.numbers import say, say_bytes
from headway.core.signals import family
from headway.output.display_text import clean
from headway.output.html import rank_json
from headway.output.view import CauseView
from headway.rundir.chart_data import ChartData
from headway.rundir.downsample import Downsampler, Floats

MAX_FLAGS = 500
"""Maximum number of findings marked in the charts."""
LONGEST_NAME = 200

PANELS = (
    ("loss", "Loss", ("loss",)),
    ("gradients", "Gradient norm", ("grad_norm", "clipped_grad_norm")),
    ("rate", "Learning rate", ("lr",)),
    ("scale", "Loss scale", ("loss_scale",)),
    ("memory", "Memory", ("device_allocated_bytes", "host_rss_bytes")),
)
"""Panels of the timeline: id, title, signals."""
SYSTEM_PANELS = (
    ("samples", "Samples per second", ("samples_per_s",)),
    ("tokens", "Tokens per second", ("tokens_per_s",)),
    ("loading", "Waiting for data", ("loader_share",)),
    ("gpu", "GPU in use", ("gpu_busy_share",)),
    ("gpu-memory", "GPU memory in use", ("gpu_memory_used_bytes",)),
    ("gpu-power", "GPU power", ("gpu_power_w",)),
    ("gpu-temperature", "GPU temperature", ("gpu_temperature_c",)),
    ("gpu-clock", "GPU clock", ("gpu_clock_mhz",)),
    ("cpu", "CPU cores in use", ("process_cpu_cores", "host_cpu_cores")),
    ("host-memory", "Host memory in use", ("host_memory_used_bytes",)),
    ("rank-memory", "Memory of each rank's process", ("host_rss_bytes",)),
    ("rank-allocated", "GPU memory allocated by each rank", ("device_allocated_bytes",)),
    ("disk", "Disk", ("disk_read_bytes_per_s", "disk_write_bytes_per_s")),
    ("network", "Network", ("network_read_bytes_per_s", "network_write_bytes_per_s")),
)
"""Panels of the section about the machine: id, title, signals."""
RANK_PANELS = ("rank-memory", "rank-allocated")
"""Panels for several ranks only: the timeline has the memory of one."""
SYSTEM_POINTS = 240
"""Intervals of a curve there: the charts are small, and their means matter most."""
UNITS = {
    "memory": ("bytes", ""),
    "loading": ("percent", "% of a step"),
    "gpu": ("percent", "%"),
    "gpu-memory": ("bytes", ""),
    "gpu-power": ("", "W"),
    "gpu-temperature": ("", "°C"),
    "gpu-clock": ("", "MHz"),
    "host-memory": ("bytes", ""),
    "rank-memory": ("bytes", ""),
    "rank-allocated": ("bytes", ""),
    "disk": ("bytes", "/s"),
    "network": ("bytes", "/s"),
}
"""How the numbers of a panel are counted, and the unit that follows."""
LABELS = {
    "grad_norm": "before clipping",
    "clipped_grad_norm": "after clipping",
    "lr": "rate",
    "loss_scale": "scale",
    "device_allocated_bytes": "device",
    "host_rss_bytes": "host",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "loader_share": "share of the step",
    "gpu_busy_share": "busy",
    "gpu_memory_used_bytes": "used",
    "gpu_power_w": "power",
    "gpu_temperature_c": "temperature",
    "gpu_clock_mhz": "clock",
    "process_cpu_cores": "this run",
    "host_cpu_cores": "the whole host",
    "host_memory_used_bytes": "used",
    "disk_read_bytes_per_s": "read",
    "disk_write_bytes_per_s": "write",
    "network_read_bytes_per_s": "received",
    "network_write_bytes_per_s": "sent",
}


def panels(data: ChartData) -> list[dict[str, Any]]:
    """The panels of the timeline that have data."""
    drawn = [
        _panel(key, title, [name for name in data.series if family(name) in names], data)
        for key, title, names in PANELS
    ]
    evaluated = [name for name in data.series if name.startswith("eval/")]
    drawn.append(_panel("eval", "Evaluation", evaluated, data))
    return [panel for panel in drawn if panel["series"]]


def components(data: ChartData) -> list[dict[str, Any]]:
    """One panel with the loss components, if there are any."""
    parts = [name for name in data.series if name.startswith("loss/")]
    panel = _panel("components", "Loss components", parts, data)
    return [panel] if panel["series"] else []


def system_panels(data: ChartData, *, ranks: bool = True) -> list[dict[str, Any]]:
    """The panels about the machine that have data; with `ranks`, the machines of all of them."""
    drawn = []
    for key, title, names in SYSTEM_PANELS:
        present = [name for name in names if name in data.series]
        panel = _panel(key, title, present, data, SYSTEM_POINTS)
        if ranks and present and any(present[0] in one for one in data.ranks.values()):
            kind, unit = UNITS.get(key, ("", ""))
            number = partial(say_in_unit, kind=kind, unit=unit)
            times = 100 if kind == "percent" else 1
            panel = rank_json.with_ranks(panel, present, data, number, times=times)
        elif key in RANK_PANELS:
            continue
        drawn.append(panel)
    return [{**panel, "small": True} for panel in drawn if panel["series"]]


def list_missing_signals(data: ChartData) -> list[str]:
    """Titles of the panels without data."""
    return [
        title.lower()
        for _, title, names in PANELS
        if not any(family(name) in names for name in data.series)
    ]


def _panel(
    key: str, title: str, names: Sequence[str], data: ChartData, points: int | None = None
) -> dict[str, Any]:
    """One panel; `points`: draw no more intervals than that."""
    clipped = "clipped_grad_norm" in data.series
    kind, unit = UNITS.get(key, ("", ""))
    series = {name: data.series[name] for name in names}
    if points is not None:
        series = {name: _thinned(one, points) for name, one in series.items()}
    return {
        "id": key,
        "title": title,
        "bytes": kind == "bytes",
        "unit": unit,
        "measure": "per second" if unit == "/s" else unit,
        "series": [
            _series(name, one, clipped=clipped, times=100 if kind == "percent" else 1)
            for name, one in series.items()
        ],
        "says": _describe_series(series.items(), kind, unit, clipped),
    }


def _thinned(series: Downsampler, points: int) -> Downsampler:
    x, _ = series.points()
    return series.narrowed(int(x[0]), int(x[-1]), points) if len(x) else series


def label(name: str, *, clipped: bool = True) -> str:
    """The label of a signal in a chart."""
    base, mark, number = name.partition("#")
    if base == "grad_norm" and not clipped:
        text = "norm"
    else:
        text = LABELS.get(base) or base.removeprefix("loss/").removeprefix("eval/")
    return clean(f"{text} (optimizer {number})" if mark else text)[:LONGEST_NAME]


def _series(name: str, series: Downsampler, *, clipped: bool, times: float = 1) -> dict[str, Any]:
    x, y = series.points()
    drawn = {
        "label": label(name, clipped=clipped),
        "x": x.tolist(),
        "y": _round(y * times),
        "gaps": [[gap.kind, gap.first, gap.last, gap.count] for gap in series.gaps()],
    }
    mean_x, mean = series.means()
    return {**drawn, "mean": [mean_x.tolist(), _round(mean * times)]} if len(mean) else drawn


def _round(values: Floats) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def clocks(data: ChartData) -> dict[str, list[Any]]:
    """The other x axes that the run can be drawn along: x, and the value there."""
    drawn = {}
    for name, clock in data.clocks.items():
        x, value = clock.points()
        if len(x) > 1 and value[-1] > value[0]:
            drawn[name] = [x.tolist(), _round(value)]
    return drawn


def _describe_series(
    named: Iterable[tuple[str, Downsampler]], kind: str, unit: str, clipped: bool
) -> str:
    """A text description of the chart, for screen readers."""
    described = []

    def number(value: float, digits: int = 3) -> str:
        return say_in_unit(value, kind, unit, digits)

    for name, series in named:
        _, y = series.points()
        parts = []
        if len(y) and y.min() == y.max():
            parts.append(f"{number(float(y[0]), 6)} throughout")
        elif len(y):
            parts.append(
                f"from {number(float(y[0]))} to {number(float(y[-1]))}, lowest "
                f"{number(float(y.min()))}, highest {number(float(y.max()))}"
            )
        gaps = series.gaps()
        if gaps:
            count = sum(gap.count for gap in gaps)
            kinds = " or ".join(sorted({_short(gap.kind) for gap in gaps}))
            parts.append(f"{kinds} " + ("once" if count == 1 else f"{count} times"))
        described.append((label(name, clipped=clipped), "; ".join(parts)))
    if len(described) == 1:
        text = described[0][1]
        return text[:1].upper() + text[1:]
    return ". ".join(f"{name}: {text}" for name, text in described)


def say_in_unit(value: float, kind: str, unit: str, digits: int = 3) -> str:
    """A number of a panel with its unit."""
    if kind == "bytes":
        return say_bytes(value) + unit
    text = say(100 * value if kind == "percent" else value, digits)
    return f"{text} {unit}" if unit else text


def _short(kind: str) -> str:
    return {"Infinity": "Inf", "-Infinity": "-Inf"}.get(kind, kind)


def flags(causes: Sequence[CauseView], data: ChartData) -> list[dict[str, Any]]:
    """The findings as marks in the charts, each with the key of its cause; the worst ones if there
    are too many."""
    ranked = sorted(
        (
            (item, cause.root)
            for cause in causes
            for item in (cause.root, *cause.symptoms)
            if item.step is not None and item.severity > Severity.INFO
        ),
        key=lambda pair: -pair[0].severity,
    )
    return [
        {
            "x": data.place(item.order, item.step or 0),
            "severity": str(item.severity),
            "label": clean(f"{item.code} {item.name}")[:LONGEST_NAME],
            "opens": finding_key(root),
        }
        for item, root in ranked[:MAX_FLAGS]
    ]


def finding_key(finding: Finding) -> str:
    """Names a finding on a page, also while the run grows."""
    text = f"{finding.code}.{finding.segment}.{finding.seq}.{finding.subject}"
    return clean(text)[:LONGEST_NAME]


_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def embed(data: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    for mark, escaped in _UNSAFE.items():
        text = text.replace(mark, escaped)
    return text
