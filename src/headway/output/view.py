"""A report as plain data, built once: the verdict and the coverage in the words all renderers use.

The console, the HTML report, the live page and the notebook lay this out and add no words of their
own. `incident_view.py` does the same for an incident.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway import registry
from headway.core.findings import (
    Finding,
    NotRun,
    Remedy,
    Severity,
    Where,
    say_line,
    say_module,
)
from headway.core.numbers import plural
from headway.core.signals import axis_of

# What a renderer needs of a report, as protocols: output does not import the class.


class CoverageView(Protocol):
    """How many checks ran, and of how many."""

    @property
    def ran(self) -> int: ...
    @property
    def of(self) -> int: ...


class CauseView(Protocol):
    """A finding that nothing else explains, with those it explains."""

    @property
    def root(self) -> Finding: ...
    @property
    def symptoms(self) -> Sequence[Finding]: ...


class RunLine(Protocol):
    """One of several runs in a store or folder."""

    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def steps(self) -> int | None: ...


class SuppressedView(Protocol):
    """A finding that a comment or the baseline accepts."""

    @property
    def finding(self) -> Finding: ...
    @property
    def by(self) -> str: ...
    @property
    def reason(self) -> str: ...


class UnusedSuppressionView(Protocol):
    """A comment that suppresses nothing."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def why(self) -> str: ...


class ReportView(Protocol):
    """The findings, their causes, and the checks that did not run."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def causes(self) -> Sequence[CauseView]: ...
    @property
    def not_run(self) -> Sequence[NotRun]: ...
    @property
    def coverage(self) -> CoverageView: ...
    @property
    def verdict(self) -> str: ...
    @property
    def looked_at(self) -> str: ...
    @property
    def too_little(self) -> str: ...
    @property
    def not_shown(self) -> str: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def runs(self) -> Sequence[RunLine]: ...
    @property
    def suppressed(self) -> Sequence[SuppressedView]: ...
    @property
    def unused_suppressions(self) -> Sequence[UnusedSuppressionView]: ...
    def to_dict(self) -> dict[str, Any]: ...


class SourcedReportView(ReportView, Protocol):
    """A report that also names the files it was read from."""

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]: ...


# The verdict.

VERDICT_WORDS = {
    "error": "Error",
    "warning": "Warning",
    "unsure": "Few checks ran",
    "unknown": "Unknown",
    "healthy": "Healthy",
    "reading": "Reading",
    "failed": "Failed",
    "interrupted": "Interrupted",
}
"""A level, and the word for it."""
FEW_CHECKS = 4
"""A report without findings is `unsure` if fewer than one in this many checks ran."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a run."""

    level: str
    """`error`, `warning`, `unsure` (no findings, but few checks ran), `unknown` (too little could
    be looked at), `interrupted` (and nothing else to report) or `healthy`."""
    counts: str
    """`2 errors, 1 warning`; empty without either."""
    cause: str
    """`HD101 nonfinite-loss`, the most likely cause; empty without one."""
    sentence: str
    """What happened at which step and why, or that no problems were found."""
    coverage: str
    """How many checks ran, and what would let more of them run."""
    ending: str = ""
    """`failed` or `interrupted`; empty if the run ended in good order or is still going."""

    @property
    def word(self) -> str:
        return VERDICT_WORDS[self.ending or self.level]


def verdict_of(report: ReportView) -> Verdict:
    """The verdict, in the words that every renderer uses."""
    # One cause is one problem, however many symptoms it has.
    problems = [cause.root for cause in report.causes] or report.findings
    counts = {
        word: sum(item.severity == severity for item in problems)
        for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
    }
    level = next((word for word, count in counts.items() if count), "")
    count_text = ", ".join(plural(count, word) for word, count in counts.items() if count)
    ending = report.verdict if report.verdict in ("failed", "interrupted") else ""
    if level or ending:
        root = report.causes[0].root if report.causes else report.findings[0]
        cause = finding_title(root) if report.causes and level else ""
        sentence = _cause_sentence(root)
        return Verdict(
            level or ending, count_text, cause, sentence, coverage_text(report), ending=ending
        )
    ran, of = report.coverage.ran, report.coverage.of
    inside = f" in {report.looked_at}" if report.looked_at else ""
    if report.verdict == "unknown":
        sentence = f"Unknown: {report.too_little}."
        return Verdict("unknown", "", "", sentence, coverage_text(report))
    if ran * FEW_CHECKS <= of:
        few = f"only {ran} of {of} checks had the data they need"
        sentence = f"No problems found{inside}, but {few}."
        return Verdict("unsure", "", "", sentence, coverage_text(report))
    return Verdict("healthy", "", "", f"No problems found{inside}.", coverage_text(report))


def _cause_sentence(root: Finding) -> str:
    at = "" if root.step is None else f" at step {root.step}"
    # The explanation, if the step was re-run, says more than the symptom.
    why = root.evidence.get("why")
    return f"{finding_title(root)}{at}: {why if isinstance(why, str) and why else root.message}"


def finding_title(finding: Finding) -> str:
    """`HD101 nonfinite-loss`."""
    return f"{finding.code} {finding.name}"


SHOWN_STEPS = 6
"""Steps of a repeated finding that a line lists."""


