"""Prints a report or an incident in the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from headway.core.findings import Finding, Remedy, Severity
from headway.core.numbers import plural, say_bytes
from headway.output.code_frame import CodeFrameLine, edit_diff, frame_of
from headway.output.display_text import shorten_local_paths
from headway.output.incident_view import IncidentView, LineView
from headway.output.terminal import StyledText, TerminalPage
from headway.output.view import (
    CauseView,
    ReportView,
    RunLine,
    blind_spots,
    coverage_text,
    finding_title,
    format_where,
    repeats_text,
    trial_text,
    verdict_of,
)

# The table of checkpoints.

SHOWN_CHECKPOINTS = 12
"""Rows of the table: the last checkpoints, and up to as many earlier ones that are not clean."""
MIN_CURVE_POINTS = 8
"""A loss curve of fewer points is not drawn."""
_CHECKPOINT_STYLES = {"clean": "green", "empty": "yellow", "unknown code": "yellow"}


def write_checkpoint_table(
    page: TerminalPage, found: Sequence[Mapping[str, Any]], *, verbose: bool
) -> None:
    """A table of the checkpoints that were scanned."""
    shown = list(found)
    if not verbose and len(shown) > SHOWN_CHECKPOINTS:
        bad = [item for item in shown[:-SHOWN_CHECKPOINTS] if not item["clean"]][:SHOWN_CHECKPOINTS]
        shown = [*bad, *shown[-SHOWN_CHECKPOINTS:]]
    common = _common_folder([item["path"] for item in shown])
    page.gap()
    head = f"{'step':>9}  {'tensors':>8}  {'size':>10}  {'NaN/Inf':>9}  {'':<14}  checkpoint"
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
        # A long path is on a line of its own, near the margin.
        margin = " " * (4 if len(name) > page.width - 62 else 62)
        page.line(numbers, (f"{mark} {item['verdict']:<12}", style), f"  {name}", rest=margin)
    if len(shown) < len(found):
        page.line((f"and {len(found) - len(shown)} more; --verbose lists them", "dim"))


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that contains all of them, which the table does not repeat."""
    folders = [path.rpartition(os.sep)[0] for path in paths]
    try:
        common = os.path.commonpath(folders) if all(folders) else ""
    except ValueError:  # on several drives
        return ""
    return common.rstrip(os.sep) + os.sep if common else ""


# A report: verdict, coverage, causes, and the checks that did not run.

ENDING_STYLES = {"failed": "bold red", "interrupted": "bold yellow"}
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
RUN_LEVELS = {
    "failed": "error",
    "findings": "warning",
    "unknown": "info",
    "interrupted": "info",
    "healthy": "good",
}
SHOWN_RUNS = 12
"""Lines of the list of runs."""
MAX_SAME_CAUSES = 3
"""Causes of one code that are shown in full; the rest is counted."""


def verdict_line(report: ReportView, subject: str = "headway") -> list[StyledText]:
    """The first line: what is wrong, or that no problems were found."""
    verdict, speaker = verdict_of(report), f"{subject}: "
    line: list[StyledText] = [speaker]
    if verdict.ending:
        line.append((verdict.ending, ENDING_STYLES[verdict.ending]))
        if not verdict.counts:
            return line
        line.append("; ")
    if verdict.counts:
        line.append((verdict.counts, SEVERITY_STYLES[verdict.level]))
        if verdict.cause:
            line += ["; most likely cause: ", (verdict.cause, "bold")]
        return line
    infos = len(report.findings)
    also = f" ({plural(infos, 'note')})" if infos else ""
    sentence = f"{verdict.sentence[0].lower()}{verdict.sentence[1:-1]}"
    if verdict.level in ("unsure", "unknown"):
        return [speaker, (sentence, "yellow"), also]
    seen = f": {sentence}" if report.looked_at else ""
    return [speaker, ("healthy", "bold green"), seen, also]


