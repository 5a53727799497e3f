"""A replayed incident as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.replay.explanation import Birth, Explanation, Operand
from headway.replay.page import GUILT, say_range, say_shape
from headway.replay.versions import differences
from headway.sinks.nearby import nearby

if TYPE_CHECKING:
    from headway.cli.script import Crash
    from headway.replay.capsule import Capsule
    from headway.replay.rehearsed import Rehearsed
    from headway.sinks.page import Page, Part

STYLES = {"reproduces": "bold red", "cured": "bold green", "crashed": "bold red"}
_TRIED = {"cured": ("good", "green"), "not cured": ("error", "red"), "not tried": ("info", "dim")}
MOST_NAMED = 8


def write_replay(
    page: Page,
    capsule: Capsule,
    seen: Rehearsed | None,
    crash: Crash | None,
    how: str,
    hints: Sequence[str] = (),
) -> None:
    """Everything but the last line, which belongs to the command."""
    verdict = "crashed" if seen is None else seen.verdict
    said = str(crash) if seen is None else seen.said
    page.line((f"{verdict}: ", STYLES[verdict]), said, rest="  ")
    page.line((f"step {capsule.step}, run by {nearby(how)}", "dim"), rest="  ")
    for hint in hints:
        page.line(hint, rest="  ")
    told = seen.explanation if seen is not None else None
    page.gap()
    page.line(("What was found when it happened" if told is None else "What was found", "bold"))
    write_explanation(page, told or capsule.explanation)
    notes = [*(() if seen is None else seen.notes), *differences(capsule.index["versions"])]
    if notes:
        page.gap()
    for note in notes:
        page.line((f"note: {note}", "dim"), rest="  ")
    if verdict == "reproduces":
        page.gap()
        page.line("Mend it and run the same again: it exits 0 once the step is cured.", rest="  ")


def write_explanation(page: Page, told: Explanation) -> None:
    """Where, why, whom, and what helps."""
    page.line(told.summary, first="  ")
    for birth in told.births[:1]:
        _birth(page, birth)
    if told.samples:
        page.line(f"samples of the data set: {_named(told.samples)}", first="  ", rest="    ")
    if told.guilt != "unknown":
        page.line(GUILT[told.guilt], first="  ")
    for trial in told.trials:
        mark, style = _TRIED[trial.tried]
        why = f" ({trial.why})" if trial.why else ""
        said: list[Part] = [(f"{page.mark(mark)} {trial.tried}: ", style), trial.text, (why, "dim")]
        page.line(*said, first="  ", rest="    ")


def _birth(page: Page, birth: Birth) -> None:
    for place in (birth.place, birth.called_from):
        if place is not None:
            within = f" in {place.within}" if place.within else ""
            page.line(
                (f"at {nearby(place.file)}:{place.line}{within}", "cyan"), first="  ", rest="    "
            )
            if place.source.strip():
                page.line((place.source.strip(), "bold"), first="    ")
    module = f", module {birth.module}" if birth.module else ""
    page.line(f"op {birth.op}, {birth.phase} pass{module}", first="  ", rest="    ")
    for operand in birth.inputs:
        page.line(f"{operand.name}: {_operand(operand)}", first="    ", rest="      ")
    if birth.rows:
        page.line(f"rows of the batch: {_named(birth.rows)}", first="  ", rest="    ")
    if birth.reached:
        page.line(f"reached: {_named(birth.reached)}", first="  ", rest="    ")


def _operand(item: Operand) -> str:
    counts = [(item.nan, "NaN"), (item.inf, "Inf"), (item.zero, "zero")]
    said = [f"{count} {word}" for count, word in counts if count]
    return ", ".join([f"{say_shape(item.shape)} {item.dtype}", say_range(item), *said])


def _named(items: Sequence[object]) -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(str(item) for item in items[:MOST_NAMED]) + more
