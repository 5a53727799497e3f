"""An incident as a page to read: in a terminal, in an editor, on GitHub."""

from __future__ import annotations

import linecache
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.numbers import say, say_bytes
from headway.replay.explanation import Birth, Explanation, Line, Operand, Trial
from headway.replay.markdown import block, cell, code, prose, table

AROUND = 3
"""Lines of source shown before and after the one meant."""
MOST_NAMED = 12
"""Names in a list; the others are counted."""
SIGNS = {"cured": "✓", "not cured": "✗", "not tried": "–"}
GUILT = {
    "batch": "The batch. It was needed for this; these very weights were not.",
    "weights": "The weights. They were needed for this; this very batch was not.",
    "together": "Only the two together: this batch with these weights.",
    "unknown": "Not known.",
}
NATURE = {
    "deterministic": "It happened again each time the step was run.",
    "transient": "It did not happen again when the step was run once more.",
    "compiler": "It happens in the compiled model only.",
    "unknown": "",
}
_CODES = {"poisoned-weight": "HD301", "poisoned-buffer": "HD302", "poisoned-batch": "HD501"}
_CONTENT = {
    "batch.pt": "the data of the step",
    "rng.pt": "the random number generators before it",
    "state.pt": "weights, buffers, scaler",
}


def code_of(explanation: Explanation) -> str:
    """The check that is about this kind of incident."""
    if explanation.symptom == "spike":
        return "HD207"
    birth = explanation.birth
    if birth is None:
        return "HD101"
    return _CODES.get(birth.kind, "HD201" if birth.phase == "backward" else "HD101")


def title(explanation: Explanation) -> str:
    """A few words for a heading."""
    birth = explanation.birth
    if explanation.symptom == "spike":
        return f"Step {explanation.step}: the gradients leapt"
    if birth is None:
        return f"Step {explanation.step}: a number that is not finite"
    return f"Step {explanation.step}: {birth.op} in the {birth.phase} pass"


def readable_page(explanation: Explanation, index: Mapping[str, Any], folder: Path) -> str:
    """The README.md of an incident; `folder` is how people will call it."""
    lines = [f"# {prose(title(explanation))}", "", prose(explanation.summary), ""]
    if NATURE[explanation.nature]:
        lines += [NATURE[explanation.nature], ""]
    for number, birth in enumerate(explanation.births):
        lines += _birth(birth, "Where" if number == 0 else f"Another place ({number + 1})")
    lines += _spike(explanation)
    lines += _samples(explanation)
    lines += _trials(explanation.trials)
    if explanation.guilt != "unknown":
        lines += ["## Batch or weights", "", GUILT[explanation.guilt], ""]
    lines += _notes(explanation.notes)
    lines += _folder(index)
    lines += _commands(explanation, folder, replayable="batch.pt" in index["files"])
    return "\n".join(lines).rstrip() + "\n"


def _birth(birth: Birth, heading: str) -> list[str]:
    lines = [f"## {heading}", "", prose(birth.cause), ""]
    facts = [("op", birth.op), ("pass", birth.phase), ("module", birth.module)]
    facts += [("autograd", birth.node or ""), ("part of the loss", birth.component or "")]
    facts += [("autocast", birth.autocast or "")]
    for name, place in (("line", birth.place), ("called from", birth.called_from)):
        if place is not None:
            within = f" in {code(place.within)}" if place.within else ""
            lines.append(f"- {name}: {code(place)}{within}")
    lines += [f"- {name}: {code(value)}" for name, value in facts if value]
    lines.append("")
    for place in (birth.place, birth.called_from):
        if place is not None:
            lines += [*block(source_around(place), "text"), ""]
    return lines + _operands(birth)


def _operands(birth: Birth) -> list[str]:
    rows = [_operand(item) for item in birth.inputs]
    if birth.output is not None:
        rows.append(["→ " + _operand(birth.output)[0], *_operand(birth.output)[1:]])
    if not rows:
        return []
    head = ["tensor", "role", "shape", "dtype", "finite range", "NaN", "Inf", "zeros"]
    return ["### What went in, and what came out", "", *table(head, rows), ""]


