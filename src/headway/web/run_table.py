"""The table of runs on the live page: a row per run, settings side by side, metrics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.findings import Severity
from headway.core.numbers import encode_numbers, round_digits
from headway.output.display_text import clean
from headway.output.html import markup
from headway.output.view import VERDICT_WORDS, finding_title, verdict_of
from headway.report import Report
from headway.web.own_run import OwnRun
from headway.web.run_entry import ForeignRun, RunFigures

MAX_TEXT_LENGTH = 1200
MAX_LINE_LENGTH = 300
MAX_SETTINGS = 100
MAX_COLUMNS = 12
"""Settings as further columns of the table of runs."""
CHECKED = 0.999
"""The share of a run that must be checked before it is called healthy."""
ACTION_LABELS = {
    "skip": "skipped",
    "back-off": "backed off",
    "roll-back": "rolled back",
    "halt": "halted",
}

AnyRun = OwnRun | ForeignRun


def clip_text(text: object, most: int = MAX_TEXT_LENGTH) -> str:
    """Text on one line, without invisible characters, at most `most` characters long."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= most else f"{cleaned[:most]}…"


def summarize_run(run: AnyRun) -> dict[str, Any]:
    """One row of the list of runs."""
    report = run.report()
    counts = {"error": 0, "warning": 0, "info": 0}
    first = problems = ""
    if report is not None:
        problems = verdict_of(report).counts
        for finding in report.findings:
            counts[str(finding.severity)] += 1
        if report.causes and report.causes[0].root.severity > Severity.INFO:
            root = report.causes[0].root
            first = clip_text(finding_title(root), 100)
    drawn, checked = run.progress()
    latest, state = run.latest(), run.state()
    level = _level(report, checked)
    ending = verdict_of(report).ending if report is not None else ""
    word = VERDICT_WORDS[ending or level]
    if level == "healthy" and state == "running":
        word = "Healthy so far"
    loss = latest.get("loss")
    speed = latest.get("speed")
    figures, note = run.figures(), run.note()
    throughput = figures.samples / figures.seconds if figures.seconds else 0.0
    return {
        "id": run.id,
        "name": clip_text(run.name, MAX_LINE_LENGTH),
        "source": clip_text(run.source, 60),
        "state": state,
        "changed": run.changed,
        "step": latest.get("step"),
        "loss": None if loss is None else encode_numbers(round_digits(loss, 5)),
        "speed": None if speed is None else round_digits(speed, 3),
        "best": None if figures.best is None else round_digits(figures.best, 5),
        "seconds": round_digits(figures.seconds, 4) or None,
        "throughput": round_digits(throughput, 4) if throughput else None,
        **_main_settings(run.facts(), figures),
        "note": clip_text(note.strip().partition("\n")[0], 200),
        "tags": sorted({clip_text(tag, 40) for tag in _TAG.findall(note)})[:20],
        "findings": counts,
        "problems": problems,
        "verdict": level,
        "word": word,
        "cause": first,
        "ladder": _ladder(run.guard()),
        "drawn": round(drawn, 4),
        "checked": round(checked, 4),
        "version": run.version,
        "report_version": run.report_version,
        "why": clip_text(run.problem, MAX_LINE_LENGTH) if isinstance(run, ForeignRun) else "",
    }


_TAG = re.compile(r"(?<!\S)#([\w./-]+)")


def _main_settings(facts: Mapping[str, Any], figures: RunFigures) -> dict[str, Any]:
    """Rate and batch size, for the table of runs."""
    settings = facts.get("settings")
    rate = settings.get("lr") if isinstance(settings, Mapping) else facts.get("lr")
    number = isinstance(rate, (int, float)) and abs(rate) < 1e300
    batch = round(figures.samples / figures.counted) if figures.counted else 0
    return {"lr": rate if number else None, "batch": batch or None}


def list_settings(run: AnyRun) -> dict[str, str]:
    """What one compares when two runs differ, in the order of a table."""
    facts, figures = run.facts(), run.figures()
    settings = facts.get("settings")
    known: dict[str, Any] = {"optimizer": facts.get("optimizers")}
    known |= settings if isinstance(settings, Mapping) else {}
    known |= {"batch size": _main_settings(facts, figures)["batch"]}
    known |= {"precision": figures.precision}
    known |= read_arguments(facts.get("command_line"))
    later = ("settings", "optimizers", "packages", "started")
    known |= {key: value for key, value in facts.items() if key not in later}
    packages = facts.get("packages")
    known |= packages if isinstance(packages, Mapping) else {}
    return {
        clip_text(str(key).replace("_", " "), 60): clip_text(markup.format_value(value), 300)
        for key, value in list(known.items())[:MAX_SETTINGS]
        if value not in (None, "", [], {})
    }