@dataclass
class ReportPrinter:
    """Prints one report."""

    page: TerminalPage
    verbose: bool = False
    _printed: set[str] = field(default_factory=set, init=False)
    """Remedies that were printed."""

    def write(
        self,
        report: ReportView,
        subject: str = "headway",
        *,
        picture: Callable[[TerminalPage], None] | None = None,
    ) -> None:
        """Print everything but the last line, which the command prints.

        `picture` draws what comes between the verdict and the causes.
        """
        self._printed.clear()
        for note in report.notes:
            self.page.line((f"note: {note}", "dim"), rest="  ")
        for unused in report.unused_suppressions:
            place = shorten_local_paths(f"{unused.file}:{unused.line}")
            text = f"note: {place}: this comment suppresses nothing: {unused.why}"
            self.page.line((text, "dim"), rest="  ")
        if self.verbose:
            self._not_run(report)
            self._suppressed(report)
        if report.runs:
            self._runs(report.runs)
        if picture is not None:
            picture(self.page)
        # The most likely cause is the last one, next to the prompt.
        groups = [list(alike) for _, alike in groupby(report.causes, key=_same_code)]
        for alike in reversed(groups):
            self._causes(alike)
        if report.notes or report.causes or report.runs or self.verbose or picture is not None:
            self.page.gap()
        self.page.line(*verdict_line(report, subject), rest="  ")
        self.page.line((coverage_text(report), "dim"), rest="  ")
        if verdict_of(report).level in ("healthy", "unsure", "unknown"):
            for unseen in filter(None, (report.not_shown, blind_spots(report))):
                self.page.line((unseen, "dim"), rest="  ")

    def _runs(self, runs: Sequence[RunLine]) -> None:
        """One line for each of several runs, the worst first."""
        shown = runs if self.verbose else runs[:SHOWN_RUNS]
        width = min(max(len(run.name) for run in shown), 40)
        self.page.gap()
        for run in shown:
            level = RUN_LEVELS[run.verdict]
            at = f" at step {run.step}" if run.step is not None else ""
            steps = f"to step {run.steps}" if run.steps is not None else ""
            self.page.line(
                (f"{self.page.mark(level)} {run.verdict:<11}", SEVERITY_STYLES.get(level, "green")),
                f" {run.name:<{width}}  ",
                (run.cause + at if run.cause else steps, "bold" if run.cause else "dim"),
                rest="    ",
            )
        if len(shown) < len(runs):
            self.page.line((f"and {len(runs) - len(shown)} more; --verbose lists them", "dim"))

    def _causes(self, alike: Sequence[CauseView]) -> None:
        shown = len(alike) if self.verbose else MAX_SAME_CAUSES
        if folded := alike[shown:]:
            steps = [str(cause.root.step) for cause in folded if cause.root.step is not None]
            at = f" (steps {steps[0]} to {steps[-1]})" if len(steps) > 1 else ""
            text = f"{len(folded)} more of {alike[0].root.code}{at}; --verbose lists them"
            self.page.gap()
            self.page.line((text, "dim"), first="  ")
        for cause in reversed(alike[:shown]):
            self.page.gap()
            self._finding(cause.root, full=cause.root.severity > Severity.INFO)
            if self.verbose:
                if cause.symptoms:
                    self.page.line(("Explains:", "dim"), first="  ")
                for symptom in cause.symptoms:
                    self._finding(symptom, full=False, margin="    ")
            elif cause.symptoms:
                self._symptoms(cause.symptoms)

    def _symptoms(self, symptoms: Sequence[Finding]) -> None:
        """What a cause explains, in one paragraph."""
        parts = []
        for item in symptoms[:MAX_NAMES]:
            at = "" if item.step is None else f" (step {item.step})"
            parts.append(f"{finding_title(item)}{at}")
        more = f" and {len(symptoms) - MAX_NAMES} more" if len(symptoms) > MAX_NAMES else ""
        self.page.line(("explains ", "dim"), ", ".join(parts) + more, first="  ", rest="    ")

    def _finding(self, finding: Finding, *, full: bool, margin: str = "") -> None:
        level = str(finding.severity)
        step = "" if finding.step is None else f"  step {finding.step}"
        self.page.line(
            (f"{self.page.mark(level)} {level}", SEVERITY_STYLES[level]),
            " ",
            (finding_title(finding), "bold"),
            (step, "dim"),
            first=margin,
            rest=margin + "  ",
        )
        inner = margin + "  "
        message = shorten_local_paths(finding.message)
        frame = frame_of(finding) if full or self.verbose else []
        self._place(finding, frame, message, inner)
        self.page.line(message, first=inner)
        if again := repeats_text(finding):
            self.page.line((again, "dim"), first=inner)
        if full or self.verbose:
            self._remedies(finding.remedies, inner)

    def _place(
        self, finding: Finding, frame: Sequence[CodeFrameLine], message: str, margin: str
    ) -> None:
        """`--> train.py:56:12`, and the lines around it with the expression underlined."""
        where, marked = finding.where, next((line for line in frame if line.main), None)
        column = marked.column if marked else None
        place = shorten_local_paths(format_where(where, column=column, message=finding.message))
        if place and (frame or place not in message):
            self.page.line((f"--> {place}", "cyan"), first=margin, rest=margin + "    ")
        if not frame:
            recorded = finding.evidence.get("frame")
            for text in recorded if isinstance(recorded, list) else ():
                self.page.line((str(text), "dim"), first=margin)
            return
        self._frame(frame, margin)

    def _frame(self, frame: Sequence[CodeFrameLine], margin: str) -> None:
        width = len(str(max(line.number for line in frame)))
        room = self.page.width - len(margin) - width - 3
        before = frame[0].number - 1
        for line in frame:
            if line.file:
                place = shorten_local_paths(f"{line.file}:{line.number}:{line.column}")
                self.page.line((f"::: {place}", "cyan"), first=margin)
            elif line.number > before + 1:
                self.page.raw(f"{margin}{'...':>{width}}")
            before = line.number
            style = "bold" if line.column else "dim"
            text = line.text.rstrip()
            if len(text) > room:
                text = text[: room - 1] + ("…" if self.page.can_show("…") else "~")
            self.page.raw(f"{margin}{line.number:>{width}} | ", (text, style))
            if line.column and line.column <= room:
                sign = "^" if line.main else "-"
                label = f" {line.label}" if line.label else ""
                under = sign * max(min(line.width, room - line.column + 1 - len(label)), 1)
                blank = " " * (line.column - 1)
                under_style = "bold red" if line.main else "cyan"
                self.page.raw(f"{margin}{'':>{width}} | {blank}", (under + label, under_style))

    def _remedies(self, remedies: Sequence[Remedy], margin: str) -> None:
        """What to do: tested fixes first, then edits; general advice only without either."""
        fixes = [item for item in remedies if item.tested or item.edits]
        fixes.sort(key=lambda item: (not item.cured, not item.tested))
        advice = [item for item in remedies if item not in fixes]
        # One fix: the one that was seen to work, else the most likely.
        shown = fixes[:1] or advice[:2]
        others = 0 if self.verbose or not shown or shown[0].cured else len(fixes[1:])
        for remedy in [*fixes, *advice] if self.verbose else shown:
            if remedy.text in self._printed and not remedy.tested:
                continue  # once is enough
            self._printed.add(remedy.text)
            changed = edit_diff(remedy.edits)
            trial = trial_text(remedy) or ("not tested" if changed else "")
            trial += f"; {plural(others, 'alternative')} with -v" if others else ""
            self.page.line(
                (f"{self.page.mark('do')} ", "green"),
                _without_line(remedy.text) if changed else remedy.text,
                (f" ({trial})" if trial else "", "bold green" if remedy.cured else "dim"),
                first=margin,
                rest=margin + "  ",
            )
            for line in changed:
                style = "green" if line.startswith("+") else "red"
                # On a terminal, what is too long is indented: its rest may begin with `-`, too.
                room = max(self.page.width - len(margin) - 6, 20) if self.page.live else len(line)
                self.page.raw(f"{margin}  ", (line[: room + 4], style))
                for at in range(room + 4, len(line), room):
                    self.page.raw(f"{margin}      ", (line[at : at + room], style))

    def _suppressed(self, report: ReportView) -> None:
        if report.suppressed:
            self.page.gap()
            self.page.line(("Suppressed findings", "bold"))
        for item in report.suppressed:
            place = shorten_local_paths(format_where(item.finding.where))
            at = f" at {place}" if place else ""
            why = f"{item.by}: {item.reason}" if item.reason else item.by
            text = f"{finding_title(item.finding)}{at} ({why})"
            self.page.line(text, first="  ", rest="    ")

    def _not_run(self, report: ReportView) -> None:
        if report.not_run:
            self.page.gap()
            self.page.line(("Checks that did not run", "bold"))
            for item in report.not_run:
                self.page.line((item.code, "bold"), f"  {item.reason}", first="  ", rest=" " * 9)


