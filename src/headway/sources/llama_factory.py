"""`trainer_log.jsonl` of LLaMA-Factory: the Trainer's own rows, without the gradient norm."""

from __future__ import annotations

from pathlib import Path

from headway.sources.jsonl import finish, first_rows
from headway.sources.log.json_rows import JsonRows
from headway.sources.log.lines import blocks
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.table import Table
from headway.sources.log.trainer_signals import describe_trainer

FORMAT = "llama-factory"
SAYS = "LLaMA-Factory trainer_log.jsonl"

_NO_SIGNAL = ("percentage", "throughput", "epoch")


def recognise(sample: Sample) -> float:
    """Sure of lines that have both `current_steps` and `total_steps`."""
    lines, rows = first_rows(sample)
    own = [row for row in rows if "current_steps" in row and "total_steps" in row]
    return len(own) / len(lines) if lines else 0.0


def read(path: Path) -> Log:
    """The whole of it."""
    log = Log(FORMAT, path, Table())
    rows = JsonRows(log)
    for lines in blocks(path):
        rows.add_lines(lines)
    rows.finish()
    finish(log)
    total = log.table.series.get("total_steps")
    if total is not None and total.values[-1] == total.values[-1]:
        log.facts["max_steps"] = int(total.values[-1]) if abs(total.values[-1]) < 1e18 else 0
    describe_trainer(log)
    for name in _NO_SIGNAL:
        log.signals.pop(name, None)
    return log