def read_arguments(command_line: object) -> dict[str, str]:
    """The options of a command line, `--seed 1`, `--seed=1` or `model.size=3`, by name."""
    try:
        words = shlex.split(command_line)[1:] if isinstance(command_line, str) else []
    except ValueError:  # an open quote
        return {}
    found = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) else "-"
        if equals and _OPTION.fullmatch(name):
            found[name] = value
        elif name.startswith("--") and _OPTION.fullmatch(name):
            found[name] = "yes" if _FLAG.match(following) else following
    return found


_FLAG = re.compile(r"-(?!\.?\d)")
"""How another option begins, unlike a negative number."""
_OPTION = re.compile(r"(--|\+{0,2})[A-Za-z][\w./-]*")


def list_columns(runs: Sequence[AnyRun], wanted: Sequence[str]) -> dict[str, Any]:
    """Names of the settings in which the runs differ; the values of some of them by run."""
    known = {run.id: list_settings(run) for run in runs}
    names = dict.fromkeys(name for settings in known.values() for name in settings)
    values = {name: {settings.get(name, "") for settings in known.values()} for name in names}
    return {
        "names": [name for name in names if len(values[name]) > 1],
        "values": {
            key: [settings.get(name, "") for name in wanted[:MAX_COLUMNS]]
            for key, settings in known.items()
        },
    }


def compare_settings(runs: Sequence[AnyRun]) -> list[list[Any]]:
    """Rows of a setting, its value in each run, and whether they differ; differences first."""
    known = [list_settings(run) for run in runs]
    names = dict.fromkeys(name for settings in known for name in settings)
    rows = [[name, [settings.get(name, "") for settings in known]] for name in names]
    return sorted(
        ([*row, len(set(row[1])) > 1] for row in rows),
        key=lambda row: not row[2],
    )


METRICS = (
    ("step", "step", "Last step of the run."),
    ("loss", "loss", "Loss at the last step."),
    ("speed", "steps_per_second", "Optimizer steps per second."),
    ("changed", "changed_timestamp_seconds", "When the run was last written to."),
)
"""Numbers of a run for Prometheus: key of the summary, name, help."""


def prometheus_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The runs in the text format that Prometheus reads."""
    lines = []

    def metric(name: str, help_text: str, rows: Sequence[tuple[str, Any]]) -> None:
        lines.append(f"# HELP headway_run_{name} {help_text}")
        lines.append(f"# TYPE headway_run_{name} gauge")
        lines.extend(f"headway_run_{name}{{{labels}}} {value}" for labels, value in rows)

    names = [f'run="{_escape_label(str(run["name"]))}"' for run in summaries]
    for key, name, help_text in METRICS:
        known = [
            (label, PROMETHEUS_NUMBERS.get(run[key], run[key]))
            for label, run in zip(names, summaries, strict=True)
            if run[key] is not None
        ]
        metric(name, help_text, known)
    pairs = list(zip(names, summaries, strict=True))
    rows = [
        (f'{label},severity="{severity}"', count)
        for label, run in pairs
        for severity, count in run["findings"].items()
    ]
    metric("findings", "Findings by severity.", rows)
    for name, help_text in (
        ("state", "1 for the state of the run: running, silent or ended."),
        ("verdict", "1 for the verdict on the run."),
    ):
        metric(name, help_text, [(f'{label},{name}="{run[name]}"', 1) for label, run in pairs])
    return "\n".join(lines) + "\n"


PROMETHEUS_NUMBERS = {"NaN": "NaN", "Infinity": "+Inf", "-Infinity": "-Inf"}


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _level(report: Report | None, checked: float) -> str:
    level = "reading" if report is None else verdict_of(report).level
    sure = level in ("error", "warning", "interrupted") or checked >= CHECKED
    return level if sure else "reading"


def _ladder(guard: Mapping[str, Any]) -> str:
    if not guard or not guard.get("action"):
        return ""
    action = str(guard["action"])
    return clip_text(f"{ACTION_LABELS.get(action, action)} at step {guard['step']}", 80)