def _operand(item: Operand) -> list[str]:
    return [
        cell(code(item.name)),
        prose(item.role),
        say_shape(item.shape),
        prose(item.dtype),
        say_range(item),
        *(str(count) for count in (item.nan, item.inf, item.zero)),
    ]


def say_shape(shape: Sequence[int]) -> str:
    return " × ".join(str(size) for size in shape) or "one number"


def say_range(item: Operand) -> str:
    """From where to where the finite elements go."""
    if item.low is None or item.high is None:
        return "none"
    return f"{say(item.low)} … {say(item.high)}"


def _spike(explanation: Explanation) -> list[str]:
    spike = explanation.spike
    if spike is None:
        return []
    lines = ["## What carries it", ""]
    if spike.component:
        lines.append(f"- part of the loss: {code(spike.component)}")
    if spike.layers and not spike.growth:
        lines.append(f"- largest gradients: {named(spike.layers)}")
    grown = zip(spike.layers, spike.growth, strict=False)
    lines += [f"- {code(name)}: {say(growth)} times its usual" for name, growth in grown]
    return [*lines, ""]


def _samples(explanation: Explanation) -> list[str]:
    birth, spike = explanation.birth, explanation.spike
    rows = birth.rows if birth is not None else spike.rows if spike is not None else ()
    lines = []
    if rows:
        lines.append(f"- rows of the batch: {named(rows)}")
    if explanation.samples:
        lines.append(f"- in the data set: {named(explanation.samples)}")
    if explanation.rank is not None:
        lines.append(f"- rank: {explanation.rank}")
    if lines:
        lines = ["## Samples", "", *lines, ""]
    if birth is not None and birth.reached:
        lines += ["## Parameters reached", "", f"{named(birth.reached)}", ""]
    return lines


def named(items: Sequence[object], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(code(item) for item in items[:most]) + more


def _trials(trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return []
    lines = ["## Cures, tried on this very step", ""]
    for trial in trials:
        why = f" ({prose(trial.why)})" if trial.why else ""
        lines.append(f"- {SIGNS[trial.tried]} **{trial.tried}**: {prose(trial.text)}{why}")
    return [*lines, ""]


def _notes(notes: Sequence[str]) -> list[str]:
    return ["## Notes", "", *(f"- {prose(note)}" for note in notes), ""] if notes else []


def _folder(index: Mapping[str, Any]) -> list[str]:
    under = index["versions"]
    lines = ["## What is in this folder", ""]
    rows_only = index["captured"]["batch"] == "guilty-rows"
    for name, seal in index["files"].items():
        said = _CONTENT[name]
        if name == "batch.pt" and rows_only:
            said = "the guilty rows of the data; replayed repeated to the size of the batch"
        lines.append(f"- {code(name)}: {said} ({say_bytes(seal['bytes'])})")
    missing = index["left_out"]
    lines += [f"- not kept: {prose(item['what'])} ({prose(item['why'])})" for item in missing]
    lines.append(
        f"- made {index['when']} with headway {under['headway']}, torch {under['torch']}, "
        f"Python {under['python']}, {prose(under['device'])}"
    )
    return [*lines, ""]


def _commands(explanation: Explanation, folder: Path, *, replayable: bool) -> list[str]:
    commands = [f"headway explain {code_of(explanation)}"]
    said = "Mend the line, then train again: without the data this step cannot be replayed."
    if replayable:
        commands.insert(0, f"headway replay {shlex.quote(str(folder))}")
        said = "Mend the line, then run the first: it exits 0 once the step is cured, else 1."
    return ["## Go on", "", said, "", *block(commands, "console")]


def source_around(place: Line) -> list[str]:
    """The line with its neighbours, marked; the line alone where the file cannot be read."""
    linecache.checkcache(place.file)
    lines = linecache.getlines(place.file)
    if not 0 < place.line <= len(lines):
        return [f"> {place.line} | {place.source}"]
    first = max(place.line - AROUND, 1)
    last = min(place.line + AROUND, len(lines))
    width = len(str(last))
    return [
        f"{'>' if number == place.line else ' '} {number:{width}} | {lines[number - 1].rstrip()}"
        for number in range(first, last + 1)
    ]
