"""Prints a report in the terminal: verdict, coverage, causes, checkpoints, checks that did not
run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headway.core.findings import Finding, Remedy, Severity
from headway.core.numbers import say_bytes
from headway.output.display_text import shorten_local_paths
from headway.output.terminal import StyledText, TerminalPage
from headway.output.view import (
    CauseView,
    ReportView,
    find_missing_signal,
    format_where,
    summarize_not_run,
)

if TYPE_CHECKING:
    pass


# What stands between a verdict and its causes: the curve of the loss, the table of checkpoints.

SHOWN_CHECKPOINTS = 12
"""Checkpoints in the table; the last ones, and all that are not clean up to as many again."""
MIN_CURVE_POINTS = 8
"""A curve of fewer says nothing."""
_CHECKPOINT_STYLES = {"clean": "green", "empty": "yellow"}


def write_checkpoint_table(
    page: TerminalPage, found: Sequence[Mapping[str, Any]], *, verbose: bool
) -> None:
    """A table of the checkpoints that were looked through."""
    shown = list(found)
    if not verbose and len(shown) > SHOWN_CHECKPOINTS:
        bad = [item for item in shown[:-SHOWN_CHECKPOINTS] if not item["clean"]][:SHOWN_CHECKPOINTS]
        shown = [*bad, *shown[-SHOWN_CHECKPOINTS:]]
    common = _common_folder([item["path"] for item in shown])
    page.gap()
    head = f"{'step':>9}  {'tensors':>8}  {'size':>10}  {'NaN/Inf':>9}  {'':<12}  checkpoint"
    page.line((head, "dim"))
    for item in shown:
        step = "-" if item["step"] is None else str(item["step"])
        numbers = (
            f"{step:>9}  {item['tensors']:>8}  {say_bytes(item['bytes']):>10}  "
            f"{item['nonfinite']:>9}  "
        )
        mark = page.mark("good" if item["clean"] else "error")
        style = _CHECKPOINT_STYLES.get(item["verdict"], "bold red")
        name = item["path"][len(common) :]
        # A long path stands in a line of its own, near the margin.
        margin = " " * (4 if len(name) > page.width - 60 else 60)
        page.line(numbers, (f"{mark} {item['verdict']:<10}", style), f"  {name}", rest=margin)
    if len(shown) < len(found):
        page.line((f"and {len(found) - len(shown)} more; --verbose lists them", "dim"))


def _common_folder(paths: Sequence[str]) -> str:
    """The folder all of them lie in, which the table need not repeat."""
    folders = [path.rpartition(os.sep)[0] for path in paths]
    try:
        common = os.path.commonpath(folders) if all(folders) else ""
    except ValueError:  # on several drives
        return ""
    return common.rstrip(os.sep) + os.sep if common else ""


# A report as a person reads it: verdict, coverage, causes, what was not looked at.

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
MAX_SAME_CAUSES = 3
"""Causes of one code shown in full; the rest are counted."""


def verdict_line(report: ReportView, subject: str = "headway") -> list[StyledText]:
    """The first line: what is wrong, or that nothing is."""
    speaker = f"{subject}: "
    errors = _count(report.findings, Severity.ERROR)
    warnings = _count(report.findings, Severity.WARNING)
    if errors or warnings:
        told = ", ".join(
            _plural(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n
        )
        said: list[StyledText] = [
            speaker,
            (told, SEVERITY_STYLES["error" if errors else "warning"]),
        ]
        if report.causes:
            said += ["; most likely cause: ", (_title(report.causes[0].root), "bold")]
        return said
    if report.coverage.ran * 4 <= report.coverage.of:
        # Silence must not read as health.
        return [
            speaker,
            ("healthy", "yellow"),
            ", as far as the few checks that could run can tell",
        ]
    remarks = len(report.findings)
    also = f" ({_plural(remarks, 'remark')})" if remarks else ""
    return [speaker, ("healthy", "bold green"), also]


def coverage_line(report: ReportView) -> str:
    """The second line: how much could be looked at, and what would let more be."""
    told = f"{report.coverage.ran} of {report.coverage.of} checks could run"
    best = find_missing_signal(report.not_run)
    return told if best is None else f"{told}; log {best[0]} to unlock {best[1]}"


@dataclass
class ReportPrinter:
    """Writes one report onto a page."""

    page: TerminalPage
    verbose: bool = False
    _said: set[str] = field(default_factory=set, init=False)
    """Remedies already on the page."""

    def write(
        self,
        report: ReportView,
        subject: str = "headway",
        *,
        picture: Callable[[TerminalPage], None] | None = None,
    ) -> None:
        """Everything but the last line, which belongs to the command.

        `picture` draws what comes between the verdict and the causes.
        """
        self._said.clear()
        self.page.line(*verdict_line(report, subject), rest="  ")
        self.page.line((coverage_line(report), "dim"), rest="  ")
        for note in report.notes:
            self.page.line((f"note: {note}", "dim"), rest="  ")
        if picture is not None:
            picture(self.page)
        for _, alike in groupby(report.causes, key=lambda cause: cause.root.code):
            self._causes(list(alike))
        self._not_run(report)

    def _causes(self, alike: Sequence[CauseView]) -> None:
        shown = len(alike) if self.verbose else MAX_SAME_CAUSES
        for cause in alike[:shown]:
            self.page.gap()
            self._finding(cause.root, full=cause.root.severity > Severity.INFO)
            if cause.symptoms:
                self.page.line(("It explains:", "dim"), first="  ")
            for symptom in cause.symptoms:
                self._finding(symptom, full=False, margin="    ")
        if folded := alike[shown:]:
            steps = [str(cause.root.step) for cause in folded if cause.root.step is not None]
            at = f" (steps {steps[0]} to {steps[-1]})" if len(steps) > 1 else ""
            self.page.gap()
            self.page.line(
                (
                    f"and {len(folded)} more of {alike[0].root.code}{at}; --verbose lists them",
                    "dim",
                ),
                first="  ",
            )

    def _finding(self, finding: Finding, *, full: bool, margin: str = "") -> None:
        level = str(finding.severity)
        step = "" if finding.step is None else f"  step {finding.step}"
        self.page.line(
            (self.page.mark(level), SEVERITY_STYLES[level]),
            " ",
            (_title(finding), "bold"),
            (step, "dim"),
            first=margin,
            rest=margin + "  ",
        )
        inner = margin + "  "
        message = shorten_local_paths(finding.message)
        self.page.line(message, first=inner)
        if again := _format_repeats(finding):
            self.page.line((again, "dim"), first=inner)
        place = shorten_local_paths(format_where(finding.where))
        if place and place not in message:
            self.page.line((f"at {place}", "cyan"), first=inner)
        if full or self.verbose:
            self._remedies(finding.remedies, inner)

    def _remedies(self, remedies: Iterable[Remedy], margin: str) -> None:
        for remedy in remedies:
            if remedy.text in self._said and not remedy.tested:
                continue  # said once is enough
            self._said.add(remedy.text)
            style, tried = _format_trial(remedy)
            self.page.line(
                (f"{self.page.mark('do')} ", "green"),
                remedy.text,
                (tried, style),
                first=margin,
                rest=margin + "  ",
            )

    def _not_run(self, report: ReportView) -> None:
        if not report.not_run:
            return
        self.page.gap()
        if self.verbose:
            self.page.line(("Not run", "bold"))
            for item in report.not_run:
                self.page.line((item.code, "bold"), f"  {item.reason}", first="  ", rest=" " * 9)
            return
        told = ", ".join(f"{count} {why}" for why, count in summarize_not_run(report.not_run))
        total = _plural(len(report.not_run), "check")
        mostly = f" ({told})" if told else ""
        self.page.line((f"Not run: {total}{mostly}; --verbose lists them", "dim"), rest="  ")


def _format_trial(remedy: Remedy) -> tuple[str, str]:
    if not remedy.tested:
        return "", ""
    if remedy.cured:
        return "bold green", " (tested on the failing step: cured)"
    return "dim", " (tested on the failing step: did not help)"


def _format_repeats(finding: Finding) -> str:
    count = finding.evidence.get("count")
    last = finding.evidence.get("last_step")
    if not isinstance(count, int) or count < 2 or not isinstance(last, int):
        return ""
    return f"{count} times, last at step {last}"


def _title(finding: Finding) -> str:
    return f"{finding.code} {finding.name}"


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(item.severity == severity for item in findings)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
