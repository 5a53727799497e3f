from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import StepRecord, moment_of, record_at
from headway.core.signals import Signal

BACK = 2
"""So many finite losses in a row after a bad one, and the run has come back."""


class NonfiniteLoss(Check):
    """The loss, or one of its named components, is NaN or infinite.

    ## What it checks
    Every loss for NaN, +Inf and -Inf. A named component alone (the mean over an empty selection,
    left out of the sum) is no fault, unless the log has no total.

    ## Why it matters
    The gradient of a non-finite loss is non-finite nearly everywhere. One optimizer step with it
    destroys the weights and the moments, and every later step is NaN too.

    ## How it is measured
    `isfinite` on the value of each step. Where components are known, the ones that are themselves
    non-finite are named: the total is only their sum. The log of another tool is read to its end
    first: a loss that is finite again later is a warning, and so is one that stays NaN while every
    gradient norm beside it is finite. A mean over N steps says that it happened within them.

    ## False alarms
    None on a per-step loss. In some loggers (Hugging Face without `logging_nan_inf_filter`) one bad
    batch makes every later mean NaN although the run is well: the gradient norms tell. Sources that
    filter their loss do not feed this check.

    ## What to do
    Find where the number was born: the op, the batch, or weights that were already bad. If the very
    first loss is non-finite the learning rate is innocent; look at the input, the labels and the
    initial weights. Holding the update back saves the weights. Clipping does not: a NaN norm turns
    every gradient NaN.

    ## References
    PyTorch, "Automatic Mixed Precision examples"; `torch.autograd.set_detect_anomaly`.
    """

    code = "HD101"
    name = "nonfinite-loss"
    severity = Severity.ERROR
    summary = "loss is NaN or Inf"
    needs = Needs(any_of=("loss", "loss/*"), nonfinite=True)
    explains = ("HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD104", "HD701")
    yields_to = ("HD301", "HD302", "HD408")

    def start(self) -> None:
        self.finite_before = 0
        self.episode: dict[str, Any] | None = None
        """In a log of another tool: the bad losses since the last good ones."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if self.context.header.foreign:
            yield from self._follow(record)
            return
        for name, value in record.family("loss"):
            if math.isfinite(value):
                self.finite_before += 1
                continue
            guilty = _guilty(record)
            source = f" (component {', '.join(guilty)})" if guilty else ""
            yield self.find(
                record,
                f"{name} is {say(value)}{source}"
                + ("; the update was held back, weights are as before" if record.held else ""),
                subject=name,
                remedies=self._remedies(record),
                value=value,
                components=guilty,
                held=record.held,
                finite_before=self.finite_before,
            )

    def finish(self) -> Iterable[Finding]:
        if self.episode is not None:
            yield self._told(self.episode)
            self.episode = None

    def _remedies(self, record: StepRecord) -> list[str]:
        if self.finite_before == 0:
            return [FIRST]
        remedies = [ORIGIN]
        if not record.held:
            remedies.append(
                "Weights were updated with it: go on from the last checkpoint before this step."
            )
        return remedies

    def _follow(self, record: StepRecord) -> Iterable[Finding]:
        """Of a log: gather the bad rows, and say how it went on."""
        value = record.values.get("loss")
        if value is None and "loss" not in self.context.header.signals:
            parts = [part for key, part in record.values.items() if key.startswith("loss/")]
            value = next((part for part in parts if not math.isfinite(part)), None)
            value = parts[0] if value is None and parts else value
        if value is None:
            return
        if math.isfinite(value):
            if self.episode is None:
                self.finite_before += 1
                return
            self.episode["good"] += 1
            if self.episode["good"] >= BACK:
                yield self._told(self.episode, came_back=True)
                self.finite_before += self.episode["good"]
                self.episode = None
            return
        norm = record.values.get("grad_norm")
        if self.episode is None:
            self.episode = {
                "at": moment_of(record),
                "value": value,
                "components": _guilty(record),
                "rows": 0,
                "good": 0,
                "norms": 0,
                "finite_norms": 0,
            }
        self.episode["rows"] += 1
        self.episode["good"] = 0
        self.episode["norms"] += norm is not None
        self.episode["finite_norms"] += norm is not None and 0 < norm < math.inf

    def _told(self, episode: dict[str, Any], *, came_back: bool = False) -> Finding:
        signal = self.context.header.signals.get("loss", Signal())
        rows, parts = episode["rows"], episode["components"]
        # Where each value is one step's own, its gradient cannot be finite: two rows must agree.
        enough = 1 if signal.span > 1 else 2
        alive = rows >= enough and episode["finite_norms"] == episode["norms"] == rows
        source = f" (component {', '.join(parts)})" if parts else ""
        within = f": it happened within the last {signal.span} steps" if signal.span > 1 else ""
        if signal.per_label > 1:
            within = ": it happened in this epoch"
        said = f"loss is {say(episode['value'])}{source} here{within}"
        mild, remedies = True, [ORIGIN]
        if came_back:
            said += f"; after {rows} row{'s' * (rows > 1)} it was finite again by itself"
            remedies.append(
                "The run went on: a bad batch was skipped, or never reached the weights. Look at "
                "the batches of these steps before you train on them again."
            )
        elif alive:
            said += (
                f" and stays so for all {rows} rows that follow, while every gradient norm beside "
                "it is finite: likely one bad batch that the logger's mean never forgets"
            )
            remedies.append(
                "A gradient of NaN weights would be NaN: confirm it with a scan of the last "
                "checkpoint, and look at the batches of these steps."
            )
        else:
            mild = False
            said += f" and in all {rows} rows to the end of the log" if rows > 1 else ""
            if self.finite_before == 0:
                remedies = [FIRST]
            else:
                remedies.append(
                    "Go on from a checkpoint before this step that a scan shows to be clean."
                )
        return self.find(
            record_at(episode["at"]),
            said,
            subject="loss",
            severity=Severity.WARNING if mild else None,
            remedies=remedies,
            value=episode["value"],
            components=parts,
            rows=rows,
            span=signal.span,
            recovered=came_back,
            finite_before=self.finite_before,
        )


def _guilty(record: StepRecord) -> list[str]:
    return [
        key.removeprefix("loss/")
        for key, part in record.values.items()
        if key.startswith("loss/") and not math.isfinite(part)
    ]


FIRST = (
    "The very first loss is already non-finite, so the learning rate is innocent: look at the "
    "input, the labels and the initial weights."
)
ORIGIN = (
    "Find the op that made it: log, sqrt, division or exp near its singular point, or an overflow "
    "in half precision."
)
