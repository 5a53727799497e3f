"""The README.md of an incident, and escaping of foreign text in Markdown."""

from __future__ import annotations

import linecache
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.numbers import say, say_bytes
from headway.explain.explanation import Explanation, Operand, Origin, Trial
from headway.output.display_text import clean
from headway.torch_adapters.source import SourceLine

# Text of strangers in Markdown: names, messages and source lines as they are, and never markup.

_SIGNS = re.compile(r"([\\`*<>\[\]|$])")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Within a word it is no emphasis: log_softmax stays readable."""
_ENTITY = re.compile(r"&(?=#?\w+;)")
_STRIKE = re.compile(r"~(?=~)|(?<=~)~")
_LINK = re.compile(r"(?i)(?<=[a-z]):(?=//)|(?<=www)\.|(?<=\w)@(?=\w)|@(?=\w)")
_BEGINNING = re.compile(r"^(\s*)(#|>|[-+=](?=\s|[-+=]|$)|\d+(?=[.)]))")


def escape_prose(text: object) -> str:
    """Words within a paragraph, an item of a list or a cell of a table."""
    said = _SIGNS.sub(r"\\\1", " ".join(clean(text).split()))
    for pattern, instead in (
        (_UNDERSCORE, r"\\_"),
        (_ENTITY, r"\\&"),
        (_STRIKE, r"\\~"),
        (_LINK, lambda found: "\\" + found[0]),
    ):
        said = pattern.sub(instead, said)
    return _BEGINNING.sub(_escape_beginning, said)


def _escape_beginning(found: re.Match[str]) -> str:
    if found[2][0].isdigit():  # a number with a dot after it would begin a list
        return f"{found[1]}{found[2]}\\"
    return f"{found[1]}\\{found[2]}"


def code_span(text: object) -> str:
    """A name, exactly as it is written."""
    said = " ".join(clean(text).split())
    if not said:
        return ""
    ticks = "`" * (_longest_run(said) + 1)
    room = " " if said.startswith("`") or said.endswith("`") else ""
    return f"{ticks}{room}{said}{room}{ticks}"


def code_cell(text: str) -> str:
    """A code span in a table, where a bar would end the cell."""
    return text.replace("|", "\\|")


def code_block(lines: Iterable[str], language: str = "") -> list[str]:
    """Lines of code, in a fence that they cannot close."""
    body = [clean(line.expandtabs(4)) for line in lines]
    fence = "`" * max(3, max(map(_longest_run, body), default=0) + 1)
    return [f"{fence}{language}", *body, fence]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, its columns aligned so that it reads well as plain text, too."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    lines = [
        "| " + " | ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]


def _longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


# An incident as a page to read: in a terminal, in an editor, on GitHub.

AROUND = 3
"""Lines of source shown before and after the one meant."""
MOST_NAMED = 12
"""Names in a list; the others are counted."""
SIGNS = {"cured": "✓", "not cured": "✗", "not tried": "–"}
GUILT_TEXT = {
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


def render_readme(explanation: Explanation, index: Mapping[str, Any], folder: Path) -> str:
    """The README.md of an incident; `folder` is how people will call it."""
    lines = [f"# {escape_prose(title(explanation))}", "", escape_prose(explanation.summary), ""]
    if NATURE[explanation.nature]:
        lines += [NATURE[explanation.nature], ""]
    for number, birth in enumerate(explanation.births):
        lines += _render_origin(birth, "Where" if number == 0 else f"Another place ({number + 1})")
    lines += _spike(explanation)
    lines += _samples(explanation)
    lines += _trials(explanation.trials)
    if explanation.guilt != "unknown":
        lines += ["## Batch or weights", "", GUILT_TEXT[explanation.guilt], ""]
    lines += _notes(explanation.notes)
    lines += _render_folder(index)
    lines += _render_commands(explanation, folder, replayable="batch.pt" in index["files"])
    return "\n".join(lines).rstrip() + "\n"


def _render_origin(birth: Origin, heading: str) -> list[str]:
    lines = [f"## {heading}", "", escape_prose(birth.cause), ""]
    facts = [("op", birth.op), ("pass", birth.phase), ("module", birth.module)]
    facts += [("autograd", birth.node or ""), ("part of the loss", birth.component or "")]
    facts += [("autocast", birth.autocast or "")]
    for name, place in (("line", birth.place), ("called from", birth.called_from)):
        if place is not None:
            within = f" in {code_span(place.within)}" if place.within else ""
            lines.append(f"- {name}: {code_span(place)}{within}")
    lines += [f"- {name}: {code_span(value)}" for name, value in facts if value]
    lines.append("")
    for place in (birth.place, birth.called_from):
        if place is not None:
            lines += [*code_block(source_around(place), "text"), ""]
    return lines + _render_operands(birth)


def _render_operands(birth: Origin) -> list[str]:
    rows = [_render_operand(item) for item in birth.inputs]
    if birth.output is not None:
        rows.append(["→ " + _render_operand(birth.output)[0], *_render_operand(birth.output)[1:]])
    if not rows:
        return []
    head = ["tensor", "role", "shape", "dtype", "finite range", "NaN", "Inf", "zeros"]
    return ["### What went in, and what came out", "", *markdown_table(head, rows), ""]


def _render_operand(item: Operand) -> list[str]:
    return [
        code_cell(code_span(item.name)),
        escape_prose(item.role),
        say_shape(item.shape),
        escape_prose(item.dtype),
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
        lines.append(f"- part of the loss: {code_span(spike.component)}")
    if spike.layers and not spike.growth:
        lines.append(f"- largest gradients: {list_names(spike.layers)}")
    grown = zip(spike.layers, spike.growth, strict=False)
    lines += [f"- {code_span(name)}: {say(growth)} times its usual" for name, growth in grown]
    return [*lines, ""]


def _samples(explanation: Explanation) -> list[str]:
    birth, spike = explanation.birth, explanation.spike
    rows = birth.rows if birth is not None else spike.rows if spike is not None else ()
    lines = []
    if rows:
        lines.append(f"- rows of the batch: {list_names(rows)}")
    if explanation.samples:
        lines.append(f"- in the data set: {list_names(explanation.samples)}")
    if explanation.rank is not None:
        lines.append(f"- rank: {explanation.rank}")
    if lines:
        lines = ["## Samples", "", *lines, ""]
    if birth is not None and birth.reached:
        lines += ["## Parameters reached", "", f"{list_names(birth.reached)}", ""]
    return lines


def list_names(items: Sequence[object], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(code_span(item) for item in items[:most]) + more


def _trials(trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return []
    lines = ["## Cures, tried on this very step", ""]
    for trial in trials:
        why = f" ({escape_prose(trial.why)})" if trial.why else ""
        lines.append(f"- {SIGNS[trial.tried]} **{trial.tried}**: {escape_prose(trial.text)}{why}")
    return [*lines, ""]


def _notes(notes: Sequence[str]) -> list[str]:
    return ["## Notes", "", *(f"- {escape_prose(note)}" for note in notes), ""] if notes else []


def _render_folder(index: Mapping[str, Any]) -> list[str]:
    under = index["versions"]
    lines = ["## What is in this folder", ""]
    rows_only = index["captured"]["batch"] == "guilty-rows"
    for name, seal in index["files"].items():
        said = _CONTENT[name]
        if name == "batch.pt" and rows_only:
            said = "the guilty rows of the data; replayed repeated to the size of the batch"
        lines.append(f"- {code_span(name)}: {said} ({say_bytes(seal['bytes'])})")
    missing = index["left_out"]
    lines += [
        f"- not kept: {escape_prose(item['what'])} ({escape_prose(item['why'])})"
        for item in missing
    ]
    lines.append(
        f"- made {index['when']} with headway {under['headway']}, torch {under['torch']}, "
        f"Python {under['python']}, {escape_prose(under['device'])}"
    )
    return [*lines, ""]


def _render_commands(explanation: Explanation, folder: Path, *, replayable: bool) -> list[str]:
    commands = [f"headway explain {code_of(explanation)}"]
    said = "Mend the line, then train again: without the data this step cannot be replayed."
    if replayable:
        commands.insert(0, f"headway replay {shlex.quote(str(folder))}")
        said = "Mend the line, then run the first: it exits 0 once the step is cured, else 1."
    return ["## Go on", "", said, "", *code_block(commands, "console")]


def source_around(place: SourceLine) -> list[str]:
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
