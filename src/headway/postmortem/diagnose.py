"""Diagnoses a run from its files: what went wrong, when and why.

A run directory of headway is read as it is. For runs of other tools the logs are joined, settings
beside them are added and checkpoints are scanned; the result is one report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.config import Settings
from headway.core.records import Record
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.postmortem.last_good import add_checkpoint_findings, describe_scan
from headway.postmortem.run_summary import (
    MAX_RUNS,
    LossCollector,
    count_note,
    summarize_run,
    worst_first,
    worst_run,
)
from headway.report import Report
from headway.rundir import run_reader
from headway.rundir.remote_run import fetch_run
from headway.rundir.run_files import input_path, is_url

if TYPE_CHECKING:
    from headway.logs.log_folders import RunLogs
    from headway.logs.log_table import Log
    from headway.rundir.chart_data import ChartData
    from headway.rundir.triage import LongRun

_CHECKPOINT = re.compile(r"^checkpoint-(\d{1,15})$")
SHORT = 2_000_000
"""Bytes of steps up to which a run is never too long."""
SETTINGS_REPORTED = (
    "learning_rate",
    "warmup_steps",
    "warmup_ratio",
    "max_norm",
    "precision",
    "batch_size",
    "accumulation",
)


def diagnose(path: str | Path, *, settings: Settings | None = None) -> Report:
    """Diagnoses a run: what went wrong, when and why. Does not import torch.

    `path` is a log, a checkpoint, or a folder of them. Raises `UnreadableInput` when there is
    nothing in it that can be read.
    """
    place = fetch_run(path) if is_url(path) else input_path(path)
    report = _report(place, settings)
    # Checkpoints alone have no steps.
    has_log = not report.sources or any("clean" not in source for source in report.sources)
    again = partial(records_of, place) if has_log else None
    return replace(report, subject=str(path), reread=report.reread or again)


def _report(place: Path, settings: Settings | None) -> Report:
    if _is_own(place):
        return _own(place, settings)
    chosen = settings or Settings()
    if place.is_dir():
        return _folder(place, chosen)
    return _file(place, chosen)


def _is_own(place: Path) -> bool:
    """Whether it is a run directory of headway. Raises UnreadableInput if it does not exist."""
    try:
        if not place.exists():
            raise UnreadableInput(f"{place} does not exist")
        return run_reader.is_run_dir(place)
    except OSError as error:
        raise UnreadableInput(f"cannot read {place}: {error.strerror or error}") from error


def records_of(place: Path) -> Iterator[Record]:
    """The records of the run at a path, as the checks receive them."""
    if _is_own(place):
        return run_reader.RunDir(place).records()
    from headway.logs import readers
    from headway.logs.log_folders import group_by_run, survey_folder
    from headway.logs.log_stream import LogStream

    if not place.is_dir():
        return LogStream(readers.read(place)).records()
    found = survey_folder(place)
    if found.runs:
        return run_reader.RunDir(_newest(found.runs)).records()
    runs = group_by_run(found)
    if not runs:
        raise UnreadableInput(_nothing(place, found.refused))
    return LogStream(runs[-1].joined()).records()


def _newest(runs: Sequence[Path]) -> Path:
    return max(runs, key=lambda run: ((run / "run.json").stat().st_mtime, str(run)))


def _own(place: Path, settings: Settings | None) -> Report:
    source = run_reader.RunDir(place)
    long = _long(source)
    end = LossCollector()
    if long is None:
        engine = Engine(settings)
        engine.run(end.through(_with_damage(source, source.records())))
    else:
        engine = Engine(settings, distance=long.distance)
        records = _with_damage(source, source.records(long.records()), long.torn)
        engine.run(end.through(records))
    torn, lines = source.torn, source.lines
    notes = []
    if long is not None:
        torn, lines = torn + long.torn, lines + long.torn + long.steps
        notes.append(
            f"{long.close} of {long.steps} steps were checked in detail, the others screened"
        )
    if torn:
        notes.append(f"{torn} of {lines} lines skipped: damaged")
    report = Report.from_engine(engine, command="diagnose", notes=notes)
    charts = partial(_charts, place) if long is None else lambda: long.charts
    curve = (end.steps, end.losses) if end.steps else None
    report = replace(report, looked_at=end.looked_at(), too_little=end.too_little())
    return replace(report, charts=charts, curve=curve)


def _with_damage(
    source: run_reader.RunDir, records: Iterator[Record], damaged_steps: int = 0
) -> Iterator[Record]:
    """The records, and an event if lines of the run directory are damaged."""
    last: Record | None = None
    for record in records:
        last = record
        yield record
    event = None if last is None else source.damage(last, damaged_steps)
    if event is not None:
        yield event


def _long(source: run_reader.RunDir) -> LongRun | None:
    """The selected steps of a very long run; None for most runs."""
    path = source.path / "steps.rank0.jsonl"
    if not path.is_file() or path.stat().st_size < SHORT or not source.rank_0_has_all_steps:
        return None
    # A short run of headway needs no numpy.
    from headway.rundir.triage import LongRun

    return LongRun.of(source.path)


def _charts(place: Path) -> ChartData:
    from headway.rundir.live_charts import read_charts

    return read_charts(place)


def _file(place: Path, settings: Settings) -> Report:
    # A run of headway needs no numpy: imported only where it is used.
    from headway.checkpoints.checkpoint_discovery import recognise
    from headway.logs import readers
    from headway.postmortem.run_settings import settings_in

    if not place.is_file():
        raise UnreadableInput(f"{place} is neither a file nor a folder")
    if recognise(place) is not None:
        return _scanned([place], settings)
    logs = readers.read_runs(place)
    if len(logs) > 1:
        from headway.logs.log_folders import RunLogs

        runs = [RunLogs([log], [place.parent]) for log in logs]
        return _worst_run(place.parent, runs, [], settings)
    [log] = logs
    report, _ = _report_log(log, [log], settings_in([place.parent]), settings)
    siblings = _siblings(place)
    if not siblings or not report.causes:
        return report
    # Findings in the checkpoints do not belong to this log: it only says which to resume from.
    from headway.postmortem.last_good import CheckpointSearch, with_rollback_advice

    return with_rollback_advice(report, CheckpointSearch.at(siblings, settings), unit=log.unit)


def _siblings(place: Path) -> list[Path]:
    """All checkpoints of the run, for a `trainer_state.json` in one of them."""
    folder = place.parent
    if place.name != "trainer_state.json" or not _CHECKPOINT.match(folder.name):
        return []
    from headway.checkpoints.checkpoint_discovery import recognise

    found = [item for item in folder.parent.iterdir() if _CHECKPOINT.match(item.name)]
    return [item for item in sorted(found, key=_number) if recognise(item) is not None]


def _number(path: Path) -> int:
    match = _CHECKPOINT.match(path.name)
    return int(match[1]) if match else 0


def _scanned(paths: Sequence[Path], settings: Settings) -> Report:
    from headway.postmortem.scan import scan_paths

    return replace(scan_paths(paths, settings), command="diagnose")


def _folder(place: Path, settings: Settings) -> Report:
    from headway.checkpoints.checkpoint_discovery import find_checkpoints
    from headway.logs.log_folders import group_by_run, survey_folder

    found = survey_folder(place)
    checkpoints = find_checkpoints(place)
    if found.runs:
        report = _worst_own(place, found.runs, settings)
        return _with_advice(report, found.runs, checkpoints, settings)
    grouped = group_by_run(found)
    if grouped:
        return _unread(_worst_run(place, grouped, checkpoints, settings), found.refused)
    if checkpoints:
        return _scanned(checkpoints, settings)
    raise UnreadableInput(_nothing(place, found.refused))


def _with_advice(
    report: Report, runs: Sequence[Path], checkpoints: Sequence[Path], settings: Settings
) -> Report:
    """Adds which of a framework's checkpoints beside a headway run to resume from."""
    from headway.postmortem.last_good import CheckpointSearch, with_rollback_advice

    beside = [path for path in checkpoints if not any(run in path.parents for run in runs)]
    if not beside or not report.causes or len(runs) > 1:
        return report
    return with_rollback_advice(report, CheckpointSearch.at(beside, settings))


