"""A report: findings, their causes, and the checks that could not run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import registry
from headway._version import __version__
from headway.config import Settings
from headway.core.ending_facts import ends_run
from headway.core.findings import Finding, Findings, NotRun, Severity
from headway.core.numbers import encode_numbers
from headway.core.records import StepRecord
from headway.diagnosis import Cause, merge_repeats
from headway.diagnosis import diagnose as find_causes
from headway.engine import Engine
from headway.errors import UsageError
from headway.suppression import Baseline, SuppressedFinding, UnusedSuppression, split_known

if TYPE_CHECKING:
    from headway.core.records import Record
    from headway.rundir.chart_data import ChartData

SCHEMA = 1
INTERRUPTION = "HD915"
"""The code of the finding that the run was stopped by the user or the scheduler."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many checks could run."""

    ran: int
    of: int

    def to_dict(self) -> dict[str, int]:
        return {"ran": self.ran, "of": self.of}

    def __str__(self) -> str:
        return f"{self.ran} of {self.of} checks could run"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a store or folder that contains several, in one line."""

    name: str
    verdict: str
    steps: int | None
    """The last step that was read."""
    cause: str = ""
    """`HD101 nonfinite-loss`, the most likely cause; empty without one."""
    step: int | None = None
    """Where the cause begins."""
    path: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a diagnosis, a scan or a preflight."""

    command: str
    findings: Sequence[Finding]
    causes: Sequence[Cause]
    not_run: Sequence[NotRun]
    coverage: Coverage
    notes: Sequence[str] = field(default=())
    """Remarks about the source: truncated lines, the parser used."""
    sources: Sequence[Mapping[str, Any]] = field(default=())
    """What was read: `path`, `format`, `lines` and `used` of a log; `path`, `format`, `step`,
    `tensors`, `bytes`, `nonfinite` and `clean` of a checkpoint."""
    curve: tuple[Sequence[int], Sequence[float]] | None = None
    """(steps, values) of the loss, for a plot."""
    subject: str = ""
    """The path that was read."""
    last_segment: int = 0
    """The last segment of the run: how an earlier one ended does not count as its end."""
    runs: Sequence[RunSummary] = field(default=())
    """All runs of a store or folder that contains several, the worst first; the findings are those
    of the first."""
    looked_at: str = ""
    """What was examined: `300 losses, steps 1 to 300`."""
    not_shown: str = ""
    """Which faults need more data, as a sentence."""
    too_little: str = ""
    """Why a report without findings shows nothing; empty if the checks that matter could run."""
    suppressed: Sequence[SuppressedFinding] = field(default=())
    """Findings that a comment in the source or the baseline accepts."""
    unused_suppressions: Sequence[UnusedSuppression] = field(default=())
    """Comments that suppress nothing."""
    reread: Callable[[], Iterator[Record]] | None = field(default=None, repr=False, compare=False)
    """Returns the records of the run again, for charts; None if they are not kept."""

    charts: Callable[[], ChartData] | None = field(default=None, repr=False, compare=False)
    """Returns the chart data, if it can be built without the records."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", Findings(self.findings))

    @classmethod
    def from_engine(cls, engine: Engine, *, command: str, notes: Sequence[str] = ()) -> Report:
        """The report about the stream of an engine."""
        seen = engine.findings
        # Causes are found among single episodes: a fault may have another cause each time.
        found, causes = merge_repeats(seen, find_causes(seen))
        return cls(
            command=command,
            findings=found,
            causes=causes,
            not_run=engine.not_run(),
            coverage=Coverage(*engine.coverage()),
            notes=notes,
            last_segment=engine.last_segment,
        )

    def with_findings(self, findings: Sequence[Finding]) -> Report:
        """The same report about these findings."""
        return replace(self, findings=findings, causes=find_causes(findings))

    def suppress(
        self,
        baseline: Baseline | None = None,
        *,
        files: Sequence[str] = (),
        settings: Settings | None = None,
    ) -> Report:
        """The report without findings that a comment in the source or the baseline accepts.

        They are listed in `suppressed`. Findings that say how the run ended are always reported.
        `files`: sources whose unused comments are listed, besides those with findings.
        `settings`: the checks that were selected.
        """
        chosen = {check.code for check in registry.chosen_limits(settings or Settings())}
        kept, suppressed, unused = split_known(
            self.findings,
            baseline=baseline,
            files=files,
            ran=chosen - {item.code for item in self.not_run},
            is_ending=_says_end,
        )
        report = self.with_findings(kept) if suppressed else self
        both = (*self.suppressed, *suppressed)
        return replace(report, suppressed=both, unused_suppressions=unused)

    @property
    def verdict(self) -> str:
        """`failed` if the run did not end normally, `interrupted` if it was stopped, `findings` if
        there is a finding at warning or above, `unknown` if too little could be examined, else
        `healthy`.

        A crash that was followed by a resume is a finding, not the end of the run.
        """
        last = [item for item in self.findings if item.last_segment >= self.last_segment]
        if any(ends_run(item, declared=_declares_end(item.code)) for item in last):
            return "failed"
        if any(item.code == INTERRUPTION for item in last):
            return "interrupted"
        if self.worst >= Severity.WARNING:
            return "findings"
        return "unknown" if self.too_little else "healthy"

    @property
    def worst(self) -> Severity:
        """The highest severity found; info when nothing was."""
        return max((item.severity for item in self.findings), default=Severity.INFO)

    def fails(self, fail_on: str) -> bool:
        """Whether a command that fails on this severity exits with 1."""
        if fail_on == "never":
            return False
        limit = Severity.parse(fail_on)
        return any(item.severity >= limit for item in self.findings)

    def plot(self, signal: str = "loss", ax: Any = None) -> Any:
        """Draw the loss over the steps with matplotlib, with findings marked; returns the axes."""
        from headway.errors import UsageError
        from headway.output.notebook import plot_curve

        if signal != "loss" or self.curve is None:
            kept = "only the loss is kept" if self.curve is not None else "no loss was read"
            raise UsageError(f"report.plot({signal!r}): {kept} in this report")
        return plot_curve("loss", *self.curve, self.findings, ax)

    def __str__(self) -> str:
        """As `headway diagnose` prints it, without colours."""
        from headway.output.console import ReportPrinter
        from headway.output.terminal import TerminalPage

        text = StringIO()
        ReportPrinter(TerminalPage(text)).write(self)
        return text.getvalue().strip("\n")

    def _repr_html_(self) -> str:
        """As Jupyter shows it."""
        from headway.output.notebook import report_html

        return report_html(self, self.curve)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, schema 1."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "tool": "headway",
            "version": __version__,
            "command": self.command,
            "verdict": self.verdict,
            "coverage": self.coverage.to_dict(),
            "causes": [cause.to_dict() for cause in self.causes],
            "findings": [finding.to_dict() for finding in self.findings],
            "not_run": [item.to_dict() for item in self.not_run],
        }
        if self.looked_at:
            data["looked_at"] = self.looked_at
        if self.not_shown:
            data["not_shown"] = self.not_shown
        if self.too_little:
            data["too_little"] = self.too_little
        if self.suppressed:
            data["suppressed"] = [item.to_dict() for item in self.suppressed]
        if self.unused_suppressions:
            data["unused_suppressions"] = [item.to_dict() for item in self.unused_suppressions]
        if self.runs:
            data["runs"] = [run.to_dict() for run in self.runs]
        if self.sources:
            data["sources"] = [encode_numbers(dict(source)) for source in self.sources]
        return data

    def to_json(self) -> str:
        """The report as JSON text, schema 1."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False, default=str)

    def to_html(self, path: str | Path) -> None:
        """Write the report as one self-contained HTML file with charts.

        The run is read again for the charts. Raises `UnreadableInput` if it is no longer there,
        and `UsageError` if the file cannot be written.
        """
        from headway.output.html.report_page import render

        text = render(self, self._charts(), subject=self.subject)
        try:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error

    def _charts(self) -> ChartData:
        from headway.rundir.chart_data import ChartBuilder, ChartData, build_charts

        if self.charts is not None:
            return self.charts()
        if self.reread is not None:
            return build_charts(self.reread())
        if self.curve is None:
            return ChartData()
        gatherer = ChartBuilder()
        for number, (step, value) in enumerate(zip(*self.curve, strict=True)):
            gatherer.feed(StepRecord(0, number, step, {"loss": value}))
        return gatherer.data()


def _says_end(finding: Finding) -> bool:
    return finding.code == INTERRUPTION or ends_run(finding, declared=_declares_end(finding.code))


def _declares_end(code: str) -> bool:
    check = registry.find(code)
    return check is not None and check.ends_run
