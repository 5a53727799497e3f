"""Prints a replayed incident in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.explain.explanation import Explanation, Operand, Origin
from headway.explain.incident_file.contents import version_differences
from headway.explain.incident_file.incident_readme import GUILT_TEXT, say_range, say_shape
from headway.output.display_text import shorten_local_paths

if TYPE_CHECKING:
    from headway.cli.script_command import ScriptCrash
    from headway.explain.incident_file.incident_folder import IncidentFolder
    from headway.explain.replay_outcome import ReplayOutcome
    from headway.output.terminal import StyledText, TerminalPage

STYLES = {"reproduces": "bold red", "cured": "bold green", "crashed": "bold red"}
_TRIED = {"cured": ("good", "green"), "not cured": ("error", "red"), "not tried": ("info", "dim")}
MAX_NAMES = 8


def write_replay(
    page: TerminalPage,
    capsule: IncidentFolder,
    seen: ReplayOutcome | None,
    crash: ScriptCrash | None,
    how: str,
    hints: Sequence[str] = (),
) -> None:
    """Everything but the last line, which belongs to the command."""
    verdict = "crashed" if seen is None else seen.verdict
    said = str(crash) if seen is None else seen.said
    page.line((f"{verdict}: ", STYLES[verdict]), said, rest="  ")
    page.line((f"step {capsule.step}, run by {shorten_local_paths(how)}", "dim"), rest="  ")
    for hint in hints:
        page.line(hint, rest="  ")
    told = seen.explanation if seen is not None else None
    page.gap()
    page.line(("What was found when it happened" if told is None else "What was found", "bold"))
    write_explanation(page, told or capsule.explanation)
    notes = [*(() if seen is None else seen.notes), *version_differences(capsule.index["versions"])]
    if notes:
        page.gap()
    for note in notes:
        page.line((f"note: {note}", "dim"), rest="  ")
    if verdict == "reproduces":
        page.gap()
        page.line("Mend it and run the same again: it exits 0 once the step is cured.", rest="  ")


def write_explanation(page: TerminalPage, told: Explanation) -> None:
    """Where, why, whom, and what helps."""
    page.line(told.summary, first="  ")
    for birth in told.births[:1]:
        _write_origin(page, birth)
    if told.samples:
        page.line(f"samples of the data set: {_join_names(told.samples)}", first="  ", rest="    ")
    if told.guilt != "unknown":
        page.line(GUILT_TEXT[told.guilt], first="  ")
    for trial in told.trials:
        mark, style = _TRIED[trial.tried]
        why = f" ({trial.why})" if trial.why else ""
        said: list[StyledText] = [
            (f"{page.mark(mark)} {trial.tried}: ", style),
            trial.text,
            (why, "dim"),
        ]
        page.line(*said, first="  ", rest="    ")


def _write_origin(page: TerminalPage, birth: Origin) -> None:
    for place in (birth.place, birth.called_from):
        if place is not None:
            within = f" in {place.within}" if place.within else ""
            page.line(
                (f"at {shorten_local_paths(place.file)}:{place.line}{within}", "cyan"),
                first="  ",
                rest="    ",
            )
            if place.source.strip():
                page.line((place.source.strip(), "bold"), first="    ")
    module = f", module {birth.module}" if birth.module else ""
    page.line(f"op {birth.op}, {birth.phase} pass{module}", first="  ", rest="    ")
    for operand in birth.inputs:
        page.line(f"{operand.name}: {_format_operand(operand)}", first="    ", rest="      ")
    if birth.rows:
        page.line(f"rows of the batch: {_join_names(birth.rows)}", first="  ", rest="    ")
    if birth.reached:
        page.line(f"reached: {_join_names(birth.reached)}", first="  ", rest="    ")


def _format_operand(item: Operand) -> str:
    counts = [(item.nan, "NaN"), (item.inf, "Inf"), (item.zero, "zero")]
    said = [f"{count} {word}" for count, word in counts if count]
    return ", ".join([f"{say_shape(item.shape)} {item.dtype}", say_range(item), *said])


def _join_names(items: Sequence[object]) -> str:
    more = f" and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
    return ", ".join(str(item) for item in items[:MAX_NAMES]) + more
