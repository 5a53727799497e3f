"""`headway fix INCIDENT|REPORT.json`, and the part that `headway check --fix` shares with it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli import options
from headway.cli.script_command import require_torch
from headway.core.findings import Severity
from headway.core.numbers import plural
from headway.core.records import StepRecord
from headway.errors import UnreadableInput, UsageError
from headway.output.display_text import shell_quote
from headway.output.terminal import TerminalPage, spinner

if TYPE_CHECKING:
    from headway.core.records import Record
    from headway.fix.fix_session import FixOutcome, FixSession
    from headway.fix.fresh_run import FreshRun, RunResult
    from headway.report import Report


def fix_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--diff` and `--unsafe`."""
    for decorate in (
        click.option("--unsafe", is_flag=True, help="Also try edits that change the mathematics."),
        click.option("--diff", is_flag=True, help="Print the tested edits; write nothing."),
    ):
        command = decorate(command)
    return command


@dataclass(frozen=True, slots=True)
class FixRequest:
    """The run to repeat, its files, and which edits may be tried."""

    script: Path
    run: FreshRun
    write: bool
    unsafe: bool
    since: float | None = None
    """When the run began that proposed the edits, if that was in this process."""


@dataclass(frozen=True, slots=True)
class FixResult:
    """The edits that were tried, and the report after those that were kept."""

    outcomes: Sequence[FixOutcome]
    report: Mapping[str, Any]
    written: bool
    restored: str = ""
    """Why the files were restored after they were written."""
    unsafe_left: int = 0

    @property
    def kept(self) -> list[FixOutcome]:
        return [] if self.restored else [item for item in self.outcomes if item.kept]

    def fails(self, fail_on: str) -> bool:
        """Whether a finding at this severity is left."""
        limit = Severity.parse(fail_on) if fail_on != "never" else None
        levels = [Severity.parse(item["severity"]) for item in self.report["findings"]]
        return limit is not None and any(level >= limit for level in levels)


def apply_fixes(request: FixRequest, first: RunResult) -> FixResult:
    """Try the edits of a report in fresh runs, and write those that are confirmed."""
    from headway.fix.fix_session import FixSession
    from headway.fix.project import Project

    session = FixSession(
        Project(request.script, since=request.since),
        request.run,
        unsafe=request.unsafe,
        on_trial=lambda item: _say(f"testing an edit for {item['code']} in a fresh process"),
    )
    last = session.improve(first)
    assert last.report is not None
    written, restored = False, ""
    if session.contents and request.write:
        restored = _write_and_confirm(session, request, last)
        written = not restored
    report = first.report if restored and first.report is not None else last.report
    return FixResult(session.outcomes, report, written, restored, session.unsafe_left)


def _write_and_confirm(session: FixSession, request: FixRequest, last: RunResult) -> str:
    """Write the files and run them once from disk; why they were restored, if they were."""
    from headway.fix.project import EditRefused, WrittenFiles
    from headway.fix.verdict import find_new, line_mapping

    files = WrittenFiles(session.contents)
    why = "interrupted"
    try:
        files.write()
        _say("running the edited script again")
        after = request.run({})
        if request.run.command == "replay":
            why = "" if after.cured else after.error
        else:
            same = line_mapping({}, {})
            new = find_new(last, after, same) if after.report is not None else []
            missing = after.error if after.report is None else ""
            why = missing or (f"{new[0]['code']} appears" if new else "")
    except (EditRefused, OSError) as error:
        why = str(error)
    finally:
        foreign = files.restore() if why else []
    if foreign:
        why += f"; {', '.join(foreign)} changed meanwhile and was not restored"
    return why


def mark_tested(report: Report, result: FixResult) -> Report:
    """The report with the outcome of every edit that was tried."""
    outcomes = {(item.finding["code"], item.remedy["text"]): item.kept for item in result.outcomes}
    findings = []
    for finding in report.findings:
        remedies = tuple(
            replace(remedy, tested=True, cured=outcomes[finding.code, remedy.text])
            if remedy.edits and (finding.code, remedy.text) in outcomes
            else remedy
            for remedy in finding.remedies
        )
        findings.append(replace(finding, remedies=remedies))
    return report.with_findings(findings)


