"""A report as a person reads it: verdict, coverage, causes, what was not looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from headway.core.findings import Finding, Remedy, Severity, Where
from headway.sinks.coverage import in_short, unlocking
from headway.sinks.nearby import nearby
from headway.sinks.page import Page, Part
from headway.sinks.readable import ReadableCause, ReadableReport

STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
ALIKE = 3
"""Causes of one code shown in full; the rest are counted."""


def verdict(report: ReadableReport, subject: str = "headway") -> list[Part]:
    """The first line: what is wrong, or that nothing is."""
    speaker = f"{subject}: "
    errors = _count(report.findings, Severity.ERROR)
    warnings = _count(report.findings, Severity.WARNING)
    if errors or warnings:
        told = ", ".join(
            _many(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n
        )
        said: list[Part] = [speaker, (told, STYLES["error" if errors else "warning"])]
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
    also = f" ({_many(remarks, 'remark')})" if remarks else ""
    return [speaker, ("healthy", "bold green"), also]


def coverage(report: ReadableReport) -> str:
    """The second line: how much could be looked at, and what would let more be."""
    told = f"{report.coverage.ran} of {report.coverage.of} checks could run"
    best = unlocking(report.not_run)
    return told if best is None else f"{told}; log {best[0]} to unlock {best[1]}"


@dataclass
class ReportPage:
    """Writes one report onto a page."""

    page: Page
    verbose: bool = False
    _said: set[str] = field(default_factory=set, init=False)
    """Remedies already on the page."""

    def write(
        self,
        report: ReadableReport,
        subject: str = "headway",
        *,
        picture: Callable[[Page], None] | None = None,
    ) -> None:
        """Everything but the last line, which belongs to the command.

        `picture` draws what comes between the verdict and the causes.
        """
        self._said.clear()
        self.page.line(*verdict(report, subject), rest="  ")
        self.page.line((coverage(report), "dim"), rest="  ")
        for note in report.notes:
            self.page.line((f"note: {note}", "dim"), rest="  ")
        if picture is not None:
            picture(self.page)
        for _, alike in groupby(report.causes, key=lambda cause: cause.root.code):
            self._causes(list(alike))
        self._not_run(report)

    def _causes(self, alike: Sequence[ReadableCause]) -> None:
        shown = len(alike) if self.verbose else ALIKE
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
            (self.page.mark(level), STYLES[level]),
            " ",
            (_title(finding), "bold"),
            (step, "dim"),
            first=margin,
            rest=margin + "  ",
        )
        inner = margin + "  "
        message = nearby(finding.message)
        self.page.line(message, first=inner)
        if again := _again(finding):
            self.page.line((again, "dim"), first=inner)
        place = nearby(say_where(finding.where))
        if place and place not in message:
            self.page.line((f"at {place}", "cyan"), first=inner)
        if full or self.verbose:
            self._remedies(finding.remedies, inner)

    def _remedies(self, remedies: Iterable[Remedy], margin: str) -> None:
        for remedy in remedies:
            if remedy.text in self._said and not remedy.tested:
                continue  # said once is enough
            self._said.add(remedy.text)
            style, tried = _tried(remedy)
            self.page.line(
                (f"{self.page.mark('do')} ", "green"),
                remedy.text,
                (tried, style),
                first=margin,
                rest=margin + "  ",
            )

    def _not_run(self, report: ReadableReport) -> None:
        if not report.not_run:
            return
        self.page.gap()
        if self.verbose:
            self.page.line(("Not run", "bold"))
            for item in report.not_run:
                self.page.line((item.code, "bold"), f"  {item.reason}", first="  ", rest=" " * 9)
            return
        told = ", ".join(f"{count} {why}" for why, count in in_short(report.not_run))
        total = _many(len(report.not_run), "check")
        mostly = f" ({told})" if told else ""
        self.page.line((f"Not run: {total}{mostly}; --verbose lists them", "dim"), rest="  ")


def say_where(where: Where) -> str:
    """The place of a finding in words; empty when nothing is known of it."""
    parts = []
    if where.file:
        line = f":{where.line}" if where.line else ""
        function = f" in {where.function}" if where.function else ""
        parts.append(f"{where.file}{line}{function}")
    if where.module:
        parts.append(where.module)
    if where.op:
        parts.append(f"op {where.op}")
    if where.sample is not None:
        parts.append(f"sample {where.sample}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    return ", ".join(parts)


def _tried(remedy: Remedy) -> tuple[str, str]:
    if not remedy.tested:
        return "", ""
    if remedy.cured:
        return "bold green", " (tested on the failing step: cured)"
    return "dim", " (tested on the failing step: did not help)"


def _again(finding: Finding) -> str:
    count = finding.evidence.get("count")
    last = finding.evidence.get("last_step")
    if not isinstance(count, int) or count < 2 or not isinstance(last, int):
        return ""
    return f"{count} times, last at step {last}"


def _title(finding: Finding) -> str:
    return f"{finding.code} {finding.name}"


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(item.severity == severity for item in findings)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