def _unread(report: Report, refused: Sequence[Path]) -> Report:
    if not refused:
        return report
    named = ", ".join(str(path) for path in refused[:3])
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    return replace(report, notes=[*report.notes, f"could not be read: {named}{more}"])


def _nothing(place: Path, refused: Sequence[Path]) -> str:
    from headway.logs import readers

    if place in refused:
        return f"cannot read {place}: permission denied"
    why = f" ({refused[0]} cannot be read)" if refused else ""
    return f"{place} contains no log and no checkpoint{why}. {readers.SUPPORTED}"


# Several runs: each is diagnosed, and the worst one is reported in full.


def _worst_own(root: Path, runs: Sequence[Path], settings: Settings) -> Report:
    ordered = sorted(runs, key=lambda run: ((run / "run.json").stat().st_mtime, str(run)))
    reports = {run: _own(run, settings) for run in ordered[-MAX_RUNS:]}
    lines = {run: summarize_run(str(run.relative_to(root)), run, reports[run]) for run in reports}
    worst = worst_run(reports)
    report = reports[worst]
    if len(runs) == 1:
        return replace(report, notes=[f"the run in {worst}", *report.notes])
    notes = [count_note(len(runs), len(reports), str(worst)), *report.notes]
    again = partial(records_of, worst)
    return replace(report, notes=notes, runs=worst_first(reports, lines), reread=again)


