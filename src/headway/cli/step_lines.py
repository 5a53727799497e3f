"""A line a step while a script runs: loss, gradient norm, rate, and how many gradients are zero or
not finite. Told beside the output."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from headway.core.numbers import say
from headway.core.records import Record, StepRecord
from headway.sinks.page import Page


class StepLines:
    """Prints every n-th step."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._page = Page(sys.stderr)

    def banner(self) -> None:
        """What it runs on."""
        from headway.cli.torch_facts import torch_facts

        facts = torch_facts()
        devices = ", ".join(f"{item['device']} {item['name']}" for item in facts["devices"])
        said = f"torch {facts['version']} on {devices}, {facts['threads']} threads"
        self._page.line((said, "dim"), rest="  ")

    def __call__(self, record: Record) -> None:
        if not isinstance(record, StepRecord) or record.step % self._interval:
            return
        values = record.values
        told = [f"step {record.step:>4}"]
        for name, word in (("loss", "loss"), ("grad_norm", "grad norm"), ("lr", "lr")):
            if name in values:
                told.append(f"{word} {say(values[name], 4)}")
        if values.get("clip_coef", 1.0) < 1.0:
            told.append(f"clipped to {say(values['grad_norm'] * values['clip_coef'], 3)}")
        norms = record.columns.get("param/grad_norm")
        if norms is not None and len(norms.values) > 1:
            told.append(f"tensors {_range(norms.values)}")
            told.append(f"zero {sum(norm == 0 for norm in norms.values)}/{len(norms.values)}")
            bad = sum(not math.isfinite(norm) for norm in norms.values)
            told.append(f"NaN/Inf {bad}/{len(norms.values)}")
        if record.held:
            told.append("held back")
        print("  ".join(told), file=sys.stderr, flush=True)


def _range(norms: Sequence[float]) -> str:
    """The smallest and the largest that are numbers."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return f"{say(min(finite), 2)}–{say(max(finite), 2)}" if finite else "none finite"
