"""The README.md of an incident, and escaping of foreign text in Markdown."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.numbers import say, say_bytes
from headway.explain.explanation import Explanation, Origin
from headway.output.display_text import clean, shell_quote
from headway.output.incident_view import (
    IncidentView,
    OperandView,
    OriginView,
    TrialView,
    read_incident_view,
)
from headway.torch_adapters.frames import Location

# Escaping: names, messages and source lines are untrusted and must not become markup.

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


# The page, for a terminal, an editor or GitHub.

AROUND = 3
"""Lines of source shown before and after the failing one."""
MOST_NAMED = 12
"""Names in a list; the others are counted."""
_CODES = {"poisoned-weight": "HD301", "poisoned-buffer": "HD302", "poisoned-batch": "HD501"}
_CONTENT = {
    "batch.pt": "the batch of the step",
    "rng.pt": "the random state before the step",
    "state.pt": "weights, buffers and gradient scaler",
}


def code_of(explanation: Explanation) -> str:
    """The check for this kind of incident."""
    if explanation.symptom == "spike":
        return "HD207"
    origin = explanation.origin
    if origin is None:
        return "HD101"
    return _CODES.get(origin.kind, "HD201" if origin.phase == "backward" else "HD101")


def title(explanation: Explanation) -> str:
    """The heading of the page."""
    origin = explanation.origin
    if explanation.symptom == "spike":
        return f"Step {explanation.step}: gradient spike"
    if origin is None:
        return f"Step {explanation.step}: non-finite value"
    return f"Step {explanation.step}: {origin.op} in the {origin.phase} pass"


def render_readme(explanation: Explanation, index: Mapping[str, Any], folder: Path) -> str:
    """The README.md of an incident; `folder` is its path as users type it."""
    incident = read_incident_view(explanation.to_dict())
    lines = [f"# {escape_prose(title(explanation))}", "", escape_prose(incident.summary), ""]
    for number, view in enumerate(incident.origins):
        heading = "Where" if number == 0 else f"Another place ({number + 1})"
        lines += _render_origin(view, explanation.origins[number], heading)
    lines += _render_spike(incident.spike)
    lines += _render_facts(incident)
    lines += _render_trials(incident.trials)
    lines += _render_folder(index)
    replayable = "batch.pt" in index["files"]
    scripted = index["script"] is not None
    lines += _render_commands(explanation, folder, replayable=replayable, scripted=scripted)
    return "\n".join(lines).rstrip() + "\n"


def _render_origin(view: OriginView, origin: Origin, heading: str) -> list[str]:
    lines = [f"## {heading}", "", escape_prose(view.cause), ""]
    for name, place in (("line", origin.place), ("called from", origin.called_from)):
        if place is not None:
            within = f" in {code_span(place.within)}" if place.within else ""
            lines.append(f"- {name}: {code_span(place)}{within}")
    facts = [("op", view.op), ("pass", view.phase), ("module", view.module)]
    lines += [f"- {name}: {code_span(value)}" for name, value in (*facts, *view.details) if value]
    lines.append("")
    for place in (origin.place, origin.called_from):
        if place is not None:
            lines += [*code_block(source_around(place), "text"), ""]
    rows = [_render_operand(item) for item in view.inputs]
    if view.output is not None:
        name, *rest = _render_operand(view.output)
        rows.append([f"→ {name}", *rest])
    if rows:
        head = ["tensor", "role", "shape", "dtype", "finite range", "NaN", "Inf", "zeros"]
        lines += ["### Tensors of the op", "", *markdown_table(head, rows), ""]
    if view.reached:
        lines += [f"Non-finite gradients: {list_names(view.reached)}", ""]
    return lines


def _render_operand(item: OperandView) -> list[str]:
    return [
        code_cell(code_span(item.name)),
        escape_prose(item.role),
        item.shape,
        escape_prose(item.dtype),
        item.finite_range,
        *(str(count) for count in (item.nan, item.inf, item.zero)),
    ]


def _render_spike(spike: Mapping[str, Any]) -> list[str]:
    if not spike:
        return []
    lines = ["## Largest gradients", ""]
    if spike.get("component"):
        lines.append(f"- loss component: {code_span(spike['component'])}")
    layers, growth = spike.get("layers", ()), spike.get("growth", ())
    if layers and not growth:
        lines.append(f"- parameters: {list_names(layers)}")
    lines += [
        f"- {code_span(name)}: {say(factor)} times its usual norm"
        for name, factor in zip(layers, growth, strict=False)
    ]
    return [*lines, ""]


def _render_facts(incident: IncidentView) -> list[str]:
    lines = []
    for label, value in incident.facts():
        if label == "notes":
            lines += [f"- note: {escape_prose(note)}" for note in value]
        elif isinstance(value, (list, tuple)):
            lines.append(f"- {label}: {list_names(value)}")
        else:
            lines.append(f"- {label}: {escape_prose(value)}")
    return ["## Facts", "", *lines, ""] if lines else []


def list_names(items: Sequence[object], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(code_span(item) for item in items[:most]) + more


def _render_trials(trials: Sequence[TrialView]) -> list[str]:
    if not trials:
        return []
    lines = ["## Remedies, tried on this step", ""]
    for trial in trials:
        why = f" ({escape_prose(trial.why)})" if trial.why else ""
        lines.append(f"- {trial.mark} **{trial.outcome}**: {escape_prose(trial.text)}{why}")
    return [*lines, ""]


def _render_folder(index: Mapping[str, Any]) -> list[str]:
    under = index["versions"]
    lines = ["## Files in this folder", ""]
    rows_only = index["captured"]["batch"] == "guilty-rows"
    for name, seal in index["files"].items():
        content = _CONTENT[name]
        if name == "batch.pt" and rows_only:
            content = "the failing rows of the batch; a replay repeats them to its full size"
        lines.append(f"- {code_span(name)}: {content} ({say_bytes(seal['bytes'])})")
    lines += [
        f"- not kept: {escape_prose(item['what'])} ({escape_prose(item['why'])})"
        for item in index["left_out"]
    ]
    lines.append(
        f"- written {index['when']} by headway {under['headway']}, torch {under['torch']}, "
        f"Python {under['python']}, {escape_prose(under['device'])}"
    )
    return [*lines, ""]


def _render_commands(
    explanation: Explanation, folder: Path, *, replayable: bool, scripted: bool
) -> list[str]:
    commands = [f"headway explain {code_of(explanation)}"]
    text = "Fix the line, then train again: this step cannot be replayed without its batch."
    if replayable and not scripted:
        text = "Fix the line, then train again: without a script, this step cannot be replayed."
    elif replayable:
        commands.insert(0, f"headway replay {shell_quote(str(folder))}")
        text = "Fix the line, then replay the step: exit code 0 means cured, 1 still failing."
    return ["## Next", "", text, "", *code_block(commands, "console")]


def source_around(place: Location) -> list[str]:
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
