from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.checks.nonfinite_rows import NonfiniteRowsCheck
from headway.core.check import Needs
from headway.core.facts import LISTED
from headway.core.findings import Finding, Severity, Where
from headway.core.incident_events import TRACED, read_traced
from headway.core.numbers import plural, say
from headway.core.records import EventRecord, StepRecord, record_at
from headway.core.signals import Signal

SEARCH = 20
"""In a log: first rows in which a scaler may still search for its scale."""
MIDDLE = 1000
"""In a log: if it starts after this step, it does not show the beginning of the run."""


class NonfiniteGradient(NonfiniteRowsCheck):
    """A gradient contains NaN or Inf.

    ## What it checks
    The global gradient norm of every step: it is non-finite as soon as one element is.

    ## Why it matters
    One optimizer step with it destroys the weights and the optimizer state permanently. Clipping
    cannot help: a NaN norm turns every gradient into NaN, an infinite one turns the healthy
    gradients into 0.

    ## How it is measured
    `isfinite` on the norm. If the norms of the single gradients are known, the message names the
    non-finite ones. Backward runs from the output to the input, so the one nearest the output (the
    last in the list of parameters) is where it entered. If every single norm is finite and only the
    total is infinite, the sum overflowed and no element is non-finite. The log of another tool is
    read to its end first: a norm that stays non-finite up to the last row is an error, one that
    recovers is not.

    ## False alarms
    A step that a GradScaler skips is its normal search for a scale and is not reported, unless the
    skips do not end (20 in a row) or continue at a scale below 1, where scaling can no longer be
    what overflows, or a trace of the step shows an op whose derivative is infinite at its input,
    which no scale changes. In a log, one or two rows that recover are information if a loss scale,
    an infinity or the beginning of the run points to a scaler, and otherwise a warning.

    ## What to do
    If the loss is non-finite too, fix the loss. If it is finite, look for an op with an infinite
    derivative at a finite value: `sqrt` or `norm` at 0, a `where` that hides a NaN branch (its
    gradient is 0 · NaN), an overflow in float16. Protect the input of the op, not its output.

    ## References
    pytorch/pytorch#68425 (`where` and NaN gradients); PyTorch, "Automatic Mixed Precision
    examples".
    """

    code = "HD201"
    name = "nonfinite-gradient"
    severity = Severity.ERROR
    summary = "a gradient contains NaN or Inf"
    needs = Needs(
        signals=("grad_norm",), nonfinite=True, kinds=(StepRecord, EventRecord), events=(TRACED,)
    )
    explains = ("HD301", "HD408", "HD101", "HD414", "HD701")
    yields_to = ("HD301", "HD408", "HD101")

    @dataclass(frozen=True)
    class Limits:
        scaler_skips: int = 20
        """Consecutive steps that a GradScaler may skip while it searches for its scale."""

    def start(self) -> None:
        super().start()
        self.seen = 0
        """In the log of another tool: rows so far, with or without a norm."""
        self.skips_in_a_row = 0
        self.infinite_slope_at: int | None = None
        """The last step in which an op was seen whose derivative is infinite at its input."""

    def observe(self, record: StepRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            traced = read_traced(record)
            if traced is not None and traced.has_infinite_slope:
                self.infinite_slope_at = record.step
            return
        for name, norm in record.family("grad_norm"):
            if math.isfinite(norm):
                self.finite_before += 1
                self.skips_in_a_row = 0
                self.infinite_slope_at = None
            elif not self._scaler_searches(record, name):
                yield self._finding(record, name, norm)

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        """For a log: collect the non-finite rows, and report them once it is clear how they end."""
        self.seen += 1
        norm = record.values.get("grad_norm")
        if norm is None and not self._run_continues(record):
            return
        if norm is None or math.isfinite(norm):
            yield from self.finite_row()
            return
        losses = [value for _, value in record.family("loss")]
        bad_loss = any(not math.isfinite(value) for value in losses)
        episode = self.nonfinite_row(
            record,
            norm=norm,
            bad_loss=bad_loss,
            good_loss=bool(losses) and not bad_loss and 0 not in losses,
            nan=False,
            skipped=0,
            before=self.finite_before or self.seen - 1,
        )
        episode["nan"] = episode["nan"] or math.isnan(norm)
        episode["skipped"] += record.values.get("scaler_skipped", 0.0) > 0

    def _run_continues(self, record: StepRecord) -> bool:
        """Whether a row without a norm shows that a run continues that logs only bad norms."""
        if self.episode is None or self.finite_before:
            return False
        losses = [value for _, value in record.family("loss")]
        return bool(losses) and all(math.isfinite(value) and value for value in losses)

    def report(self, episode: dict[str, Any], *, came_back: bool) -> Iterable[Finding]:
        header = self.context.header
        signal = header.signals.get("grad_norm", Signal())
        scaled = "loss_scale" in header.signals or "scaler_skipped" in header.signals
        half = (
            any(
                word in str(header.facts.get("precision", "")).lower()
                for word in ("fp16", "float16")
            )
            and "bf16" not in str(header.facts.get("precision", "")).lower()
        )
        rows = episode["rows"]
        within = f", somewhere within the last {signal.span} steps" if signal.span > 1 else ""
        if signal.per_label > 1:
            within = ", somewhere in this epoch"
        message = f"grad_norm is {say(episode['norm'])}{within}"
        remedies = []
        severity = None
        # A scaler that searches for its scale: one or two infinities, also at the end of the log.
        searches = rows <= 2 and (scaled or half) and (came_back or episode["skipped"] == rows)
        # At the beginning NaN is as common as Inf if the loss is finite: if these steps had been
        # applied, the weights would not have recovered.
        begins = episode["before"] + rows <= SEARCH and episode["good_loss"]
        if searches or (came_back and (begins or (rows <= 2 and not episode["nan"]))):
            severity = Severity.INFO
            message += (
                "; it is finite again later, as with a loss scaler that searches for its scale"
            )
        elif came_back:
            severity = Severity.WARNING
            message += f"; it is finite again after {rows} row{'s' * (rows > 1)}"
            remedies.append(
                "The run recovered, so these steps were skipped or never reached the weights: "
                "inspect their batches."
            )
        else:
            message += f" and in all {rows} rows to the end of the log" if rows > 1 else ""
            if episode["bad_loss"]:
                remedies.append(LOSS_TOO)
            elif episode["good_loss"]:
                remedies.append(INFINITE_SLOPE)
            if (
                not self.finite_before
                and episode["before"] <= SEARCH
                and record_at(episode["at"]).step <= MIDDLE
            ):
                remedies.append(FIRST)
            else:
                remedies.append(
                    "Resume from a checkpoint before this step that `headway scan` reports as "
                    "clean. Clipping does not help: a NaN norm turns every gradient into NaN."
                )
        yield self.find(
            record_at(episode["at"]),
            message,
            subject="grad_norm",
            severity=severity,
            remedies=remedies,
            norm=episode["norm"],
            rows=rows,
            span=signal.span,
            recovered=came_back,
            finite_before=self.finite_before,
        )

    def _scaler_searches(self, record: StepRecord, name: str) -> bool:
        if not record.values.get(name.replace("grad_norm", "scaler_skipped")):
            return False
        self.skips_in_a_row += 1
        if self.infinite_slope_at is not None:
            return record.step < self.infinite_slope_at
        scale = record.values.get(name.replace("grad_norm", "loss_scale"), math.inf)
        return scale >= 1 and self.skips_in_a_row <= self.limits.scaler_skips

    def _finding(self, record: StepRecord, name: str, norm: float) -> Finding:
        column = record.columns.get("param/grad_norm")
        norms = column.items() if column is not None else ()
        nonfinite = sorted(at for at, norm_there in norms if not math.isfinite(norm_there))
        overflow = self._overflowed(record, norm, known=column is not None, nonfinite=nonfinite)
        nearest = self.context.name("param", nonfinite[-1]) if nonfinite else None
        extent = self._extent(record, nonfinite, nearest, overflow=overflow)
        skipped = "; update skipped, weights unchanged" if record.held else ""
        return self.find(
            record,
            f"{name} is {say(norm)}{extent}{skipped}",
            subject=name,
            where=Where(module=nearest, rank=record.rank or None),
            remedies=self._remedies(record, overflow=overflow),
            norm=norm,
            tensors=[self.context.name("param", at) for at in nonfinite[-1 : -LISTED - 1 : -1]],
            tensor_count=len(nonfinite) or record.values.get("grad_nonfinite_tensors"),
            element_count=record.values.get("grad_nonfinite"),
            held=record.held,
            finite_before=self.finite_before,
        )

    @staticmethod
    def _overflowed(record: StepRecord, norm: float, *, known: bool, nonfinite: list[int]) -> bool:
        if math.isnan(norm) or record.values.get("grad_nonfinite"):
            return False
        return (known and not nonfinite) or record.values.get("grad_nonfinite") == 0

    def _extent(
        self, record: StepRecord, nonfinite: list[int], nearest: str | None, *, overflow: bool
    ) -> str:
        if overflow:
            return ": all elements are finite, but the sum of their squares overflows"
        column = record.columns.get("param/grad_norm")
        if nearest is None or column is None:
            count = record.values.get("grad_nonfinite_tensors")
            said = plural(int(count or 0), "gradient", ("is", "are"))
            return f": {said} non-finite" if count else ""
        if len(column.values) == 1:
            return f": the only gradient, of {nearest}, is non-finite"
        if len(nonfinite) == len(column.values):
            return (
                f": all {len(nonfinite)} gradients are non-finite (first in backward order: "
                f"{nearest})"
            )
        return (
            f": {len(nonfinite)} of {len(column.values)} gradients are non-finite "
            f"(first in backward order: {nearest})"
        )

    def _remedies(self, record: StepRecord, *, overflow: bool) -> list[str]:
        remedies = []
        losses = [value for _, value in record.family("loss")]
        if overflow:
            remedies.append("The gradients are finite but very large: find what makes them grow.")
        elif any(not math.isfinite(value) for value in losses):
            remedies.append(LOSS_TOO)
        elif losses:
            remedies.append(INFINITE_SLOPE)
        if self.finite_before == 0:
            remedies.append(FIRST)
        if not record.held and not record.values.get("scaler_skipped"):
            remedies.append(
                "The weights were updated with it, with or without clipping: resume from the "
                "last checkpoint before this step."
            )
        return remedies


LOSS_TOO = "The loss is non-finite too: fix the loss first, the gradient follows from it."
INFINITE_SLOPE = (
    "The loss is finite, so an op has an infinite derivative: sqrt or norm at 0, a "
    "`where` that hides a NaN branch, an overflow in float16. Protect the input of "
    "that op."
)
FIRST = (
    "The first gradient is already non-finite, so the learning rate is not the cause: check "
    "the input, the labels and the initial weights."
)