def write_fixes(page: TerminalPage, result: FixResult, *, diff: bool) -> None:
    """Print every edit: its diff if it was kept, or why it was not."""
    page.gap()
    for item in result.outcomes:
        where = item.finding["where"]
        place = f" {os.path.relpath(where['file'])}:{where['line']}" if where["file"] else ""
        head = f"{item.finding['code']} {item.finding['name']}{place}: "
        if item.kept:
            page.line((page.mark("good"), "green"), f" {head}{item.remedy['text']}", rest="  ")
            page.console.out(item.diff, highlight=False, end="")
        else:
            page.line((page.mark("info"), "dim"), f" {head}not kept, {item.why}", rest="  ")
    if not result.outcomes:
        page.line("No finding has an edit that could be tried.", rest="  ")
    if result.unsafe_left:
        page.line(
            f"{plural(result.unsafe_left, 'edit')} would change the mathematics: --unsafe tries "
            f"{'it' if result.unsafe_left == 1 else 'them'}.",
            rest="  ",
        )
    if result.restored:
        page.line(f"All files were restored: {result.restored}.", rest="  ")
    elif result.kept:
        kept = plural(len(result.kept), "fix").replace("fixs", "fixes")
        done = "tested; nothing was written (--diff)" if diff else "written and confirmed"
        page.line((f"{kept} {done}", "bold"), rest="  ")


def _say(message: str) -> None:
    if sys.stderr.isatty():
        TerminalPage(sys.stderr).line((f"{message} …", "dim"))


# `headway fix INCIDENT|REPORT.json`

REMAINS, FIXED = 1, 0


@click.command()
@click.argument("source", metavar="INCIDENT|REPORT.json", type=click.Path(path_type=Path))
@fix_options
@options.output_format("text", "json")
def command(source: Path, diff: bool, unsafe: bool, form: str) -> int:
    """Write the tested fix of an incident or a report into the source.

    INCIDENT is a folder RUN/incidents/N-stepK; REPORT.json is the output of
    `headway check --format json`. Every edit is run again in a fresh process: the
    captured step, or the check. It is written only if the finding is gone and no new
    one appeared.

    \b
    Exit codes: 0 fixed, 1 the finding remains, 2 usage error, 4 internal error.
    """
    require_torch("fix")
    with spinner(f"reading {source}"):
        request, first, title = _read_source(source, write=not diff, unsafe=unsafe)
    result = apply_fixes(request, first)
    fixed = bool(result.kept) and not result.fails("warning")
    if form == "json":
        click.echo(json.dumps(_to_json(result, source, fixed), indent=2, default=str))
        return FIXED if fixed else REMAINS
    page = TerminalPage(sys.stdout)
    page.line(("headway fix: ", "bold"), title, rest="  ")
    write_fixes(page, result, diff=diff)
    page.next(_next_command(request, source, fixed=fixed, diff=diff, result=result))
    return FIXED if fixed else REMAINS


def _next_command(
    request: FixRequest, source: Path, *, fixed: bool, diff: bool, result: FixResult
) -> str:
    if fixed and diff:
        return f"headway fix {shell_quote(str(source))}"
    if fixed or not result.report["findings"]:
        return f"headway check {shell_quote(os.path.relpath(request.script))}"
    return f"headway explain {result.report['findings'][0]['code']}"


def _to_json(result: FixResult, source: Path, fixed: bool) -> dict[str, Any]:
    from headway._version import __version__

    return {
        "schema": 1,
        "tool": "headway",
        "version": __version__,
        "command": "fix",
        "verdict": "fixed" if fixed else "findings",
        "source": str(source),
        "written": result.written,
        "restored": result.restored,
        "fixes": [item.to_dict() for item in result.outcomes],
        "findings": result.report["findings"],
    }


def _read_source(source: Path, *, write: bool, unsafe: bool) -> tuple[FixRequest, RunResult, str]:
    if source.is_dir():
        return _read_incident(source, write=write, unsafe=unsafe)
    return _read_report(source, write=write, unsafe=unsafe)