def _without_line(text: str) -> str:
    """The text of a fix without the new line, which the diff below it shows."""
    place, wrote, _ = text.partition(" write `")
    return f"Change {place[3:]}" if wrote and text.startswith("At ") else text


def _same_code(cause: CauseView) -> str:
    return cause.root.code


# An incident.

MAX_NAMES = 8
_TRIAL_STYLES = {
    "cured": ("good", "green"),
    "not cured": ("error", "red"),
    "not tried": ("info", "dim"),
}


def write_incident(page: TerminalPage, incident: IncidentView) -> None:
    """Where it happened, why, what caused it, and which remedies were tried."""
    page.line(incident.summary, first="  ")
    for origin in incident.origins[:1]:
        for place in (origin.place, origin.called_from):
            if place is not None:
                _write_place(page, place)
        page.line(origin.where, first="  ", rest="    ")
        for item in origin.inputs:
            counts = ((item.nan, "NaN"), (item.inf, "Inf"), (item.zero, "zero"))
            parts = [f"{item.shape} {item.dtype}", item.finite_range]
            parts += [f"{count} {word}" for count, word in counts if count]
            page.line(f"{item.name}: {', '.join(parts)}", first="    ", rest="      ")
        if origin.reached:
            page.line(f"reached: {_join_names(origin.reached)}", first="  ", rest="    ")
    for label, value in incident.facts():
        if label in ("notes", "when re-run"):
            continue  # the caller prints notes; whether it fails again is the verdict
        text = _join_names(value) if isinstance(value, (list, tuple)) else str(value)
        page.line(f"{label}: {text}", first="  ", rest="    ")
    for trial in incident.trials:
        mark, style = _TRIAL_STYLES.get(trial.outcome, ("info", "dim"))
        why = f" ({trial.why})" if trial.why else ""
        page.line(
            (f"{page.mark(mark)} {trial.outcome}: ", style),
            trial.text,
            (why, "dim"),
            first="  ",
            rest="    ",
        )


def _write_place(page: TerminalPage, place: LineView) -> None:
    page.line((f"at {shorten_local_paths(place.at)}", "cyan"), first="  ", rest="    ")
    if place.source:
        page.line((place.source, "bold"), first="    ")


def _join_names(items: Sequence[object]) -> str:
    more = f" and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
    return ", ".join(str(item) for item in items[:MAX_NAMES]) + more