def _worst_run(
    root: Path, runs: Sequence[RunLogs], checkpoints: Sequence[Path], settings: Settings
) -> Report:
    from headway.logs.log_stream import LogStream

    if len(runs) == 1:
        return _run_report(root, runs, runs[0], checkpoints, settings)
    kept = dict(enumerate(runs[-MAX_RUNS:]))
    # Checkpoints are scanned for the worst run only: that can take minutes for each.
    reports = {at: _run_report(root, runs, run, [], settings) for at, run in kept.items()}
    lines = {
        at: summarize_run(run.name(root), run.logs[0].path, reports[at]) for at, run in kept.items()
    }
    worst = worst_run(reports)
    run = kept[worst]
    report = reports[worst]
    if checkpoints:
        report = _run_report(root, runs, run, checkpoints, settings)
    notes = [count_note(len(runs), len(kept), lines[worst].name), *report.notes]
    log = run.joined()
    return replace(
        report,
        notes=notes,
        runs=worst_first(reports, lines),
        reread=lambda: LogStream(log).records(),
    )


def _run_report(
    root: Path,
    runs: Sequence[RunLogs],
    run: RunLogs,
    checkpoints: Sequence[Path],
    settings: Settings,
) -> Report:
    from headway.postmortem.last_good import CheckpointSearch, with_rollback_advice
    from headway.postmortem.run_settings import settings_in

    log = run.joined()
    own = _checkpoints_of_run(checkpoints, runs, run, root)
    beside = [run.place, *run.homes]
    for item in run.logs:
        beside += [item.path.parent, item.path.parent / "files"]  # W&B stores its settings there
    beside.append(root)
    beside += [path if path.is_dir() else path.parent for path in own[-1:]]
    report, end = _report_log(log, run.logs, settings_in(dict.fromkeys(beside)), settings)
    if not own:
        return report
    search = CheckpointSearch.at(own, settings)
    report = add_checkpoint_findings(report, search, end)
    report = with_rollback_advice(report, search, unit=log.unit)
    # Only now is it known which checkpoints were scanned.
    return replace(
        report,
        notes=[*report.notes, *search.scanned.notes(), *describe_scan(search)],
        sources=[*report.sources, *(item.to_dict() for item in search.scanned.checkpoints)],
    )


def _checkpoints_of_run(
    checkpoints: Sequence[Path], runs: Sequence[RunLogs], run: RunLogs, root: Path
) -> list[Path]:
    """The checkpoints of a run: in its own folder, else those that are in no other run's."""
    if len(runs) == 1:
        return list(checkpoints)
    own = [path for path in checkpoints if run.place != root and run.place in path.parents]
    if own:
        return own
    foreign = [item.place for item in runs if item is not run and item.place != root]
    return [path for path in checkpoints if not any(place in path.parents for place in foreign)]


def _report_log(
    log: Log, logs: Sequence[Log], beside: dict[str, Any], settings: Settings
) -> tuple[Report, int]:
    """The report on a log, and the last segment of its records."""
    from headway.logs.log_names import map_names
    from headway.logs.log_stream import LogStream, loss_of
    from headway.logs.setting_names import named_settings

    for key, value in {**beside, **named_settings(log.facts)}.items():
        log.facts.setdefault(key, value)
    engine = Engine(settings)
    end = LossCollector()
    engine.run(end.through(LogStream(log).records()))
    notes = [f"read as {item.format}: {item.used} of {item.lines} lines used" for item in logs[:5]]
    if len(logs) > 1:
        joined = ", ".join(str(item.path) for item in logs[:5])
        notes.append(f"{len(logs)} logs of one run were joined: {joined}")
    if known := _settings_note(log.facts):
        notes.append(known)
    report = Report.from_engine(engine, command="diagnose", notes=[*notes, *log.notes])
    curve = loss_of(log, map_names(log.table.series, log.names, log.facts.get("units")))
    if not curve[0]:
        curve = (end.steps, end.losses)  # the sum of components that are logged without a total
    too_little = end.too_little(epochs=log.unit == "epoch")
    sources = [
        {"path": str(item.path), "format": item.format, "lines": item.lines, "used": item.used}
        for item in logs
    ]
    drawn = curve if curve[0] else None
    report = replace(report, looked_at=end.looked_at(), too_little=too_little)
    return replace(report, sources=sources, curve=drawn), end.segment


def _settings_note(facts: dict[str, Any]) -> str:
    known = [f"{key} {facts[key]}" for key in SETTINGS_REPORTED if facts.get(key) is not None]
    return f"settings: {', '.join(known)}" if known else ""