def _read_report(source: Path, *, write: bool, unsafe: bool) -> tuple[FixRequest, RunResult, str]:
    from headway.fix.fresh_run import FreshRun

    try:
        report = json.loads(source.read_text(encoding="utf-8"))
        ran = report["ran"]
        run = FreshRun(
            "check",
            [str(word) for word in ran["arguments"]],
            [str(word) for word in ran["script_arguments"]],
            cwd=str(ran["cwd"]),
            ranks=int(ran["ranks"]),
        )
        script, title = Path(ran["script"]), f"{source.name}, {ran['script']}"
    except OSError as error:
        raise UnreadableInput(f"cannot read {source}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableInput(
            f"{source} is neither an incident folder nor the output of "
            "`headway check --format json SCRIPT`"
        ) from error
    if not script.is_file():
        raise UsageError(f"the script {script} no longer exists")
    _require_known_files(report)
    began = time.monotonic()
    first = run({})  # the losses to compare with, and the findings as they are now
    if first.report is None:
        raise UsageError(f"the check could not be run again: {first.error}")
    timeout = max(run.timeout_s, 10 * (time.monotonic() - began))
    request = FixRequest(script, replace(run, timeout_s=timeout), write, unsafe)
    return request, first, title


def _require_known_files(report: Mapping[str, Any]) -> None:
    """Refuse a report whose files have changed since it was written."""
    from headway.torch_adapters.source import SourceFile

    for finding in report["findings"]:
        for remedy in finding["remedies"]:
            for edit in remedy.get("edits", ()):
                file = SourceFile.read(edit["file"])
                if file is None or file.sha256 != edit["sha256"]:
                    raise UsageError(
                        f"{edit['file']} has changed since the report was written: "
                        "run `headway check --format json` again"
                    )


def _read_incident(source: Path, *, write: bool, unsafe: bool) -> tuple[FixRequest, RunResult, str]:
    from headway.explain.incident_file.incident_folder import read_incident
    from headway.explain.incident_file.incident_readme import code_of
    from headway.fix.fresh_run import FreshRun, RunResult

    capsule = read_incident(source)
    script = Path(str((capsule.script or {}).get("file", "")))
    if not script.is_file():
        raise UsageError(f"{source} names no script that exists, so no edit can be tested")
    explanation = capsule.explanation
    finding = _incident_finding(code_of(explanation), explanation)
    run = FreshRun("replay", [str(source.absolute())])
    request = FixRequest(script, run, write, unsafe)
    report = {"findings": [finding], "causes": [], "steps": 0}
    return request, RunResult(report), f"step {capsule.step} of {script}"


def _incident_finding(code: str, explanation: Any) -> dict[str, Any]:
    """The incident in the form of a finding of a JSON report."""
    from headway import registry
    from headway.core.incident_events import IncidentSummary

    data = explanation.to_dict()
    summary = IncidentSummary(
        step=explanation.step,
        segment=0,
        nature=explanation.nature,
        headline=explanation.headline,
        origin=data["origins"][0] if data["origins"] else {},
        spike=data["spike"] or {},
        trials=tuple(data["trials"]),
        samples=(),
        guilt=explanation.guilt,
        rank=explanation.rank,
    )
    return {
        "code": code,
        "name": registry.get(code).name,
        "severity": "error",
        "step": explanation.step,
        "where": summary.where().to_dict(),
        "message": explanation.headline,
        "evidence": {},
        "remedies": [remedy.to_dict() for remedy in summary.remedies()],
    }


class ReportedLosses:
    """Collects the loss of every step that was not skipped, and passes the records on."""

    def __init__(self, then: Callable[[Record], None] | None) -> None:
        self.rows: list[tuple[int, float]] = []
        self._then = then

    def __call__(self, record: Record) -> None:
        if isinstance(record, StepRecord) and not record.held and "loss" in record.values:
            self.rows.append((record.step, float(record.values["loss"])))
        if self._then is not None:
            self._then(record)