def repeats_text(finding: Finding) -> str:
    """`4 times: steps 125, 325, 525, 725`; empty for a finding that occurred once."""
    if finding.count < 2:
        return ""
    steps = [str(step) for step in finding.occurred_at]
    listed = ", ".join(steps[:SHOWN_STEPS])
    last = finding.evidence.get("last_step")
    if len(steps) == 1 and last == finding.occurred_at[0]:  # attempts that end alike
        return f"{finding.count} times, at step {last}"
    if finding.count > min(len(steps), SHOWN_STEPS):
        listed += f", … {last}" if isinstance(last, int) else ", …"
    return f"{finding.count} times: steps {listed}"


def trial_text(remedy: Remedy) -> str:
    """What came of a remedy on the failing step; empty if it was not tested."""
    if not remedy.tested:
        return ""
    return f"tested on the failing step: {'cured' if remedy.cured else 'did not help'}"


def format_where(where: Where, *, column: int | None = None, message: str = "") -> str:
    """The location of a finding as text; empty if nothing is known.

    `message`: what is printed beside it, so that a row of the batch is not named twice.
    """
    parts = []
    if where.file:
        function = where.function if where.function != "<module>" else ""
        inside = f" in {function}" if function else ""
        parts.append(say_line(where.file, where.line, column) + inside)
    if where.module:
        parts.append(say_module(where.module))
    if where.op:
        parts.append(f"op {where.op}")
    if where.sample is not None and f"row {where.sample}" not in message:
        parts.append(f"sample {where.sample}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    return ", ".join(parts)


# Coverage: which checks did not run, and which signal would let most of them run.

FAMILY_SUBJECTS = {
    "HD1": "the loss",
    "HD2": "gradients",
    "HD3": "weights and activations",
    "HD4": "the optimizer",
    "HD5": "the data",
    "HD8": "memory and speed",
}
"""What a family of checks is about, for those that matter for every run."""
MIN_CHECKS_GAINED = 2
"""One check more is no reason to log another signal."""
_NEEDS_ALL = re.compile(r"^needs (?P<names>.+), which this source does not have$")
_NEEDS_ONE = re.compile(r"^needs one of (?P<names>.+), but this source has none of them$")
_OPTIONAL_SIGNALS = {
    "clip_coef",
    "component_grad/*",
    "ending",
    "grad_nonfinite",
    "grad_nonfinite_tensors",
    "grads_carried",
    "incident",
    "loss/*",
    "loss_scale",
    "micro_batches",
    "optimizers",
    "scaler_skipped",
}
"""Signals that only some runs have (clipping, loss scaling), so users are not asked to log them.
Columns over all parameters are not suggested either: no other tool logs them."""


def coverage_text(report: ReportView) -> str:
    """What was looked at, how many checks ran, and which signal would let more of them run."""
    # Without findings the verdict says it.
    seen = f"{report.looked_at}; " if report.looked_at and report.findings else ""
    text = f"{seen}{report.coverage.ran} of {report.coverage.of} checks could run"
    best = find_missing_signal(report.not_run)
    if best is not None:
        text += f"; {best[1]} more need `{best[0]}` in the log"
    known = suppressed_text(report)
    return f"{text}; {known}" if known else text


def suppressed_text(report: ReportView) -> str:
    """`3 findings suppressed (2 by a comment, 1 by the baseline)`; empty without any."""
    by = Counter(item.by for item in report.suppressed)
    if not by:
        return ""
    words = {"comment": "by a comment", "baseline": "by the baseline"}
    parts = ", ".join(f"{by[kind]} {word}" for kind, word in words.items() if by[kind])
    return f"{plural(by.total(), 'finding')} suppressed ({parts})"


def blind_spots(report: ReportView) -> str:
    """What the data could not show: the families of which no check could run."""
    missing = {item.code for item in report.not_run}
    families: dict[str, bool] = {}
    for check in registry.all_checks():
        family = FAMILY_SUBJECTS.get(check.code[:3])
        if family is not None:
            families[family] = families.get(family, False) or check.code not in missing
    unseen = [family for family, seen in families.items() if not seen]
    return f"Not looked at: {', '.join(unseen)}." if unseen else ""


def find_missing_signal(not_run: Iterable[NotRun]) -> tuple[str, int] | None:
    """The signal whose absence keeps most checks from running, and the number of these checks."""
    counts = Counter(
        name
        for item in not_run
        for name in _sufficient_signals(item.reason)
        if name not in _OPTIONAL_SIGNALS and axis_of(name) is None
    )
    # Ties are broken by name, so that the same log always gives the same advice.
    best = min(counts.items(), key=lambda pair: (-pair[1], pair[0]), default=("", 0))
    return best if best[1] >= MIN_CHECKS_GAINED else None


def _sufficient_signals(reason: str) -> list[str]:
    """The signals each of which would let the check run on its own."""
    if match := _NEEDS_ONE.match(reason):
        return match["names"].split(", ")
    if match := _NEEDS_ALL.match(reason):
        names = match["names"].split(", ")
        return names if len(names) == 1 else []
    return []


def group_not_run(not_run: Iterable[NotRun]) -> list[tuple[str, list[str]]]:
    """(reason, codes) of the checks that did not run, the most frequent reason first."""
    by_reason: dict[str, list[str]] = {}
    for item in not_run:
        by_reason.setdefault(item.reason, []).append(item.code)
    return sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
