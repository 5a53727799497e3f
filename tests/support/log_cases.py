"""A small language for logs of other tools, to write cases of a diagnosis in a few lines.

    log("loss: 2.0..1.5~0.02*50, nan", every=10)

builds a log with a row every 10 steps; the series are those of `literate_cases.py`. `diagnosed`
feeds it to all checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.core.signals import Signal
from headway.engine import Engine
from headway.logs.log_stream import LogStream
from headway.logs.log_table import Log, LogEvent, Table, Unit
from headway.report import Report
from support.literate_cases import read_series

HF = {
    "loss": Signal(span=10, every=10, fold="mean", nonfinite="filtered"),
    "grad_norm": Signal(every=10),
    "learning_rate": Signal(every=10),
}
"""What Hugging Face's Trainer logs with `logging_steps=10`."""


def log(
    *series: str,
    every: int = 1,
    first: int | None = None,
    restart: dict[int, int] | None = None,
    signals: dict[str, Signal] | None = None,
    digits: int | None = None,
    unit: Unit = "step",
    events: list[LogEvent] | None = None,
    source: str = "jsonl",
    **facts: Any,
) -> Log:
    """A log with a row every `every` steps. `restart` maps a row to the step it goes on from."""
    columns = {}
    for line in series:
        name, _, text = line.partition(":")
        columns[name] = read_series(text.strip(), seed=name)
    table, step = Table(), first if first is not None else every
    for row in range(max(map(len, columns.values()))):
        step = (restart or {}).get(row, step)
        values = {name: items[row] for name, items in columns.items() if row < len(items)}
        table.add(step, {k: _rounded(v, digits) for k, v in values.items() if v is not None})
        step += every
    return Log(
        source,
        Path("log"),
        table,
        unit=unit,
        signals=dict(signals or {}),
        events=events or [],
        facts=facts,
        lines=len(table),
        used=len(table),
    )


def diagnosed(case: Log) -> Report:
    """What all checks say about it."""
    engine = Engine(strict=True)
    engine.run(LogStream(case).records())
    return Report.from_engine(engine, command="diagnose")


def told(report: Report, least: str = "warning") -> list[str]:
    """`HD101 error @51` of everything at this severity or above."""
    order = ["info", "warning", "error"]
    return [
        f"{item.code} {item.severity} @{item.step}"
        for item in report.findings
        if order.index(str(item.severity)) >= order.index(least)
    ]


def _rounded(value: float, digits: int | None) -> float:
    return value if digits is None else round(value, digits)
